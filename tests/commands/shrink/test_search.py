"""The search on targets that are a rule about cases: where it ends, how many tries it takes, what it says."""

from dataclasses import replace

from gradprobe.commands.shrink.case_worker import TRY, TRY_IN_FULL, Attempts
from gradprobe.commands.shrink.shrinking import ShrinkSearch
from gradprobe.commands.shrink.simpler_cases import AXES, simpler
from gradprobe.commands.shrink.symptom import NUMBERS, Symptom, TriedCase
from gradprobe.inputs.history import CheckRequest
from tests.commands.shrink.cases import facts_of, settled_case

WRONG = Symptom(NUMBERS, "dQ", ("dQ",), ("dQ", "dK"))


class Rule(Attempts):
    """Attempts of a target that fails where a rule says so; `orders` are what was tried, and how."""

    def __init__(self, facts, rule, most=200, named=lambda case: None):
        super().__init__(CheckRequest("rule", None, None, {}), False, None, most, print)
        self.facts, self.rule, self.named, self.orders = facts, rule, named, []

    def _carried_out(self, orders):
        for order in orders:
            case = self.facts.resolved(order.options)
            self.orders.append((order.what, case))
            symptom = self.rule(case)
            if symptom is not None and order.what == TRY_IN_FULL:
                symptom = replace(symptom, fault=self.named(case))
            yield TriedCase(symptom)


def shrunk(case, rule, wanted=WRONG, **options):
    """What a search from a case comes to, and the attempts that it made."""
    attempts = Rule(facts_of(case), rule, **options)
    search = ShrinkSearch(attempts, facts_of(case), {}, wanted, False, lambda step: None)
    return search.run(case), attempts


def fails_where(holds):
    return lambda case: WRONG if holds(case) else None


def test_it_ends_at_the_smallest_case_of_a_rule_and_says_what_that_takes():
    options = {"causal": True, "softcap": 2.0, "dtype": "float16"}
    case = settled_case("softmax", heads=4, kv_heads=2, seqlen=200, **options)
    holds = lambda case: case.heads > case.kv_heads and case.seqlen_q >= 17 and case.causal  # noqa: E731
    found, _ = shrunk(case, fails_where(holds))
    assert found.case == settled_case(
        "softmax", batch=1, heads=2, kv_heads=1, seqlen=17, head_dim=1, causal=True, runs=((),)
    )
    assert found.complete
    assert found.needs == (
        "heads 2: with 1 head it matches",
        "kv-heads 1: with 2 key heads it matches",
        "seqlen 17: with seqlen 16 it matches",
        "causal: without it it matches",
    )


def test_what_a_later_axis_allows_is_tried_again_along_an_earlier_one():
    holds = fails_where(lambda case: case.bias and case.seqlen_q >= case.bias_window)
    found, _ = shrunk(settled_case("lazy", heads=1, batch=1), holds)
    assert (found.case.bias_window, found.case.seqlen_q) == (1, 1)


def test_no_case_is_tried_twice_and_nothing_simpler_than_the_last_fails_so():
    holds = fails_where(lambda case: case.seqlen_q * case.head_dim >= 50 and case.heads != 2)
    found, attempts = shrunk(settled_case("softmax", heads=5), holds)
    tried = [case for _, case in attempts.orders]
    assert len(tried) == len(set(tried)) == attempts.count
    steps = [step for axis in AXES for step in simpler(found.case, axis, attempts.facts.tensors)]
    assert all(holds(step.case) is None for step in steps)


def test_no_more_cases_are_tried_than_allowed():
    holds = fails_where(lambda case: case.heads >= 3)
    found, attempts = shrunk(settled_case("softmax"), holds, most=7)
    assert (attempts.count, len(attempts.orders), found.complete) == (7, 7, False)


def test_a_case_that_fails_otherwise_is_not_followed_but_told_once():
    other = replace(WRONG, first="dK", own=("dK",))
    rule = lambda case: WRONG if case.seqlen_q >= 33 else other  # noqa: E731
    found, _ = shrunk(settled_case("softmax", batch=1, heads=1), rule)
    assert found.case.seqlen_q == 33
    assert [symptom for _, symptom in found.others] == [other]
    why = "seqlen 33: with seqlen 32 it fails in another way: dK first, wrong numbers"
    assert found.needs[-1] == why


def test_where_a_cause_is_named_a_case_must_have_it_named_too():
    wanted = replace(WRONG, fault="tile/dK-last-rows")
    found, attempts = shrunk(
        settled_case("softmax", batch=1, heads=1), lambda case: WRONG, wanted,
        named=lambda case: "tile/dK-last-rows" if case.seqlen_q >= 33 else None,
    )  # fmt: skip
    assert (found.case.seqlen_q, found.case.head_dim) == (33, 1)
    assert {what for what, _ in attempts.orders} == {TRY, TRY_IN_FULL}


def test_only_the_tensors_that_it_takes_lie_otherwise_than_contiguous():
    case = settled_case("softmax", layouts=(("all", "distinct"),))
    needed = {"do", "k"}

    def holds(case):
        placed = {name for name, layout in case.runs[0] if layout == "distinct"}
        return "all" in placed or needed <= placed

    found, _ = shrunk(case, fails_where(holds))
    assert found.case.runs == ((("do", "distinct"), ("k", "distinct")),)
