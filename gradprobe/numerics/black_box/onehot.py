"""One-hot problems: inputs through which dQ, dK and dV of a black box show P and dS, element by element.

The head dims are shared out. A quarter, "own", carries the case's values; the others hold one-hot rows where their
partner holds zeros, so they change no score, no O and no delta:

    q = [own | 0       | c e_i ]        do = [own | e_i ]
    k = [own | c e_j   | 0     ]        v  = [own | 0   ]

Then dQ's middle columns are c * scale * dS[:, j], dK's last ones c * scale * dS[i, :], and dV's last ones P[i, :]. All
probes of a case are one and the same problem, of which each shows other rows and columns, so what they show fits
together at any length. Every eighth key's own value is 0: there dP = 0 and dS = -P * delta, which tells delta from dP.
In memory the own dims do not lie first but are spread over all, the last among them: dims that a kernel leaves out of
a dot are then missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...inputs.draw import MEANS
from ...model.case import Case

if TYPE_CHECKING:
    from torch import Tensor

# Every so many keys have no value of their own.
ZERO_KEYS = 8
# float16 holds powers of two to 2^15, and 2^-14 before its numbers become subnormal.
_HIGHEST = 14


@dataclass(frozen=True)
class ProbePlan:
    """How the head dims of a case are shared out, and how many probes then show everything."""

    own: tuple[int, ...]
    """The dims of q and k that carry the case's values."""
    free: tuple[int, ...]
    """The others: first those of one-hot keys, then those of one-hot rows."""
    own_v: tuple[int, ...]
    """The dims of do and v that carry the case's values."""
    free_v: tuple[int, ...]
    """The others, of do's one-hot rows; none where P is not shown."""
    keys: int
    """How many dims are those of one-hot keys; each probe shows as many columns of dS through dQ."""
    count: int
    factor: float
    """c * scale, what dQ and dK multiply dS by."""
    height: float
    """c, of the powers of two that float16 holds the one that brings the factor nearest to 1."""

    @property
    def rows(self) -> int:
        """How many rows of dS each probe shows through dK."""
        return len(self.free) - self.keys

    @property
    def rows_v(self) -> int:
        """How many rows of P each probe shows through dV."""
        return len(self.free_v)

    def of_keys(self, slots: Tensor) -> Tensor:
        """The dim of each one-hot key."""
        return slots.new_tensor(self.free)[slots % self.keys]

    def of_rows(self, slots: Tensor) -> Tensor:
        """The dim of each one-hot row of q."""
        return slots.new_tensor(self.free)[self.keys + slots % self.rows]

    def of_rows_v(self, slots: Tensor) -> Tensor:
        """The dim of each one-hot row of do."""
        return slots.new_tensor(self.free_v)[slots % self.rows_v]


