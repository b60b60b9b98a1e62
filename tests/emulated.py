"""Right attention backwards in the arithmetics of real kernels, in plain torch: tiles, online softmax, 16-bit operands.

Written from the formulas alone, sharing nothing with the reference. `Arithmetic` says how a kernel calculates; `lazy`
and `softmax` give every intermediate, each in the dtype in which such a kernel would store it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradprobe.case import Case, resolve
from gradprobe.compare import Comparison, attention_of, compare
from gradprobe.draw import draw
from gradprobe.precision import precision_of
from gradprobe.provenance import source_of
from gradprobe.targets import Target
from gradprobe.trace import read_trace

Fault = Callable[[str, Tensor], Tensor]
"""What a faulty kernel makes of an intermediate (by name) before anything reads it."""


ENDS = ("dQ", "dK", "dV", "dBias", "dTau")


def _no_fault(name: str, tensor: Tensor) -> Tensor:  # noqa: ARG001
    return tensor


@dataclass(frozen=True)
class Arithmetic:
    """How a kernel calculates."""

    tf32: str = ""
    """"" for IEEE operands, "cut" for TF32 by truncation, "nearest" for TF32 by rounding; float32 inputs only."""
    tensor_core: bool = False
    """Sums of `chunk` products that are exact and then truncated to float32, instead of float32 throughout."""
    tile: int = 16
    """Keys, or rows, added up at a time."""
    backwards: bool = False
    """Tiles are taken from the last one to the first."""
    exp2: bool = False
    """Scores in units of log 2, as FlashAttention keeps them."""
    delta_from_o: bool = True
    """delta from the stored O; else from P and dP."""
    stored: torch.dtype | None = None
    """dtype of every result; None for the inputs' in O, dQ, dK and dV, and float32 in the others."""

    def operand(self, tensor: Tensor) -> Tensor:
        """A float32 value as the multiplier sees it."""
        if not self.tf32:
            return tensor
        bits = tensor.contiguous().view(torch.int32)
        bits = bits + 0x1000 if self.tf32 == "nearest" else bits
        return (bits & ~0x1FFF).view(torch.float32)

    def dot(self, a: Tensor, b: Tensor, *, tile: int | None = None) -> Tensor:
        """a @ b in float32, `tile` products at a time."""
        a, b = self.operand(a), self.operand(b)
        out = a.new_zeros(*a.shape[:-1], b.shape[-1])
        for part in self.parts(a.shape[-1], tile):
            if self.tensor_core:
                out = _cut(out.double() + a[..., part].double() @ b[..., part, :].double())
            else:
                out = out + a[..., part] @ b[..., part, :]
        return out

    def parts(self, size: int, tile: int | None = None) -> list[slice]:
        step = tile or self.tile
        parts = [slice(at, min(at + step, size)) for at in range(0, size, step)]
        return parts[::-1] if self.backwards else parts


