"""A case as the fewest words of the command line that mean it."""

import contextlib

import pytest

from gradprobe.commands.shrink.repeat import fewest_words
from gradprobe.commands.shrink.simpler_cases import AXES, simpler
from gradprobe.model.failures import UsageFailure
from tests.commands.shrink.cases import ALL, facts_of, settled_case


@pytest.mark.parametrize("case", ALL)
def test_a_case_and_every_step_from_it_have_words_that_mean_them(case):
    facts = facts_of(case)
    cases = [case, *(step.case for axis in AXES for step in simpler(case, axis, facts.tensors))]
    for one in cases:
        words = fewest_words(one, facts, {})
        assert words is not None
        assert facts.resolved(words) == one


def test_words_that_mean_the_default_are_left_out_and_those_that_are_kept_stand_in_any_case():
    case = settled_case("softmax", heads=2, seqlen=9, causal=True, layouts=(("do", "distinct"),))
    words = {"heads": 2, "seqlen": 9, "causal": True, "layout": ["do=distinct"]}
    assert fewest_words(case, facts_of(case), {}) == words
    assert fewest_words(case, facts_of(case), {"device": "cpu"}) == words | {"device": "cpu"}
    case = settled_case("softmax", runs=((),))
    assert fewest_words(case, facts_of(case), {}) == {"runs": ["contiguous"]}


def test_no_word_of_them_could_be_left_out():
    for case in ALL:
        words = fewest_words(case, facts_of(case), {})
        for name in words:
            with contextlib.suppress(UsageFailure):
                fewer = {other: word for other, word in words.items() if other != name}
                assert facts_of(case).resolved(fewer) != case