def plan(case: Case, *, with_p: bool = True) -> ProbePlan | None:
    """The plan for a case; None where its head dims or its scale leave no room for one.

    Args:
        with_p: whether to show P too. Without, every probe has one and the same dO.
    """
    import math

    if case.head_dim < 3 or case.head_dim_v < 2 or case.scale == 0:
        return None
    (own, free), (own_v, free_v) = _shared_out(case.head_dim), _shared_out(case.head_dim_v)
    free_v = free_v if with_p else ()
    rows, n_keys = _rows(case), case.seqlen_k
    keys = min(max(round(len(free) * n_keys / (n_keys + rows)), 1), len(free) - 1)
    count = max(
        -(-n_keys // keys),
        -(-rows // (len(free) - keys)),
        -(-rows // len(free_v)) if free_v else 0,
    )
    height = 2.0 ** -min(max(round(math.log2(abs(case.scale))), -_HIGHEST), _HIGHEST)
    return ProbePlan(own, free, own_v, free_v, keys, count, height * case.scale, height)


def _shared_out(dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A quarter of the dims, spread over all of them with the last one among them; and the others."""
    count = -(-dims // 4)
    own = {dims - 1 - (dims - 1) * at // max(count - 1, 1) for at in range(count)}
    return tuple(sorted(own)), tuple(dim for dim in range(dims) if dim not in own)


def _rows(case: Case) -> int:
    """Rows that share one key/value head: those of every query head of its group."""
    return case.seqlen_q * case.heads // case.kv_heads


def problem(
    case: Case, plan: ProbePlan, values: Mapping[str, Tensor], index: int
) -> dict[str, Tensor]:
    """The inputs of one probe, in the shapes of the case's own; tau is 0, so that PE = P."""
    import torch

    made = dict(values) | {name: torch.zeros_like(values[name]) for name in ("q", "k", "v", "do")}
    # A quarter of the terms, each twice as large: the scores keep their spread.
    for name, own, times in (
        ("q", plan.own, 2),
        ("k", plan.own, 1),
        ("v", plan.own_v, 1),
        ("do", plan.own_v, 1),
    ):
        made[name][..., own] = times * values[name][..., own]
    if (
        case.pattern in MEANS
    ):  # their mean, of a quarter of the terms too, takes both factors twice as large
        made["k"][..., plan.own] += values["k"][..., plan.own].mean(2, keepdim=True)
    made["v"][:, :, ::ZERO_KEYS] = 0
    keys = _block(index, plan.keys, case.seqlen_k)
    made["k"][:, :, keys, plan.of_keys(keys)] = plan.height
    slots = _block(index, plan.rows, _rows(case))
    heads, rows = _places(case, slots)
    made["q"][:, heads, rows, plan.of_rows(slots)] = plan.height
    if plan.free_v:
        slots = _block(index, plan.rows_v, _rows(case))
        heads, rows = _places(case, slots)
        made["do"][:, heads, rows, plan.of_rows_v(slots)] = 1
    return made | ({"tau": torch.zeros_like(values["tau"])} if "tau" in values else {})


def _block(index: int, size: int, end: int) -> Tensor:
    import torch

    return torch.arange(min(index * size, end), min((index + 1) * size, end))


def _places(case: Case, slots: Tensor) -> tuple[Tensor, Tensor]:
    """[Hkv, slots] query heads and [slots] rows of slots: the rows of a group's first head, then of its second, ..."""
    import torch

    group = case.heads // case.kv_heads
    return torch.arange(case.kv_heads)[
        :, None
    ] * group + slots // case.seqlen_q, slots % case.seqlen_q


def read_probe(
    case: Case,
    plan: ProbePlan,
    index: int,
    gradients: Mapping[str, Tensor],
    into: Mapping[str, Tensor],
) -> None:
    """Writes what one probe's dQ, dK and dV show of dS, dS and P, each [B, H, M, N], by the gradient."""
    if "dQ" in gradients:
        keys = _block(index, plan.keys, case.seqlen_k)
        into["dQ"][..., keys] = _divided(
            gradients["dQ"][..., plan.of_keys(keys)], plan.factor, into["dQ"]
        )
    ways = (
        ("dK", plan.rows, plan.of_rows, plan.factor),
        ("dV", plan.rows_v, plan.of_rows_v, 1.0),
    )
    for name, size, columns, factor in ways:
        if name in gradients and name in into:
            slots = _block(index, size, _rows(case))
            heads, rows = _places(case, slots)
            into[name][:, heads, rows] = _divided(
                gradients[name][..., columns(slots)].mT, factor, into[name]
            )


def _divided(shown: Tensor, factor: float, like: Tensor) -> Tensor:
    return (shown.double() / factor).to(like.dtype)


def shown_together(case: Case, plan: ProbePlan) -> Tensor:
    """[H, M, N] bool: the elements of dS that dQ and dK show in one and the same probe."""
    import torch

    together = torch.zeros(case.heads, case.seqlen_q, case.seqlen_k, dtype=torch.bool)
    for index in range(plan.count):
        heads, rows = _places(case, _block(index, plan.rows, _rows(case)))
        keys = _block(index, plan.keys, case.seqlen_k)
        together[heads[..., None], rows[..., None], keys] = True
    return together


def end_to_end(case: Case, problems: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Several probes as one: end to end along the batch, where an input has one."""
    import torch

    if len(problems) == 1:
        return dict(problems[0])
    joined = dict(problems[0])
    for name in joined:
        if case.input_axes(name)[:1] == "b":
            joined[name] = torch.cat([problem[name] for problem in problems])
    return joined
