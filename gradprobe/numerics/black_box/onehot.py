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

As many probes as ceil(M / dims) show everything. Of a long case few are run, which show some rows, whole, through dK
and dV, and some keys through dQ. Of the other rows dO is 0, and with it dP, delta and dS: they add nothing to dK and
dV, which are those of a problem of the rows shown.
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
class Sample:
    """The rows and keys of a case that are to be shown, ascending; the same in every batch and head."""

    rows: Sequence[int]
    """P and dS of these, at every key, through dV and dK."""
    keys: Sequence[int]
    """dS at these, of every row, through dQ."""


def everything(case: Case) -> Sample:
    """All rows and all keys."""
    return Sample(range(case.seqlen_q), range(case.seqlen_k))


@dataclass(frozen=True)
class ProbePlan:
    """How the head dims of a case are shared out, and how many probes then show what is to be shown."""

    sample: Sample
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


def plan(case: Case, sample: Sample | None = None, *, with_p: bool = True) -> ProbePlan | None:
    """The plan for a case; None where its head dims or its scale leave no room for one.

    Args:
        sample: what is to be shown; None for everything.
        with_p: whether to show P too. Without, every probe has one and the same dO.
    """
    import math

    if case.head_dim < 3 or case.head_dim_v < 2 or case.scale == 0:
        return None
    (own, free), (own_v, free_v) = _shared_out(case.head_dim), _shared_out(case.head_dim_v)
    free_v = free_v if with_p else ()
    sample = sample or everything(case)
    rows, n_keys = _rows(case, sample), len(sample.keys)
    keys = min(max(round(len(free) * n_keys / (n_keys + rows)), 1), len(free) - 1)
    count = max(-(-n_keys // keys), -(-rows // (len(free) - keys)), -(-rows // len(free_v)) if free_v else 0)
    height = 2.0 ** -min(max(round(math.log2(abs(case.scale))), -_HIGHEST), _HIGHEST)
    return ProbePlan(sample, own, free, own_v, free_v, keys, count, height * case.scale, height)


def _shared_out(dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A quarter of the dims, spread over all of them with the last one among them; and the others."""
    count = -(-dims // 4)
    own = {dims - 1 - (dims - 1) * at // max(count - 1, 1) for at in range(count)}
    return tuple(sorted(own)), tuple(dim for dim in range(dims) if dim not in own)


def _rows(case: Case, sample: Sample) -> int:
    """Rows that share one key/value head: those of every query head of its group."""
    return len(sample.rows) * case.heads // case.kv_heads


def problem(case: Case, plan: ProbePlan, values: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The inputs of one probe, in the shapes of the case's own; tau is 0, so that PE = P."""
    import torch

    made = dict(values) | {name: torch.zeros_like(values[name]) for name in ("q", "k", "v", "do")}
    # A quarter of the terms, each twice as large: the scores keep their spread.
    for name, own, times in (("q", plan.own, 2), ("k", plan.own, 1), ("v", plan.own_v, 1)):
        made[name][..., own] = times * values[name][..., own]
    if case.pattern in MEANS:  # their mean, of a quarter of the terms too, takes both factors twice as large
        made["k"][..., plan.own] += values["k"][..., plan.own].mean(2, keepdim=True)
    at = (slice(None), slice(None), torch.tensor(plan.sample.rows)[:, None], torch.tensor(plan.own_v))
    made["do"][at] = values["do"][at]
    made["v"][:, :, ::ZERO_KEYS] = 0
    slots = _block(index, plan.keys, len(plan.sample.keys))
    made["k"][:, :, _at(plan.sample.keys, slots), plan.of_keys(slots)] = plan.height
    slots = _block(index, plan.rows, _rows(case, plan.sample))
    heads, rows = _places(case, slots, plan.sample.rows)
    made["q"][:, heads, rows, plan.of_rows(slots)] = plan.height
    if plan.free_v:
        slots = _block(index, plan.rows_v, _rows(case, plan.sample))
        heads, rows = _places(case, slots, plan.sample.rows)
        made["do"][:, heads, rows, plan.of_rows_v(slots)] = 1
    return made | ({"tau": torch.zeros_like(values["tau"])} if "tau" in values else {})


def _block(index: int, size: int, end: int) -> Tensor:
    import torch

    return torch.arange(min(index * size, end), min((index + 1) * size, end))


def _at(shown: Sequence[int], slots: Tensor) -> Tensor:
    return slots.new_tensor(shown)[slots]


def _places(case: Case, slots: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """[Hkv, slots] query heads and [slots] rows of slots: the rows of a group's first head, then of its second, ..."""
    import torch

    group = case.heads // case.kv_heads
    return torch.arange(case.kv_heads)[:, None] * group + slots // len(rows), _at(rows, slots % len(rows))


def read_probe(
    case: Case, plan: ProbePlan, index: int, gradients: Mapping[str, Tensor], into: Mapping[str, Tensor]
) -> None:
    """Writes what one probe's dQ, dK and dV show of the rows of the sample, dS, dS and P, by the gradient.

    Each is [B, H, rows, N], at the keys of the sample alone through dQ.
    """
    rows = range(len(plan.sample.rows))
    if "dQ" in gradients:
        slots = _block(index, plan.keys, len(plan.sample.keys))
        shown = _of_rows(gradients["dQ"], plan.sample.rows)[..., plan.of_keys(slots)]
        into["dQ"][..., _at(plan.sample.keys, slots)] = _divided(shown, plan.factor, into["dQ"])
    for name, size, columns, factor in (
        ("dK", plan.rows, plan.of_rows, plan.factor),
        ("dV", plan.rows_v, plan.of_rows_v, 1.0),
    ):
        if name in gradients and name in into:
            slots = _block(index, size, _rows(case, plan.sample))
            heads, places = _places(case, slots, rows)
            into[name][:, heads, places] = _divided(gradients[name][..., columns(slots)].mT, factor, into[name])


def _of_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    return tensor if isinstance(rows, range) else tensor[:, :, list(rows)]


def shown_together(case: Case, plan: ProbePlan) -> Tensor:
    """[H, rows, N] bool: the elements of dS that dQ and dK show in one and the same probe."""
    import torch

    rows, n_keys = range(len(plan.sample.rows)), len(plan.sample.keys)
    together = torch.zeros(case.heads, len(rows), case.seqlen_k, dtype=torch.bool)
    for index in range(plan.count):
        heads, places = _places(case, _block(index, plan.rows, _rows(case, plan.sample)), rows)
        keys = _at(plan.sample.keys, _block(index, plan.keys, n_keys))
        together[heads[..., None], places[..., None], keys] = True
    return together


def _divided(shown: Tensor, factor: float, like: Tensor) -> Tensor:
    return (shown.double() / factor).to(like.dtype)


def end_to_end(case: Case, problems: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Several probes as one: end to end along the batch, where an input has one."""
    import torch

    if len(problems) == 1:
        return dict(problems[0])
    return {
        name: torch.cat([problem[name] for problem in problems]) if case.input_axes(name)[:1] == "b" else value
        for name, value in problems[0].items()
    }
