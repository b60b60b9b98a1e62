"""Right attention backwards in the arithmetics of real kernels, in plain torch: tiles, online softmax, 16-bit operands.

Written from the formulas alone, sharing nothing with the reference. `Arithmetic` says how a kernel calculates; `lazy`
and `softmax` give every intermediate, each in the dtype in which such a kernel would store it.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradprobe.inputs.draw import draw
from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.numerics.compare import Comparison, attention_of, compare
from gradprobe.numerics.declared_precision import exactly, precision_of
from gradprobe.runtime.run import Trace, read_trace
from gradprobe.targets.find import Target
from gradprobe.targets.naming import source_of

Fault = Callable[[str, Tensor], Tensor]
"""What a faulty kernel makes of an intermediate (by name) before anything reads it."""


ENDS = ("dQ", "dK", "dV", "dBias", "dSink", "dAlibi", "dTau")


def _no_fault(name: str, tensor: Tensor) -> Tensor:  # noqa: ARG001
    return tensor


@dataclass(frozen=True)
class Arithmetic:
    # Operands of float32 by truncation ("cut") or rounding ("nearest"); "" for IEEE.
    tf32: str = ""
    tensor_core: bool = False  # sums of products that are exact and then truncated to float32
    tile: int = 16  # keys, or rows, added up at a time
    backwards: bool = False  # tiles are taken from the last one to the first
    exp2: bool = False  # scores in units of log 2, as FlashAttention keeps them
    delta_from_o: bool = True  # delta from the stored O; else from P and dP
    folded: bool = False  # the scale enters dS before it is rounded for its products
    # As FlashAttention does: the sink enters LSE after the keys, and sums over what dropout kept are divided by 1 - p.
    late: bool = False
    tanh: str = "exact"  # softcap's: or "sigmoid" (2 sigmoid(2 z) - 1), or "hardware" (11 bits)
    alibi_by_key: bool = False  # causal rows are given slope * j, not the distance
    # Of all results; None: O, dQ, dK, dV as the inputs, the others float32.
    stored: torch.dtype | None = None

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

    def tanh_of(self, z: Tensor) -> Tensor:
        if self.tanh == "sigmoid":
            return 2 * torch.sigmoid(2 * z) - 1
        if self.tanh == "exact":
            return torch.tanh(z)
        fraction, exponent = torch.frexp(torch.tanh(z))
        return torch.ldexp((fraction * 2048).round() / 2048, exponent)

    def parts(self, size: int, tile: int | None = None) -> list[slice]:
        step = tile or self.tile
        parts = [slice(at, min(at + step, size)) for at in range(0, size, step)]
        return parts[::-1] if self.backwards else parts


def _cut(tensor: Tensor) -> Tensor:
    """float64 -> float32 toward zero."""
    near = tensor.float()
    lower = torch.nextafter(near, torch.zeros_like(near))
    return torch.where(near.double().abs() > tensor.abs(), lower, near)


def softmax(
    q, k, v, do, *, how=None, causal=False, scale=None, bias=None, window=None, softcap=None, seqlens=None,
    align="bottom-right", alibi=None, mask=None, sinks=None, dropout=0.0, keep=None, cu_seqlens_q=None,
    cu_seqlens_k=None, fault=_no_fault,
):  # fmt: skip
    """Every intermediate of softmax attention, with fewer key/value heads than query heads if k and v say so."""
    how = how or Arithmetic()
    ahead, together = _ahead(q, k, align, cu_seqlens_q, cu_seqlens_k)
    valid = _valid(ahead, causal, window) & together & _unpadded(q, k, seqlens)
    valid = valid if mask is None else valid & mask
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    s = _scores(how, q, wide_k, scale)
    tanh = None if softcap is None else how.tanh_of(s / softcap)
    s = s if tanh is None else tanh * softcap
    s = s if bias is None else s + bias.float()
    shift = q.new_zeros(1, 1, 1, dtype=torch.float32)
    if alibi is not None:
        slopes = alibi.float()[:, None, None]
        by_key = how.alibi_by_key and causal and cu_seqlens_q is None
        s = s + slopes * torch.arange(k.shape[2]) if by_key else s - slopes * ahead.abs()
        shift = (slopes * (torch.arange(k.shape[2]) - ahead))[..., :1] if by_key else shift
    lse, p = _probabilities(how, s, valid, fault, sinks, shift)
    kept = 1.0 if keep is None else keep.float()
    early, late = (1.0, 1 / (1 - dropout)) if how.late else (1 / (1 - dropout), 1.0)
    pe = p * (kept * early)
    o = fault("O", how.dot(_narrow(pe, q), wide_v.float()) * late)
    dpe = how.dot(do.float(), wide_v.float().mT, tile=8)
    dp = dpe * (kept * early) * valid
    whole_dp = fault("dP", dp * late)
    of_o = do.float() * o.to(q.dtype).float()
    delta = fault("delta", (of_o if how.delta_from_o else p * whole_dp).sum(-1))
    dp = dp if how.late and torch.equal(whole_dp, dp * late) else whole_dp / late
    dt = p * (dp - (delta / late)[..., None])
    ds = dt if tanh is None else dt * (1 - tanh * tanh)
    ds, late_of_ds = (ds, late) if fault is _no_fault else (fault("dS", ds * late), 1.0)
    results = {
        "LSE": lse - shift[..., 0], "P": p, "O": o, "dP": whole_dp, "delta": delta,
        "dS": ds * late_of_ds,
    }  # fmt: skip
    results |= _products(how, q, wide_k, do, pe, ds, scale, group, late=(late, late_of_ds))
    whole = ds * late_of_ds if tanh is None else dt * late
    if bias is not None:
        results["dBias"] = whole.sum_to_size(bias.shape)
    if alibi is not None:
        results["dAlibi"] = -(whole * ahead.abs()).sum((0, 2, 3))
    if sinks is not None:
        results["dSink"] = -((sinks.float()[:, None] - results["LSE"]).exp() * delta).sum((0, 2))
    return _stored(how, results, q.dtype, fault)


def lazy(q, k, v, do, *, tau, how=None, bias=None, scale=None, seqlens=None, fault=_no_fault):
    how = how or Arithmetic()
    rows = torch.arange(q.shape[2])
    valid = (rows[:, None] >= rows) & _unpadded(q, k, seqlens)
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
    delta = (do.float() * o.to(q.dtype).float()).sum(-1) - share[..., 0] * dp.sum(-1)
    delta = fault("delta", delta if how.delta_from_o else (p * dp).sum(-1))
    ds = fault("dS", p * (dp - delta[..., None]))
    results = {"LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds}
    results |= _products(how, q, k, do, pe, ds, scale, 1)
    if bias is not None:
        d_bias = torch.zeros_like(bias, dtype=torch.float32)
        results["dBias"] = d_bias.index_add_(1, distance[inside], ds.sum(0)[:, inside])
    results["dTau"] = (dp.sum(-1) / (rows + 1)).sum((0, 2))
    return _stored(how, results, q.dtype, fault)


def _ahead(
    q: Tensor, k: Tensor, align: str, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None
) -> tuple[Tensor, Tensor]:
    """How far each key lies ahead of a row's diagonal, and whether both belong to one sequence, [M, N]."""
    ends_q = [0, q.shape[2]] if cu_seqlens_q is None else cu_seqlens_q.tolist()
    ends_k = [0, k.shape[2]] if cu_seqlens_k is None else cu_seqlens_k.tolist()
    ahead = torch.zeros(q.shape[2], k.shape[2], dtype=torch.long)
    together = torch.zeros_like(ahead, dtype=torch.bool)
    for s in range(len(ends_q) - 1):
        m, n = ends_q[s + 1] - ends_q[s], ends_k[s + 1] - ends_k[s]
        here = slice(ends_q[s], ends_q[s + 1]), slice(ends_k[s], ends_k[s + 1])
        shift = n - m if align == "bottom-right" else 0
        ahead[here] = torch.arange(n) - torch.arange(m)[:, None] - shift
        together[here] = True
    return ahead, together


