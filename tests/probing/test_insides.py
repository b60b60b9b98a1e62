"""Which targets are looked into."""

from __future__ import annotations

import pytest

from gradprobe.probing import insides
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.probe import probe


@pytest.mark.parametrize("most", [1 << 18, 100])
def test_a_large_case_of_the_interpreter_is_not_looked_into_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(insides, "MOST_INTERPRETED", most)
    case = softmax_case(
        batch=1, heads=1, seqlen=20, head_dim=16, layouts=(("all", "contiguous"),)
    )
    probed = probe(case, find_target("gradprobe.kernels.triton.flash:flash_black_box"))
    assert (probed.runs[0].inside is None) == (most == 100)
    assert any("a smaller --seqlen shows them" in note for note in probed.notes) == (most == 100)


def test_what_a_target_of_one_batch_does_with_more_is_not_held_against_it() -> None:
    case = softmax_case(batch=1, heads=1, seqlen=20, head_dim=16, bias=True)
    probed = probe(case, find_target("tests.probing.batched_bias:backward"))
    assert probed.runs[0].inside is not None
    assert probed.verdict == "match"
    assert not any(run.memory for run in probed.runs)
