import pytest
import torch

from gradprobe.inputs.history import CheckRequest
from gradprobe.model.memory_finding import OUTSIDE
from gradprobe.pipeline.reported import report_of
from gradprobe.pipeline.run_check import run_check
from gradprobe.probing import observe
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal
from tests.planted.planting import KERNELS, Edit, edited

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 37, "head_dim": 16, "bias": False}
DKDV, PREPROCESS = "lazy_dkdv_kernel", "lazy_preprocess_kernel"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"
STORE_DELTA = "tl.store(delta_ptr + offs_m * stride_deltam, delta, mask=offs_m < n_ctx)"
STORED_FAR = STORE_DV.replace("n_ctx", "n_ctx + 32")
DV_HEAD = "dv_ptr += b * stride_dvb + h * stride_dvh"
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="only the interpreter sees every address"
)


def checked(folder, kernel, find, replace, **options):
    """The report of lazy with an edit in one kernel, contiguous unless told otherwise; and the line of the edit."""
    source = edited((KERNELS / "lazy.py").read_text(), (Edit(kernel, find, replace),))
    path = folder / f"{folder.name}.py"  # of the same name elsewhere it would be a cause to try
    path.write_text(source)
    line = source[: source.index(replace, source.index(f"def {kernel}("))].count("\n") + 1
    options = {"runs": ["contiguous"], **OPTIONS, **options}
    given = {name: value for name, value in options.items() if value is not None}
    return run_check(CheckRequest(f"{path}:lazy_intermediates", None, None, given), ""), line


@interpreted
def test_a_store_behind_dv_fails_a_check_of_right_gradients_and_is_named_with_its_line(tmp_path):
    runs = ["contiguous", "distinct"]
    report, line = checked(tmp_path, DKDV, STORE_DV, STORED_FAR, heads=1, runs=runs)
    assert report.verdict == "mismatch"
    assert all(run.measured.matches for run in report.runs[:2])
    assert report.diagnoses[0].fix == "mask the access by the lengths of the tensor"
    for run in report.runs[:2]:
        found = run.memory[0]
        assert (found.kind, found.access, found.line) == (OUTSIDE, "store", line)
    terminal = Terminal(200, None, utf8=True, details=True)
    said = "\n".join(text.plain for text in rendered(report_of(report), terminal))
    assert "in contiguous, distinct: lazy_dkdv_kernel stores outside dv" in said
    assert said.count("stores outside dv") == 1
    assert "NO HYPOTHESIS FITS" not in said


@pytest.mark.nightly
@interpreted
def test_a_store_behind_the_last_block_is_told_as_a_length_that_is_wrong(tmp_path):
    report, line = checked(tmp_path, DKDV, STORE_DV, STORED_FAR, heads=1, seqlen=None)
    cause = report.diagnoses[0]
    assert (cause.fault, line in [where.line for where in cause.where]) == ("tail/length", True)
    words = (
        "lengths that end inside a block are wrong: in contiguous it is right at --seqlen 128"
    )
    assert cause.summary == words


@interpreted
def test_delta_that_nothing_wrote_is_the_cause_and_both_kernels_that_read_it_are_named(tmp_path):
    report, _ = checked(
        tmp_path, PREPROCESS, STORE_DELTA, STORE_DELTA.replace("n_ctx)", "n_ctx - 5)"), heads=1
    )
    assert report.diagnoses[0].fault == "unwritten/delta"
    assert {stray.kernel for stray in report.runs[0].memory} == {"lazy_dq_kernel", DKDV}


@interpreted
def test_a_target_that_imports_triton_only_when_it_is_called_is_watched_all_the_same(
    tmp_path, monkeypatch
):
    # Whether Triton is there: not before the first run, and from then on.
    there = iter([False, False])
    monkeypatch.setattr(observe, "interprets_triton", lambda: next(there, True))
    report, _ = checked(tmp_path, DKDV, STORE_DV, STORED_FAR, heads=1)
    assert [stray.tensor for stray in report.runs[0].memory if stray.kind == OUTSIDE] == ["dv"]
