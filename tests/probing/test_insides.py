"""Which targets are looked into."""

from __future__ import annotations

import pytest

from gradprobe.pipeline.probe import probe
from gradprobe.pipeline.reported import run_of
from gradprobe.probing import insides
from gradprobe.targets.find import find_target
from tests.cases import softmax_case


@pytest.mark.parametrize(("most", "whole"), [(1 << 18, True), (100, False)])
def test_of_a_large_case_of_the_interpreter_some_rows_are_shown_and_it_says_which(
    monkeypatch: pytest.MonkeyPatch, most: int, whole: bool
) -> None:
    monkeypatch.setattr(insides, "MOST_INTERPRETED", most)
    case = softmax_case(batch=1, heads=1, seqlen=20, head_dim=16, layouts=(("all", "contiguous"),))
    probed = probe(case, find_target("gradprobe.kernels.triton.flash:flash_black_box"))
    assert probed.runs[0].inside is not None
    (of_p,) = (one for one in run_of(case, probed.runs[0]).intermediates if one.name == "P")
    rows = sum(last - first + 1 for first, last in of_p.shown)
    assert (rows, of_p.total) == ((0, 400) if whole else (18, 360))
    said = "contiguous: P, dP, delta and dS recovered in 18 of 20 rows (0-"
    assert any(note.startswith(said) and note.endswith(", in 1 more run") for note in probed.notes) != whole
