"""One-hot problems: inputs through which dQ, dK and dV of a black box show P and dS, element by element.

The head dims are shared out. A quarter, "own", carries the case's values; the others hold one-hot rows where their
partner holds zeros, so they change no score, no O and no delta:

    q = [own | 0       | c e_i ]        do = [own | e_i ]
    k = [own | c e_j   | 0     ]        v  = [own | 0   ]

Then dQ's middle columns are c * scale * dS[:, j], dK's last ones c * scale * dS[i, :], and dV's last ones P[i, :]. All
probes are one and the same problem, of which each shows other rows and columns. Every eighth key's own value is 0:
there dP = 0 and dS = -P * delta, which tells delta from dP. The own dims are spread over all, the last among them:
dims that a kernel leaves out of a dot are then missed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...inputs.draw import MEANS
from ...model.case import Case

# Every so many keys have no value of their own.
ZERO_KEYS = 8
# float16 holds powers of two to 2^15, and 2^-14 before its numbers become subnormal.
_HIGHEST = 14


@dataclass(frozen=True)
class ProbePlan:
    """How the head dims of a case are shared out, and how many probes then show everything."""

    own: tuple[int, ...]
    """The dims of q and k that carry the case's values."""
    own_v: tuple[int, ...]
    """The dims of do and v that do."""
    keys: tuple[int, ...]
    """The dims of k's one-hot rows: as many columns of dS a probe shows through dQ."""
    rows: tuple[int, ...]
    """The dims of q's one-hot rows: as many rows of dS it shows through dK."""
    rows_v: tuple[int, ...]
    """The dims of do's one-hot rows, none where P is not shown."""
    count: int
    height: float
    """c: of the powers of two that float16 holds the one that brings the factor nearest to 1."""
    factor: float
    """c * scale, what dQ and dK multiply dS by."""


def plan(case: Case, *, with_p: bool = True) -> ProbePlan | None:
    """The plan for a case; None where its head dims or its scale leave no room for one.

    Args:
        with_p: whether to show P too. Without, every probe has one and the same dO.
    """
    if case.head_dim < 3 or case.head_dim_v < 2 or case.scale == 0:
        return None
    (own, free), (own_v, rows_v) = _shared_out(case.head_dim), _shared_out(case.head_dim_v)
    rows_v = rows_v if with_p else ()
    n_rows, n_keys = _rows(case), case.seqlen_k
    keys = min(max(round(len(free) * n_keys / (n_keys + n_rows)), 1), len(free) - 1)
    shown = ((n_keys, keys), (n_rows, len(free) - keys), (n_rows, len(rows_v)))
    count = max(-(-every // size) for every, size in shown if size)
    height = 2.0 ** -min(max(round(math.log2(abs(case.scale))), -_HIGHEST), _HIGHEST)
    parts = (own, own_v, free[:keys], free[keys:], rows_v)
    return ProbePlan(*parts, count, height, height * case.scale)


def _shared_out(dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A quarter of the dims, spread over all of them with the last one among them; and the others."""
    count = -(-dims // 4)
    own = {dims - 1 - (dims - 1) * at // max(count - 1, 1) for at in range(count)}
    return tuple(sorted(own)), tuple(dim for dim in range(dims) if dim not in own)


def _rows(case: Case) -> int:
    """Rows that share one key/value head: those of every query head of its group."""
    return case.seqlen_q * case.heads // case.kv_heads


def _shown(index: int, dims: Sequence[int], end: int) -> tuple[Tensor, Tensor]:
    """Which of `end` rows or keys a probe shows, and in which dims."""
    start = min(index * len(dims), end)
    slots = torch.arange(start, min(start + len(dims), end))
    return slots, slots.new_tensor(dims)[: len(slots)]


def _shown_rows(
    case: Case, index: int, dims: Sequence[int]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """[Hkv, slots] query heads and [slots] rows, those of a group's first head before its second; and their dims."""
    slots, of = _shown(index, dims, _rows(case))
    first = torch.arange(case.kv_heads)[:, None] * (case.heads // case.kv_heads)
    return (first + slots // case.seqlen_q, slots % case.seqlen_q), of


def problem(
    case: Case, plan: ProbePlan, values: Mapping[str, Tensor], index: int
) -> dict[str, Tensor]:
    """The inputs of one probe, in the shapes of the case's own; tau is 0, so that PE = P."""
    zeroed = [name for name in ("q", "k", "v", "do", "tau") if name in values]
    made = dict(values) | {name: torch.zeros_like(values[name]) for name in zeroed}
    for name, own in (("q", plan.own), ("k", plan.own), ("v", plan.own_v), ("do", plan.own_v)):
        made[name][..., own] = values[name][..., own]
    # A quarter of the terms, each twice as large: the scores keep their spread. Their mean takes both factors so.
    made["q"] *= 2
    if case.pattern in MEANS:
        made["k"][..., plan.own] += values["k"][..., plan.own].mean(2, keepdim=True)
    made["v"][:, :, ::ZERO_KEYS] = 0
    keys, dims = _shown(index, plan.keys, case.seqlen_k)
    made["k"][:, :, keys, dims] = plan.height
    for name, of, height in (("q", plan.rows, plan.height), ("do", plan.rows_v, 1.0)):
        (heads, rows), dims = _shown_rows(case, index, of)
        made[name][:, heads, rows, dims] = height
    return made


def read_probe(
    case: Case,
    plan: ProbePlan,
    index: int,
    gradients: Mapping[str, Tensor],
    into: Mapping[str, Tensor],
) -> None:
    """Writes what one probe's dQ, dK and dV show of dS, dS and P, each [B, H, M, N], by the gradient."""
    for name, shown in into.items():
        factor = 1.0 if name == "dV" else plan.factor
        divided = (gradients[name].double() / factor).to(shown.dtype)
        if name == "dQ":
            keys, dims = _shown(index, plan.keys, case.seqlen_k)
            shown[..., keys] = divided[..., dims]
        else:
            (heads, rows), dims = _shown_rows(
                case, index, plan.rows if name == "dK" else plan.rows_v
            )
            shown[:, heads, rows] = divided[..., dims].mT


def shown_together(case: Case, plan: ProbePlan) -> Tensor:
    """[H, M, N] bool: the elements of dS that dQ and dK show in one and the same probe."""
    together = torch.zeros(case.heads, case.seqlen_q, case.seqlen_k, dtype=torch.bool)
    for index in range(plan.count):
        (heads, rows), _ = _shown_rows(case, index, plan.rows)
        keys, _ = _shown(index, plan.keys, case.seqlen_k)
        together[heads[..., None], rows[..., None], keys] = True
    return together


def end_to_end(case: Case, problems: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Several probes as one: end to end along the batch, where an input has one."""
    joined = dict(problems[0])
    for name in joined if len(problems) > 1 else ():
        if case.input_axes(name)[:1] == "b":
            joined[name] = torch.cat([problem[name] for problem in problems])
    return joined
