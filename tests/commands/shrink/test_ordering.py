"""What simpler means: steps that have words of the command line, and from which no step leads back."""

import pytest

from gradprobe.commands.shrink.simpler_cases import AXES, ladder, simpler
from tests.commands.shrink.cases import ALL, FACTS, worded


def steps_of(of, axis=None):
    axes = [axis] if axis else AXES
    return [step for one in axes for step in simpler(of, one, FACTS[of.case.family])]


@pytest.mark.parametrize("case", ALL)
def test_every_step_is_another_case_whose_words_mean_it_and_leads_to_the_simplest(case):
    facts = FACTS[case.case.family]
    for step in steps_of(case):
        assert step.case != case.case
        assert facts.worded(step.words) == step
        assert step.words.keys() >= {"batch", "heads", "head_dim"}
    taken, seen = case, {case.case}
    while steps := steps_of(taken):
        taken = steps[len(steps) // 2]
        assert taken.case not in seen
        seen.add(taken.case)
    sizes = taken.case.batch, taken.case.heads, taken.case.seqlen_q, taken.case.head_dim
    assert sizes == (1, 1, 1, 1)
    values = taken.case.runs, taken.case.dtype, taken.case.pattern
    assert values == (((),), "float32", "normal")
    left = taken.words.keys() - {"batch", "heads", "seqlen", "head_dim", "runs", "seed"}
    assert left <= {"bias", "tau"}


def test_the_simplest_come_first_groups_stay_and_padding_stays_inside():
    marks = "1 2 3 4 8 15 16 17 31 32 33 36 54 63 64 65 71"
    assert ladder(72, (32, 16)) == list(map(int, marks.split()))
    grouped = worded("softmax", heads=4, kv_heads=2)
    fewer = [(step.case.heads, step.case.kv_heads) for step in steps_of(grouped, "heads")]
    assert fewer == [(1, 1), (2, 2), (2, 1), (3, 3), (4, 4)]
    longer = worded("softmax", seqlen_q=5, seqlen_k=3)
    lengths = [(step.case.seqlen_q, step.case.seqlen_k) for step in steps_of(longer, "lengths")]
    assert lengths[:4] == [(1, 1), (2, 2), (3, 3), (1, 3)]
    padded = worded("lazy", seqlens="72,45")
    cases = [step.case for step in steps_of(padded, "lengths")]
    assert {case.seqlens for case in cases if case.seqlen_q == 54} == {(54, 45)}
    assert [step.case.seqlens for step in steps_of(padded, "batch")] == [(72,), (45,)]
    layouts = [step.words for step in steps_of(worded("softmax"), "layouts")]
    alone = [words.get("layout") or words["runs"] for words in layouts[:3]]
    assert alone == [["contiguous"], ["distinct"], ["do=expanded"]]


def test_a_case_is_said_by_its_words_and_a_step_by_those_that_change():
    case = worded("softmax", heads=2, seqlen=9, causal=True, layout=["do=distinct"])
    line = "batch=2 heads=2 seqlen=9 head-dim=24 causal layout=do=distinct"
    assert case.line == line
    changes = [case.beside(step) for step in steps_of(case)]
    assert changes[0] == ("batch=2", "with batch=1")
    assert ("causal", "without it") in changes
    assert ("layout=do=distinct", "with layout=contiguous") in changes
