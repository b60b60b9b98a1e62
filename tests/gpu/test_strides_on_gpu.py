"""gradprobe strides on a GPU: right kernels in every layout, real memory beyond 2^31, planted faults found."""

import pytest

from gradprobe.commands.strides.bench import FIRST
from gradprobe.commands.strides.survey import survey
from gradprobe.commands.strides.trials import trials_of
from gradprobe.commands.strides.worker import BenchSetup, bench_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem
from gradprobe.processes import run_each
from tests.planted.planting import KERNELS, Edit, edited

pytestmark = pytest.mark.gpu

OPTIONS = {"seqlen": 37, "head_dim": 16, "device": "cuda"}
ROWS, NARROW = "offs_r[:, None] * stride_r", "offs_r[:, None].to(tl.int32) * stride_r"


def tried(word, fast=False, chosen=lambda trial: True, **options):
    """The results of the chosen trials of a target, by title."""
    bench = bench_of(resolve_problem(CheckRequest(word, None, None, OPTIONS | options)))
    trials = (FIRST, *trials_of(bench.shapes(), (), fast=fast))
    return {trial.title: bench.tried(trial) for trial in trials if chosen(trial)}


def surveyed(request):
    given = frozenset(request.options)
    return survey(
        request, "again", given=given, fast=True, timeout=120, told=lambda found: None, echo=lambda text: None
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("word", ["lazy", "flash"])
def test_right_kernels_are_right_in_every_layout_of_ordinary_size(word, dtype, record_property):
    found = tried(word, chosen=lambda trial: trial.layout != "huge", dtype=dtype)
    wrong = {title: one for title, one in found.items() if one.verdict != "match"}
    assert {title: one.words or one.run.first_mismatch for title, one in wrong.items()} == {}
    # Other bits are no fault here: atomics add in another order each time, and other strides compile to other code.
    others = [title for title, result in found.items() if result.how != "same bits"]
    record_property("other bits", others)


@pytest.mark.parametrize(("word", "dtype"), [
    ("sdpa-math", "float32"), ("sdpa-efficient", "float32"), ("sdpa-math", "float16"), ("sdpa-flash", "float16"),
    ("sdpa-flash", "bfloat16"),
])  # fmt: skip
def test_pytorch_s_kernels_are_right_in_every_layout_that_they_take_and_survive(
    word, dtype, record_property
):
    found = surveyed(CheckRequest(word, None, None, OPTIONS | {"dtype": dtype}))
    verdicts = [
        (one.trial.title, one.how or f"{one.verdict}: {one.words}") for one in found.results
    ]
    record_property("verdicts", verdicts)
    assert [(one.trial.title, one.run.first_mismatch) for one in found.having("mismatch")] == []
    assert found.results[0].verdict == "match"


def test_cudnn_s_gradient_is_wrong_where_do_lies_otherwise_than_o():
    request = CheckRequest("sdpa-cudnn", None, None, OPTIONS | {"dtype": "float16"})
    found = surveyed(request)
    wrong = {result.trial.title for result in found.having("mismatch")}
    assert {
        "do=blhd",
        "[B, L, H, D] views, dO contiguous",
        "torch.cat of rows, its backward",
    } <= wrong
    right = {result.trial.title for result in found.having("match")}
    assert {"contiguous", "blhd", "packed", "distinct-unit"} <= right


@pytest.mark.parametrize("word", ["lazy", "flash"])
def test_offsets_beyond_2_to_the_31_into_real_memory_are_right_tensor_by_tensor(word):
    def of_one(trial):
        return trial.layout == "huge" and trial.row != "all"

    found = tried(word, chosen=of_one, dtype="float16")
    assert {result.verdict for result in found.values()} == {"match"}


def test_an_index_of_32_bits_is_found_beyond_2_to_the_31_alone(tmp_path):
    path = tmp_path / "narrow.py"
    path.write_text(edited((KERNELS / "lazy.py").read_text(), (Edit("load_tile", ROWS, NARROW),)))
    # In processes of their own: an access that the device refuses leaves a process without one.
    options = OPTIONS | {"dtype": "float16"}
    request = CheckRequest(f"{path}:lazy_intermediates", None, None, options)
    setup = BenchSetup(request, "again", False, frozenset())
    (plan,) = run_each("gradprobe.commands.strides.worker:Trials", setup, [0])
    titles = [trial.title for trial in plan.result.trials]
    numbers = [titles.index(title) + 1 for title in ("contiguous", "distinct", "q=huge")]
    ends = run_each("gradprobe.commands.strides.worker:Trials", setup, numbers)
    verdicts = [ended.result.verdict if ended.result else "error" for ended in ends]
    assert verdicts[:2] == ["match", "match"]
    # The wrapped offset lies before the tensor: numbers from there, or an access that is refused.
    assert verdicts[2] in ("mismatch", "error")


def test_do_read_with_the_head_stride_of_q_is_right_contiguous_and_wrong_in_distinct(tmp_path):
    source = (KERNELS / "lazy.py").read_text().replace("h * stride_doh", "h * stride_qh")
    path = tmp_path / "mixed.py"
    path.write_text(source)

    def is_chosen(trial):
        return trial.title in ("contiguous", "distinct")

    found = tried(f"{path}:lazy_intermediates", fast=True, chosen=is_chosen)
    assert (found["contiguous"].verdict, found["distinct"].verdict) == ("match", "mismatch")
