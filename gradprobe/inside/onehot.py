"""One-hot problems: inputs through which dQ, dK and dV of a black box show P and dS, element by element.

The head dims are shared out. The first quarter, "own", carries the case's values; the others hold one-hot rows where
their partner holds zeros, so they change no score, no O and no delta:

    q = [own | 0       | c e_i ]        do = [own | e_i ]
    k = [own | c e_j   | 0     ]        v  = [own | 0   ]

Then dQ's middle columns are c * scale * dS[:, j], dK's last ones c * scale * dS[i, :], and dV's last ones P[i, :]. All
probes of a case are one and the same problem, of which each shows other rows and columns, so what they show fits
together at any length. Every eighth key's own value is 0: there dP = 0 and dS = -P * delta, which tells delta from dP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor

# Every so many keys have no value of their own.
ZERO_KEYS = 8
# float16 holds powers of two to 2^15, and 2^-14 before its numbers become subnormal.
_HIGHEST = 14


@dataclass(frozen=True)
class Plan:
    """How the head dims of a case are shared out, and how many probes then show everything."""

    own: int
    own_v: int
    keys: int
    """Columns of k that hold one-hot keys; each probe shows as many columns of dS through dQ."""
    rows: int
    """Columns of q that hold one-hot rows; each probe shows as many rows of dS through dK."""
    rows_v: int
    """Columns of do that hold one-hot rows; each probe shows as many rows of P through dV."""
    count: int
    factor: float
    """c * scale, what dQ and dK multiply dS by."""
    height: float
    """c, of the powers of two that float16 holds the one that brings the factor nearest to 1."""


def plan(case: Case, *, with_p: bool = True) -> Plan | None:
    """The plan for a case; None where its head dims or its scale leave no room for one.

    Args:
        with_p: whether to show P too. Without, every probe has one and the same dO.
    """
    import math

    if case.head_dim < 3 or case.head_dim_v < 2 or case.scale == 0:
        return None
    own, own_v = -(-case.head_dim // 4), -(-case.head_dim_v // 4)
    free = case.head_dim - own
    rows = _rows(case)
    keys = min(max(round(free * case.seqlen_k / (case.seqlen_k + rows)), 1), free - 1)
    rows_v = case.head_dim_v - own_v if with_p else 0
    count = max(-(-case.seqlen_k // keys), -(-rows // (free - keys)), -(-rows // rows_v) if rows_v else 0)
    height = 2.0 ** -min(max(round(math.log2(abs(case.scale))), -_HIGHEST), _HIGHEST)
    return Plan(own, own_v, keys, free - keys, rows_v, count, height * case.scale, height)


def _rows(case: Case) -> int:
    """Rows that share one key/value head: those of every query head of its group."""
    return case.seqlen_q * case.heads // case.kv_heads


def problem(case: Case, plan: Plan, values: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The inputs of one probe, in the shapes of the case's own; tau is 0, so that PE = P."""
    import torch

    made = dict(values) | {name: torch.zeros_like(values[name]) for name in ("q", "k", "v", "do")}
    # A quarter of the terms, each twice as large: the scores keep their spread.
    made["q"][..., : plan.own] = 2 * values["q"][..., : plan.own]
    made["k"][..., : plan.own] = values["k"][..., : plan.own]
    made["v"][..., : plan.own_v] = values["v"][..., : plan.own_v]
    made["v"][:, :, ::ZERO_KEYS] = 0
    made["do"][..., : plan.own_v] = values["do"][..., : plan.own_v]
    keys = _block(index, plan.keys, case.seqlen_k)
    made["k"][:, :, keys, plan.own + keys % plan.keys] = plan.height
    slots = _block(index, plan.rows, _rows(case))
    heads, rows = _places(case, slots)
    made["q"][:, heads, rows, plan.own + plan.keys + slots % plan.rows] = plan.height
    if plan.rows_v:
        slots = _block(index, plan.rows_v, _rows(case))
        heads, rows = _places(case, slots)
        made["do"][:, heads, rows, plan.own_v + slots % plan.rows_v] = 1
    return made | ({"tau": torch.zeros_like(values["tau"])} if "tau" in values else {})


def _block(index: int, size: int, end: int) -> Tensor:
    import torch

    return torch.arange(min(index * size, end), min((index + 1) * size, end))


def _places(case: Case, slots: Tensor) -> tuple[Tensor, Tensor]:
    """[Hkv, slots] query heads and [slots] rows of slots: the rows of a group's first head, then of its second, ..."""
    import torch

    group = case.heads // case.kv_heads
    return torch.arange(case.kv_heads)[:, None] * group + slots // case.seqlen_q, slots % case.seqlen_q


def read_probe(case: Case, plan: Plan, index: int, gradients: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Writes what one probe's dQ, dK and dV show into P, "dS by dQ" and "dS by dK", each [B, H, M, N]."""
    if "dQ" in gradients:
        keys = _block(index, plan.keys, case.seqlen_k)
        shown = gradients["dQ"][..., plan.own : plan.own + len(keys)]
        into["dS by dQ"][..., keys] = _divided(shown, plan.factor, into["dS by dQ"])
    for name, gradient, size, first, factor in (
        ("dS by dK", "dK", plan.rows, plan.own + plan.keys, plan.factor), ("P", "dV", plan.rows_v, plan.own_v, 1.0),
    ):  # fmt: skip
        if gradient in gradients and name in into:
            slots = _block(index, size, _rows(case))
            heads, rows = _places(case, slots)
            shown = gradients[gradient][..., first + slots % size].mT
            into[name][:, heads, rows] = _divided(shown, factor, into[name])


def _divided(shown: Tensor, factor: float, like: Tensor) -> Tensor:
    return (shown.double() / factor).to(like.dtype)


def end_to_end(case: Case, problems: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Several probes as one: end to end along the batch, where an input has one."""
    import torch

    def is_shared(name: str, value: Tensor) -> bool:
        return case.input_axes(name)[:1] != "b" or (name == "mask" and value.shape[0] == 1)

    return {
        name: value if is_shared(name, value) else torch.cat([problem[name] for problem in problems])
        for name, value in problems[0].items()
    }
