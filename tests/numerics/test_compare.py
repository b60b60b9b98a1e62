"""Mismatch or inherited: what the target's own parents explain, NaN and infinity among it."""

import pytest
import torch

from tests.emulated import Arithmetic, case_of, changed, compared

CASE = {"batch": 1, "heads": 4, "seqlen": 100, "head_dim": 32}
ARITHMETICS = {
    "float32": Arithmetic(),
    "tf32": Arithmetic(tf32="cut", tensor_core=True),
    "float16": Arithmetic(tensor_core=True),
    "bfloat16": Arithmetic(tensor_core=True),
}
NAMES = ("P", "dP", "delta", "dS", "dQ", "dK", "dV")


def compared_in(arithmetic, family, fault, names=None, **options):
    dtype = arithmetic if arithmetic != "tf32" else "float32"
    causal = {"causal": True} if family == "softmax" else {"tau": (-0.5, 0.5, 0.5, 1.0)}
    case = case_of(family, **CASE | {"dtype": dtype} | causal | options)
    return compared(case, ARITHMETICS[arithmetic], fault=fault, names=names)


def statuses(comparison):
    return {
        name: finding.status
        for name, finding in comparison.findings.items()
        if finding.mismatched
    }


def swapped(t):
    t[0, 1:3, 50:54] = t[0, [2, 1], 50:54]


MUTANTS = {
    "head 2 off by 2 %": (lambda t: t[0, 2].mul_(1.02), [2]),
    "head 2 off by 10 %": (lambda t: t[0, 2].mul_(1.1), [2]),
    # Row 40 of delta is so small that TF32 may leave nothing of it, and 2 % of it are little more than it may err by.
    "row 41 zero": (lambda t: t[0, 2, 41].zero_(), [2]),
    "last rows zero": (lambda t: t[0, 2, -5:].zero_(), [2]),
    "heads 1 and 2 swapped on rows 50 to 53": (swapped, [1, 2]),
    "all off by 3 %": (lambda t: t.mul_(1.03), [0, 1, 2, 3]),
}


# Every mutant, two or three names each, in every arithmetic and family.
SOME = [
    (
        list(ARITHMETICS)[number % 4],
        ("softmax", "lazy")[(number + number // 4) % 2],
        mutant,
        name,
    )
    for number, mutant in enumerate(MUTANTS)
    for name in NAMES[number % 3 :: 3]
]


@pytest.mark.parametrize(("arithmetic", "family", "mutant", "name"), SOME)
def test_a_structural_mutant_is_a_mismatch_where_it_was_made_and_nowhere_else(
    arithmetic, family, mutant, name
):
    change, heads = MUTANTS[mutant]
    found = compared_in(arithmetic, family, changed(name, change), NAMES)
    assert [n for n, status in statuses(found).items() if status == "mismatch"] == [name]
    assert sorted({*found.findings[name].own.nonzero()[:, 1].tolist()}) == heads


@pytest.mark.parametrize(
    ("name", "value", "inherited"),
    [
        ("P", torch.nan, {"O", "delta", "dS", "dQ", "dK", "dV"}),
        ("delta", -torch.inf, {"dS", "dQ", "dK"}),
    ],
)
def test_one_element_that_is_no_number_is_inherited_downstream_and_never_a_match(
    name, value, inherited
):
    def one(t):
        t[(0, 2, 40, 3)[: t.dim()]] = value

    found = statuses(compared_in("float32", "softmax", changed(name, one)))
    assert found == {name: "mismatch"} | dict.fromkeys(inherited, "inherited")


def test_a_fault_in_p_of_head_1_does_not_hide_one_of_dq_in_head_2():
    in_p = changed("P", lambda t: t[0, 1].mul_(1.1))
    in_dq = changed("dQ", lambda t: t[0, 2, 9].zero_())
    found = compared_in("float32", "softmax", lambda name, t: in_dq(name, in_p(name, t)))
    told = [found.findings["dQ"].head_status(0, h) for h in range(4)]
    assert told == ["match", "inherited", "mismatch", "match"]
    assert (found.findings["dQ"].first.head, found.findings["dQ"].first.row) == (2, 9)


def test_an_lse_exposed_wrong_is_the_first_mismatch_and_p_inherits_it():
    fault = changed("LSE", lambda t: t[0, 1].mul_(1.03))
    found = statuses(compared_in("float32", "softmax", fault))
    assert found.pop("LSE") == "mismatch"
    assert set(found.values()) == {"inherited"}


@pytest.mark.parametrize(("family", "from_o"), [("softmax", True), ("lazy", False)])
def test_a_wrong_dp_is_no_fault_of_delta_however_the_kernel_comes_by_it(family, from_o):
    case = case_of(family, **CASE)
    found = compared(
        case, Arithmetic(delta_from_o=from_o), fault=changed("dP", lambda t: t[0, 2].mul_(1.1))
    )
    assert [name for name, status in statuses(found).items() if status == "mismatch"][:1] == [
        "dP"
    ]
    assert statuses(found).get("delta") in (None, "inherited")


def test_a_future_key_that_leaks_is_found_in_masked_entries():
    def leak(name, t):
        t = t.clone()
        if name in ("P", "dS", "dP"):
            t[0, 2, 40, 41] = 0.25
        return t

    found = compared_in("bfloat16", "lazy", leak).findings
    assert [found[name].first.col for name in ("P", "dP", "dS")] == [41] * 3
