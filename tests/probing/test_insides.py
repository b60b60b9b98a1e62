"""Which targets are looked into."""

from __future__ import annotations

import pytest

from gradprobe.pipeline.probe import probe
from gradprobe.probing import insides
from gradprobe.targets.find import find_target
from tests.cases import softmax_case


@pytest.mark.parametrize(("most", "looked"), [(1 << 18, True), (100, False)])
def test_a_large_case_of_the_interpreter_is_not_looked_into_and_says_so(
    monkeypatch: pytest.MonkeyPatch, most: int, looked: bool
) -> None:
    monkeypatch.setattr(insides, "MOST_INTERPRETED", most)
    case = softmax_case(batch=1, heads=1, seqlen=16, head_dim=16, layouts=(("all", "contiguous"),))
    probed = probe(case, find_target("gradprobe.kernels.triton.flash:flash_black_box"))
    assert [run.inside is not None for run in probed.runs] == [looked]
    assert any("are not recovered" in note for note in probed.notes) != looked