def _valid(ahead: Tensor, causal: bool, window: tuple[int, int] | None) -> Tensor:
    """[M, N] bool."""
    left, right = window or (-1, -1)
    valid = (ahead <= 0) if causal else torch.ones_like(ahead, dtype=torch.bool)
    valid = valid & (ahead >= -left) if left >= 0 else valid
    return valid & (ahead <= right) if right >= 0 else valid


def _unpadded(q: Tensor, k: Tensor, seqlens: Tensor | None) -> Tensor:
    """[B, 1, M, N] bool."""
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    whole = torch.full((q.shape[0],), max(q.shape[2], k.shape[2]))
    lengths = (whole if seqlens is None else seqlens)[:, None, None, None]
    return (i < lengths) & (j < lengths)


def _scores(how: Arithmetic, q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return how.dot(q.float(), k.float().mT, tile=8) * _scale(q, scale)


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _probabilities(
    how: Arithmetic, s: Tensor, valid: Tensor, fault: Fault, sinks: Tensor | None = None, shift: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """LSE by the online recurrence over tiles of keys, then P from it, all in float32."""
    unit = math.log2(math.e) if how.exp2 else 1.0
    exp, log = (torch.exp2, torch.log2) if how.exp2 else (torch.exp, torch.log)
    s = (s * unit).masked_fill(~valid, -torch.inf)
    sink = none = s.new_full(s.shape[:-1], -torch.inf)
    if sinks is not None:
        sink = none.new_zeros(none.shape) + (sinks.float()[:, None, None] + shift)[..., 0] * unit
    top = none if how.late else sink
    total = exp(top - top).nan_to_num(0.0)
    for part in how.parts(s.shape[-1]):
        higher = torch.maximum(top, s[..., part].amax(-1))
        safe = higher.masked_fill(higher == -torch.inf, 0.0)
        total = total * exp(top - safe) + exp(s[..., part] - safe[..., None]).sum(-1)
        top = higher
    lse = (top + log(total)) / unit
    if how.late and sinks is not None:
        lse = torch.logaddexp(lse, sink / unit)
    lse = fault("LSE", lse)
    p = exp(s - (lse * unit).masked_fill(lse == -torch.inf, 0.0)[..., None])
    return lse, fault("P", p.masked_fill(~valid, 0.0))


def _products(how, q, k, do, pe, ds, scale, group, late=(1.0, 1.0)) -> dict[str, Tensor]:
    """dQ, dK and dV: the dots over P and dS, which 16-bit kernels round first. A group's heads follow one another.

    `late` multiplies what is summed of P, and of dS.
    """
    outer = 1.0 if how.folded else _scale(q, scale)
    narrow_pe = _narrow(pe, q)
    narrow_ds = _narrow(ds * _scale(q, scale) if how.folded else ds, q)

    def over_rows(a: Tensor, b: Tensor) -> Tensor:
        a, b = (t.unflatten(1, (-1, group)).transpose(2, 3).flatten(2, 3) for t in (a, b))
        return how.dot(a.mT, b)

    return {
        "dQ": how.dot(narrow_ds, k.float()) * (outer * late[1]),
        "dK": over_rows(narrow_ds, q.float()) * (outer * late[1]),
        "dV": over_rows(narrow_pe, do.float()) * late[0],
    }


def _narrow(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.to(like.dtype).float()


def _stored(
    how: Arithmetic, results: dict[str, Tensor], dtype: torch.dtype, fault: Fault
) -> dict[str, Tensor]:
    narrow, stored = ("O", "dQ", "dK", "dV"), dict[str, Tensor]()
    for name, tensor in results.items():
        whole = fault(name, tensor) if name in ENDS else tensor
        stored[name] = whole.to(how.stored or (dtype if name in narrow else torch.float32))
    return stored


def case_of(family: str, **options) -> Case:
    return resolve(options, family, takes_bias=True)


def ran(
    case: Case, how: Arithmetic | None = None, *, values=None, fault: Fault = _no_fault, names=None, wrong=None
) -> Trace:  # fmt: skip
    """What an emulated kernel gives. `names`: what is exposed; `wrong`: arguments in place of the case's own."""
    is_softmax = case.family == "softmax"
    of_case = ("causal", "window", "softcap", "align", "dropout") if is_softmax else ()
    given = (values or draw(case)) | {name: getattr(case, name) for name in of_case}
    function = softmax if is_softmax else lazy
    results = function(**given | (wrong or {}), how=how, scale=case.scale, fault=fault)
    results = results if names is None else {name: results[name] for name in names}
    return read_trace(results, case, "emulated")


def compared(case: Case, how: Arithmetic | None = None, *, values=None, **of_run) -> Comparison:
    """An emulated kernel, as `ran`, beside the reference."""
    values = values or draw(case)
    precision = precision_of(case.dtype, "tf32" if how is not None and how.tf32 else "ieee")
    precision = exactly(precision) if case.pattern == "dyadic" else precision
    trace = ran(case, how, values=values, **of_run)
    return compare(case, attention_of(case, values), trace, precision)


def target_of(function: Callable[..., object], family: str = "softmax") -> Target:
    takes = {name: name for name in inspect.signature(function).parameters}
    takes = {name: name for name in takes if name not in ("how", "fault")}
    required = frozenset(("q", "k", "v"))
    return Target(function.__name__, function, takes, required, family, source_of(function))


def changed(name: str, change: Callable[[Tensor], object]) -> Fault:
    """A fault that changes one intermediate in place."""

    def fault(at: str, tensor: Tensor) -> Tensor:
        if at == name:
            tensor = tensor.clone()
            change(tensor)
        return tensor

    return fault