def _cut(tensor: Tensor) -> Tensor:
    """float64 -> float32 toward zero."""
    near = tensor.float()
    return torch.where(near.double().abs() > tensor.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def softmax(
    q, k, v, do, *, how=None, causal=False, scale=None, bias=None, window=None, softcap=None, seqlens=None,
    fault=_no_fault,
):  # fmt: skip
    """Every intermediate of softmax attention, with fewer key/value heads than query heads if k and v say so."""
    how = how or Arithmetic()
    valid = _valid(q, k, causal, window, seqlens)
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    s = _scores(how, q, wide_k, scale)
    tanh = None if softcap is None else torch.tanh(s / softcap)
    s = s if tanh is None else tanh * softcap
    s = s if bias is None else s + bias.float()
    lse, p = _probabilities(how, s, valid, fault)
    o = fault("O", how.dot(_narrow(p, q), wide_v.float()))
    dpe = how.dot(do.float(), wide_v.float().mT, tile=8)
    dp = fault("dP", dpe * valid)
    delta = (do.float() * o.to(q.dtype).float()).sum(-1) if how.delta_from_o else (p * dp).sum(-1)
    delta = fault("delta", delta)
    dt = p * (dp - delta[..., None])
    ds = fault("dS", dt if tanh is None else dt * (1 - tanh * tanh))
    results = {"LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds}
    results |= _products(how, q, wide_k, do, p, ds, scale, group)
    if bias is not None:
        results["dBias"] = (ds if tanh is None else dt).sum(0, keepdim=True)
    return _stored(
        how, {name: fault(name, results[name]) if name in ENDS else results[name] for name in results}, q.dtype
    )


def lazy(q, k, v, do, *, tau, how=None, bias=None, scale=None, seqlens=None, fault=_no_fault):
    """Every intermediate of lazy attention."""
    how = how or Arithmetic()
    valid = _valid(q, k, True, None, seqlens)
    rows = torch.arange(q.shape[2])
    s = _scores(how, q, k, scale)
    distance = (rows[:, None] - rows).clamp(min=0)
    if bias is not None:
        inside = (distance < bias.shape[1]) & (rows[:, None] >= rows)
        s = s + bias.float()[:, distance.clamp(max=bias.shape[1] - 1)] * inside
    lse, p = _probabilities(how, s, valid, fault)
    share = tau.float()[:, None, None] / (rows + 1.0)[:, None]
    z = p + share
    pe = z.relu() * valid
    o = fault("O", how.dot(_narrow(pe, q), v.float()))
    dpe = how.dot(do.float(), v.float().mT, tile=8)
    dp = fault("dP", dpe * ((z > 0) & valid))
    if how.delta_from_o:
        delta = (do.float() * o.to(q.dtype).float()).sum(-1) - share[..., 0] * dp.sum(-1)
    else:
        delta = (p * dp).sum(-1)
    delta = fault("delta", delta)
    ds = fault("dS", p * (dp - delta[..., None]))
    results = {"LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds}
    results |= _products(how, q, k, do, pe, ds, scale, 1)
    if bias is not None:
        results["dBias"] = torch.zeros_like(bias, dtype=torch.float32).index_add_(
            1, distance[inside], ds.sum(0)[:, inside]
        )
    results["dTau"] = (dp.sum(-1) / (rows + 1)).sum((0, 2))
    return _stored(
        how, {name: fault(name, results[name]) if name in ENDS else results[name] for name in results}, q.dtype
    )


def _valid(q: Tensor, k: Tensor, causal: bool, window: tuple[int, int] | None, seqlens: Tensor | None) -> Tensor:
    """[B, 1, M, N] bool."""
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    ahead = j - i - (k.shape[2] - q.shape[2])
    left, right = window or (-1, -1)
    valid = (ahead <= 0) if causal else torch.ones_like(ahead, dtype=torch.bool)
    valid = valid & (ahead >= -left) if left >= 0 else valid
    valid = valid & (ahead <= right) if right >= 0 else valid
    lengths = torch.full((q.shape[0],), max(q.shape[2], k.shape[2])) if seqlens is None else seqlens
    lengths = lengths[:, None, None, None]
    return valid & (i < lengths) & (j < lengths)


def _scores(how: Arithmetic, q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return how.dot(q.float(), k.float().mT, tile=8) * _scale(q, scale)


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _probabilities(how: Arithmetic, s: Tensor, valid: Tensor, fault: Fault) -> tuple[Tensor, Tensor]:
    """LSE by the online recurrence over tiles of keys, then P from it, all in float32."""
    unit = math.log2(math.e) if how.exp2 else 1.0
    exp = torch.exp2 if how.exp2 else torch.exp
    s = (s * unit).masked_fill(~valid, -torch.inf)
    top = s.new_full(s.shape[:-1], -torch.inf)
    total = torch.zeros_like(top)
    for part in how.parts(s.shape[-1]):
        higher = torch.maximum(top, s[..., part].amax(-1))
        safe = higher.masked_fill(higher == -torch.inf, 0.0)
        total = total * exp(top - safe) + exp(s[..., part] - safe[..., None]).sum(-1)
        top = higher
    lse = fault("LSE", (top + (torch.log2(total) if how.exp2 else torch.log(total))) / unit)
    p = exp(s - (lse * unit).masked_fill(lse == -torch.inf, 0.0)[..., None]).masked_fill(~valid, 0.0)
    return lse, fault("P", p)


def _products(how, q, k, do, pe, ds, scale, group) -> dict[str, Tensor]:
    """dQ, dK and dV: the dots over P and dS, which 16-bit kernels round first. A group's heads follow one another."""
    narrow_pe, narrow_ds = _narrow(pe, q), _narrow(ds, q)

    def over_rows(a: Tensor, b: Tensor) -> Tensor:
        a, b = ((t.unflatten(1, (-1, group)).transpose(2, 3).flatten(2, 3)) if group > 1 else t for t in (a, b))
        return how.dot(a.mT, b)

    return {
        "dQ": how.dot(narrow_ds, k.float()) * _scale(q, scale),
        "dK": over_rows(narrow_ds, q.float()) * _scale(q, scale),
        "dV": over_rows(narrow_pe, do.float()),
    }


def _narrow(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.to(like.dtype).float()


def _stored(how: Arithmetic, results: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    narrow = ("O", "dQ", "dK", "dV")
    return {
        name: tensor.to(how.stored or (dtype if name in narrow else torch.float32)) for name, tensor in results.items()
    }


def case_of(family: str, **options) -> Case:
    return resolve(options, family, takes_bias=True)


def compared(
    case: Case, how: Arithmetic | None = None, *, values=None, fault: Fault = _no_fault, names=None
) -> Comparison:
    """An emulated kernel beside the reference; only `names` of its results are exposed where they are given."""
    values, how = values or draw(case), how or Arithmetic()
    options = (
        {"causal": case.causal, "window": case.window, "softcap": case.softcap} if case.family == "softmax" else {}
    )
    results = {"softmax": softmax, "lazy": lazy}[case.family](
        **values, how=how, scale=case.scale, fault=fault, **options
    )
    exposed = results if names is None else {name: results[name] for name in names}
    precision = precision_of(case.dtype, "tf32" if how.tf32 else "ieee")
    return compare(case, attention_of(case, values), read_trace(exposed, case, "emulated"), precision)


def target_of(function: Callable[..., object], family: str = "softmax") -> Target:
    """A function of this process as a target."""
    takes = {name: name for name in inspect.signature(function).parameters if name not in ("how", "fault")}
    return Target(function.__name__, function, takes, frozenset(("q", "k", "v")), family, source_of(function))


def changed(name: str, change: Callable[[Tensor], object]) -> Fault:
    """A fault that changes one intermediate in place."""

    def fault(at: str, tensor: Tensor) -> Tensor:
        if at == name:
            tensor = tensor.clone()
            change(tensor)
        return tensor

    return fault
