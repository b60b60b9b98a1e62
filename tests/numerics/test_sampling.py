"""A few rows and keys of a black box tell what all of them tell."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.black_box.onehot import Sample, plan
from gradprobe.numerics.black_box.recover import is_whole
from gradprobe.numerics.black_box.sampling import MOST_ELEMENTS, MOST_PROBES, sampled
from gradprobe.runtime.trace import expected_shapes
from tests.black_box import GRADIENTS, inside_of
from tests.emulated import case_of, changed
from tests.sampling import sampled as some

SIZES = {"batch": 1, "heads": 4, "kv_heads": 2, "seqlen_q": 60, "seqlen_k": 70, "head_dim": 16, "head_dim_v": 12}
OPTIONS = (
    {"causal": True}, {"softcap": 3.0}, {"window": (9, 20), "sinks": True}, {"bias": True, "bias_axes": "hmn"},
    {"mask": "random", "alibi": True}, {"dropout": 0.3},
)  # fmt: skip
FAULTS = {
    "nothing": {},
    "P in the last rows of a head": {"fault": changed("P", lambda t: t[:, 1, -9:].mul_(1.5))},
    "dP of head 2 halved": {"fault": changed("dP", lambda t: t[:, 2].mul_(0.5))},
    "delta dropped": {"fault": changed("delta", lambda t: t.zero_())},
    "dS times 0.7": {"fault": changed("dS", lambda t: t.mul_(0.7))},
    "dQ times 3": {"change": lambda r: {**r, "dQ": r["dQ"] * 3}},
    "dK times 3": {"change": lambda r: {**r, "dK": r["dK"] * 3}},
    "dV times 0.5": {"change": lambda r: {**r, "dV": r["dV"] * 0.5}},
    "a row tile of dS lost": {"fault": changed("dS", lambda t: t[:, :, 32:48].zero_())},
}


def told(inside):
    return {name: one.status for name, one in inside.shown.comparison.findings.items()}, inside.sentences


@some(
    "fault, options",
    [(f, o) for f in FAULTS for o in OPTIONS],
    push=[(f, OPTIONS[n]) for n, f in enumerate(list(FAULTS)[::2])],
)
def test_a_few_rows_tell_the_same_of_a_fault_as_all(fault, options):
    case = case_of("softmax", **SIZES | options)
    few, every = (inside_of(case, sample=sample, **FAULTS[fault]) for sample in (sampled, None))
    assert told(few) == told(every)
    nothing = fault == "nothing" or (fault.startswith("dV") and case.dropout)  # dV of dropped keys does not show P
    assert bool(few.sentences) == (not nothing)


@pytest.mark.parametrize(
    "exposed", [("dQ",), ("dK",), ("dV",), ("dQ", "dV"), ("P", *GRADIENTS), ("O", "LSE", *GRADIENTS)]
)
def test_a_few_rows_of_a_right_kernel_are_right_whatever_it_exposes(exposed):
    case = case_of("softmax", **SIZES)
    inside = inside_of(case, sample=sampled, exposed=exposed)
    assert inside.measured.matches
    assert inside.sentences == ()
    # dQ shows dS at some keys alone, which make no row.
    assert ("dS" in inside.measured.trace.values) == ("dK" in exposed)


def test_ds_that_dq_alone_shows_convicts_and_is_not_shown():
    inside = inside_of(
        case_of("softmax", **SIZES), sample=sampled, change=lambda r: {**r, "dQ": r["dQ"] * 3}, exposed=("dQ",)
    )
    assert inside.sentences == ("dS is wrong in the kernel of dQ by the factor 3 throughout",)
    assert told(inside)[0] == {"dQ": "mismatch"}


def test_a_dq_that_shows_ds_rightly_and_is_wrong_convicts_its_kernel():
    """The last dim shows no key."""
    case = case_of("softmax", **SIZES)
    inside = inside_of(case, sample=sampled, fault=changed("dQ", lambda t: t[..., -1].add_(1.0)))
    assert inside.sentences == (
        "the kernel of dQ is at fault: dS in the kernel of dK is right, and through dQ at the keys that are shown",
    )


def test_what_is_summed_over_rows_inherits_from_any_wrong_row_that_is_shown():
    """dBias and dSink, which some rows alone do not give, are wrong by rows of delta of which one is shown."""

    def change(delta):
        delta[..., 0] *= 1.1
        delta[..., 2:40] *= 1.1

    case = case_of("softmax", **SIZES, bias=True, bias_axes="hn", sinks=True)
    exposed = (*GRADIENTS, "dBias", "dSink")
    inside = inside_of(case, sample=Sample((0, 1, 40), (0, 9)), fault=changed("delta", change), exposed=exposed)
    found = inside.shown.comparison.findings
    assert {found[name].status for name in ("dK", "dBias", "dSink")} == {"inherited"}


def own_of(case, *wrong):
    """What is asked of an ordinary run: the rows of dQ that are wrong."""
    rows = torch.zeros(1, 1, case.seqlen_q, dtype=torch.bool)
    rows[..., list(wrong)] = True
    x = SimpleNamespace(diagonal=lambda tile: torch.arange(tile.rows.stop)[:, None])
    findings = {"dQ": SimpleNamespace(wrong_rows=rows)}
    return SimpleNamespace(x=x, comparison=SimpleNamespace(matches=not wrong, findings=findings))


def test_the_first_last_and_partial_tile_are_among_the_rows_and_half_of_them_where_dq_is_wrong():
    case = case_of("softmax", batch=1, heads=1, seqlen=1000, head_dim=64)
    right = sampled(case, draw(case), own_of(case))
    assert {0, 31, 32, 991, 992, 999} <= set(right.rows)
    assert max(after - before for before, after in pairwise(right.rows)) < 100
    assert plan(case, right).count == 1
    wrong = sampled(case, draw(case), own_of(case, *range(200, 230)))
    assert sum(200 <= row < 230 for row in wrong.rows) >= len(wrong.rows) // 3


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 8, "head_dim": 128, "seqlen": 65536}, {"heads": 32, "kv_heads": 1, "head_dim": 64, "seqlen": 8192},
        {"heads": 32, "kv_heads": 4, "head_dim": 128, "head_dim_v": 64, "seqlen": 16384, "batch": 4},
        {"heads": 2, "head_dim": 3, "head_dim_v": 2, "seqlen": 5000}, {"heads": 1, "seqlen_q": 2, "seqlen_k": 1 << 22},
    ],
    ids=str,
)  # fmt: skip
def test_a_look_at_a_long_case_takes_few_probes_and_holds_little(options):
    case = case_of("softmax", **{"batch": 1} | options)
    assert not is_whole(case)
    shapes, zero = expected_shapes(case), torch.zeros((), dtype=torch.double)  # its values are not looked at
    values = {name: zero.expand(shapes[of]) for name, of in (("q", "dQ"), ("k", "dK"), ("v", "dV"), ("do", "O"))}
    for wrong in ((), (0,)):
        sample = sampled(case, values, own_of(case, *wrong))
        of_a_row = case.batch * case.heads * case.seqlen_k
        assert plan(case, sample).count <= MOST_PROBES
        assert of_a_row * len(sample.rows) <= max(MOST_ELEMENTS, 4 * of_a_row)
