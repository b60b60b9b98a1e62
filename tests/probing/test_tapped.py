"""A tap that cannot be right is refused in place of the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradprobe.model.failures import UsageFailure
from gradprobe.numerics.evidence import Probed
from gradprobe.pipeline.probe import probe
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.planted.trials import TARGETS

DKDV = "flash_dkdv_kernel"
OF_HEAD_0 = f"dS={DKDV}:ds[b,0,offs_m,offs_n].T"
OF_ANOTHER = f"dS={DKDV}:dp[b,h,offs_m,offs_n].T"
NEXT_ROWS = f"delta={DKDV}:delta[b,h,offs_m + 1]"


def report_of(*taps: str, file: Path | None = None) -> Probed:
    source, _, _ = TARGETS["flash"]
    case = softmax_case(batch=1, heads=2, seqlen=20, head_dim=16, taps=taps, layouts=(("all", "contiguous"),))
    target = find_target(f"{file or source}:flash_black_box")
    return probe(case, target, why=False)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (OF_HEAD_0, "dS is wrong in head 1, where it stored nothing: the tap is wrong"),
        (OF_ANOTHER, "dS is wrong in every head, and dQ and dK, made of it, right: the tap is wrong"),
        (NEXT_ROWS, "delta is wrong in every head, and dQ and dK, made of it, right: the tap is wrong"),
    ],
)
def test_a_tap_that_cannot_be_right_is_refused_and_accuses_no_target(word, said):
    with pytest.raises(UsageFailure, match=said):
        report_of(word)


def test_what_is_tapped_of_a_wrong_kernel_is_judged(tmp_path):
    source, _, _ = TARGETS["flash"]
    copy = tmp_path / "mine.py"
    copy.write_text(source.read_text().replace("ds = p * (dp - delta[None, :])", "ds = p * dp"))
    report = report_of(f"dS={DKDV}:ds[b,h,offs_m,offs_n].T", file=copy)
    assert report.failing is not None
    assert report.failing[1].comparison.findings["dS"].mismatched
