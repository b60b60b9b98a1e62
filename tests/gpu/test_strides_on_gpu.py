import pytest

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.survey import survey
from gradprobe.inputs.history import CheckRequest
from tests.commands.strides.benches import bench_for, trials_for
from tests.planted.planting import KERNELS, Edit, edited

pytestmark = pytest.mark.gpu

OPTIONS = {"seqlen": 37, "head_dim": 16, "device": "cuda"}
ROWS, NARROW = "offs_r[:, None] * stride_r", "offs_r[:, None].to(tl.int32) * stride_r"


def tried(word, fast=False, chosen=lambda trial: True, **options):
    bench = bench_for(word, **OPTIONS | options)
    trials = trials_for(bench, fast=fast).values()
    return {trial.title: bench.run(trial) for trial in trials if chosen(trial)}


def surveyed(request, fast=True):
    given, setting = frozenset(request.options), Setting(timeout=120)
    *_, report = survey(request, "again", given=given, fast=fast, setting=setting)
    return report


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("word", ["lazy", "flash"])
def test_right_kernels_are_right_in_every_layout_of_ordinary_size(word, dtype):
    found = tried(
        word,
        chosen=lambda trial: trial.tried.layout != "huge" and trial.tried.kind != "program",
        dtype=dtype,
    )
    wrong = {title: one for title, one in found.items() if one.verdict != "match"}
    assert {title: one.error or one.first_mismatch for title, one in wrong.items()} == {}


@pytest.mark.parametrize("word", ["lazy", "flash"])
def test_offsets_beyond_2_to_the_31_into_real_memory_are_right_tensor_by_tensor(word):
    def of_one(trial):
        return trial.tried.layout == "huge" and trial.tried.row != "all"

    found = tried(word, chosen=of_one, dtype="float16")
    assert {result.verdict for result in found.values()} == {"match"}


def test_an_index_of_32_bits_is_found_beyond_2_to_the_31_alone(tmp_path):
    path = tmp_path / "narrow.py"
    path.write_text(
        edited((KERNELS / "lazy.py").read_text(), (Edit("load_tile", ROWS, NARROW),))
    )
    options = OPTIONS | {"dtype": "float16"}
    request = CheckRequest(f"{path}:lazy_intermediates", None, None, options)
    report = surveyed(request, fast=False)
    runs = {run.layout: run for run in report.runs}
    assert (runs["contiguous"].verdict, runs["distinct"].verdict) == ("match", "match")
    # The wrapped offset lies before the tensor: numbers from there, or an access that is refused.
    assert runs["q=huge"].verdict in ("mismatch", "error")
    assert runs["q=huge"].severity == "warning"
