"""Mismatch or inherited: what the target's own parents explain, NaN and infinity among it."""

from __future__ import annotations

import pytest
import torch

from gradprobe.numerics import compare as compare_module
from gradprobe.reference import Attention
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
        name: finding.status for name, finding in comparison.findings.items() if finding.mismatched
    }


def own_heads(comparison, name):
    return sorted(set(comparison.findings[name].own.nonzero()[:, 1].tolist()))


def zero_diagonal_in_one_tile(t):
    t[0, 2].diagonal()[64:80] = 0


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


# Every mutant, three or four names each, in every arithmetic and family.
SOME = [
    (list(ARITHMETICS)[number % 4], ("softmax", "lazy")[(number + number // 4) % 2], mutant, name)
    for number, mutant in enumerate(MUTANTS)
    for name in NAMES[number % 2 :: 2]
]


@pytest.mark.parametrize(("arithmetic", "family", "mutant", "name"), SOME)
def test_a_structural_mutant_is_a_mismatch_where_it_was_made_and_nowhere_else(
    arithmetic, family, mutant, name
):
    change, heads = MUTANTS[mutant]
    found = compared_in(arithmetic, family, changed(name, change), NAMES)
    assert [n for n, status in statuses(found).items() if status == "mismatch"] == [name]
    assert own_heads(found, name) == heads


@pytest.mark.parametrize("name", ["P", "dS"])
def test_a_dropped_diagonal_shows_in_dq_dk_and_dv_alone(name):
    fault = changed(name, zero_diagonal_in_one_tile)
    found = compared_in("bfloat16", "softmax", fault, ("dQ", "dK", "dV"))
    assert list(statuses(found)) == (["dQ", "dK", "dV"] if name == "P" else ["dQ", "dK"])


@pytest.mark.parametrize(
    ("name", "value", "inherited"),
    [
        ("P", torch.nan, {"O", "delta", "dS", "dQ", "dK", "dV"}),
        ("dP", torch.inf, {"dS", "dQ", "dK"}),
        ("delta", -torch.inf, {"dS", "dQ", "dK"}),
        ("dS", torch.nan, {"dQ", "dK"}),
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


@pytest.mark.parametrize("from_o", [True, False])
@pytest.mark.parametrize("family", ["softmax", "lazy"])
def test_a_wrong_dp_is_no_fault_of_delta_however_the_kernel_comes_by_it(family, from_o):
    case = case_of(family, **CASE)
    found = compared(
        case, Arithmetic(delta_from_o=from_o), fault=changed("dP", lambda t: t[0, 2].mul_(1.1))
    )
    assert [name for name, status in statuses(found).items() if status == "mismatch"][:1] == ["dP"]
    assert statuses(found).get("delta") in (None, "inherited")


@pytest.mark.parametrize("family", ["softmax", "lazy"])
def test_a_future_key_that_leaks_is_found_in_masked_entries(family):
    def leak(name, t):
        t = t.clone()
        if name in ("P", "dS", "dP"):
            t[0, 2, 40, 41] = 0.25
        return t

    found = compared_in("bfloat16", family, leak).findings
    assert [found[name].first.col for name in ("P", "dP", "dS")] == [41] * 3


MASKED = ({"causal": True}, {"window": (9, 2)}, {"causal": True, "window": (5, -1)})


@pytest.mark.parametrize(
    ("dtype", "options", "fault"),
    [("float32", MASKED[0], ("P", 3, 60)), ("bfloat16", MASKED[1], ("dS", 40, 50)), ("float32", MASKED[2], None)],
)  # fmt: skip
def test_tiles_without_the_keys_that_no_row_sees_give_what_tiles_with_all_keys_do(
    dtype, options, fault, monkeypatch
):
    """A masked entry that is not 0 is found at its place, too."""
    shape = {"batch": 1, "heads": 4, "kv_heads": 2, "seqlen_q": 70, "seqlen_k": 83}
    case = case_of("softmax", **shape, dtype=dtype, **options)

    def spoil(tensor):
        tensor[:, 1, fault[1], fault[2]] += 1.0

    faulty = {"fault": changed(fault[0], spoil)} if fault else {}
    monkeypatch.setattr(compare_module, "TILE_ELEMENTS", 1 << 12)
    tiled = compared(case, **faulty)
    monkeypatch.setattr(Attention, "seen_keys", lambda x, _: slice(0, x.n_key))
    whole = compared(case, **faulty)
    assert whole.matches is (fault is None)
    for name, finding in whole.findings.items():
        other = tiled.findings[name]
        for of in ("total", "mismatched", "status"):
            assert getattr(finding, of) == getattr(other, of)
        torch.testing.assert_close(finding.ratio, other.ratio, rtol=1e-6, atol=0.0)
        assert other.rms_ratio == pytest.approx(finding.rms_ratio, rel=1e-6)
        if finding.first is not None:
            assert (other.first.row, other.first.col) == (finding.first.row, finding.first.col)
