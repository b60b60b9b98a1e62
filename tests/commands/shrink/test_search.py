"""The search on rules about cases: where it ends and what it says; and what it is to fail in the same way."""

from dataclasses import replace

from gradprobe.commands.shrink.search import NAN, NUMBERS, ShrinkSearch, Symptom
from gradprobe.commands.shrink.simpler_cases import AXES, simpler
from tests.commands.shrink.cases import FACTS, worded

WRONG = Symptom(NUMBERS, "dQ", ("dQ",), ("dQ", "dK"))
LARGE = Symptom(
    NUMBERS, "dP", ("dP", "dV", "dBias"), ("P", "dP", "dS", "dV", "dBias"), heads=4, spares_head_0=True
)  # fmt: skip


def shrunk(case, rule, wanted=WRONG, most=200, named=lambda case: None):
    """What a search from a case comes to where a rule says what fails; the search, and what was tried, and how."""
    orders = []

    def attempt(tried, in_full):
        orders.append((tried.case, in_full))
        symptom = rule(tried.case)
        if symptom is not None and in_full:
            symptom = replace(symptom, fault=named(tried.case))
        return symptom or "it matches"

    facts = FACTS[case.case.family]
    search = ShrinkSearch(attempt, facts, wanted, False, most)
    return search.run(case), search, orders


def fails_where(holds):
    return lambda case: WRONG if holds(case) else None


def test_it_ends_at_the_smallest_case_of_a_rule_and_says_what_that_takes():
    options = {"causal": True, "softcap": 2.0, "dtype": "float16"}
    case = worded("softmax", heads=4, kv_heads=2, seqlen=200, **options)
    holds = lambda case: case.heads > case.kv_heads and case.seqlen_q >= 17 and case.causal  # noqa: E731
    found, search, _ = shrunk(case, fails_where(holds))
    words = {"batch": 1, "heads": 2, "kv_heads": 1, "seqlen": 17, "head_dim": 1, "causal": True}
    assert found.words == {**words, "runs": ["contiguous"]}
    assert search.complete
    assert search.needs(found) == [
        "heads=2 kv-heads=1: with heads=1 it matches", "kv-heads=1: without it it matches",
        "seqlen=17: with seqlen=16 it matches", "causal: without it it matches",
    ]  # fmt: skip


def test_no_case_is_tried_twice_nothing_simpler_than_the_last_fails_and_no_more_than_allowed_are():
    holds = fails_where(lambda case: case.seqlen_q * case.head_dim >= 50 and case.heads != 2)
    found, search, orders = shrunk(worded("softmax", heads=5), holds)
    assert len(orders) == len({case for case, _ in orders}) == search.count
    facts = FACTS["softmax"]
    steps = [step for axis in AXES for step in simpler(found, axis, facts)]
    assert all(holds(step.case) is None for step in steps)
    holds = fails_where(lambda case: case.heads >= 3)
    found, search, orders = shrunk(worded("softmax"), holds, most=7)
    assert (search.count, len(orders), search.complete) == (7, 7, False)


def test_a_case_that_fails_otherwise_is_not_followed():
    other = replace(WRONG, first="dK", own=("dK",))
    rule = lambda case: WRONG if case.seqlen_q >= 33 else other  # noqa: E731
    found, search, _ = shrunk(worded("softmax", batch=1, heads=1), rule)
    assert found.case.seqlen_q == 33
    why = "seqlen=33: with seqlen=32 it fails in another way: dK first, wrong numbers"
    assert search.needs(found)[-1] == why


def test_where_a_cause_is_named_a_case_must_have_it_named_too():
    wanted = replace(WRONG, fault="tile/dK-last-rows")
    found, _, orders = shrunk(
        worded("softmax", batch=1, heads=1), lambda case: WRONG, wanted,
        named=lambda case: "tile/dK-last-rows" if case.seqlen_q >= 33 else None,
    )  # fmt: skip
    assert (found.case.seqlen_q, found.case.head_dim) == (33, 1)
    assert {in_full for _, in_full in orders} == {False, True}


def test_the_same_intermediates_are_wrong_by_themselves_as_far_as_they_exist_and_the_same_causes_named():
    without_bias = replace(LARGE, own=("dP", "dV"), exposed=("P", "dP", "dS", "dV"))
    alone = replace(LARGE, heads=1, spares_head_0=False)
    # Head 0 stays right as long as there are others.
    others = [{"first": "dS"}, {"kind": NAN}, {"own": ("dP", "dV")}]
    others.append({"heads": 2, "spares_head_0": False})
    assert all(symptom.is_like(LARGE) for symptom in (LARGE, without_bias, alone))
    assert not any(replace(LARGE, **other).is_like(LARGE) for other in others)
    named = replace(LARGE, fault="stride/do-head")
    # A small case that another cause explains as well is still the same.
    either = replace(LARGE, fault="layout/do", alike=("stride/do-head",))
    other = replace(LARGE, fault="stride/do-row")
    pairs = (named, LARGE), (either, named), (LARGE, named), (other, named)
    assert [small.is_named_like(large) for small, large in pairs] == [True, True, False, False]
