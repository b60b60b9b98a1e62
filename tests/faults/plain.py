"""Attention backwards of four kernels in plain torch, in any of which a fault may be planted by hand.

They share nothing with the variants that hypotheses evaluate: a fault is a tensor that one kernel reads otherwise, or
an intermediate that it makes otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradprobe.numerics.evidence import ProbeResult
from gradprobe.targets.find import Target
from tests.emulated import case_of, target_of
from tests.probe import probe

KERNELS = ("forward", "preprocess", "dq", "dkdv")
GRADIENTS = ("dQ", "dK", "dV", "dBias", "dSink", "dTau")
EVERYTHING = ("LSE", "P", "O", "dP", "delta", "dS", *GRADIENTS)
BACKWARD = KERNELS[1:]

Change = Callable[[str, str, Tensor], Tensor]
"""(kernel, name, tensor) -> what the kernel takes in its place."""


def unchanged(kernel: str, name: str, tensor: Tensor) -> Tensor:  # noqa: ARG001
    return tensor


@dataclass(frozen=True)
class Planted:
    """A fault."""

    read: Change = unchanged
    """What a kernel finds in q, k, v, do, bias, tau, alibi, sinks, keep, o, lse or delta."""
    make: Change = unchanged
    """What it makes of valid (which keys are seen), S, LSE, P, Z, O, dP, delta, dS, dQ, dK, dV, dBias, dSink, dTau;
    dK and dV are those of each query head until they are added up."""
    call: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
    """What is returned."""


@dataclass(frozen=True)
class Problem:
    """One call."""

    planted: Planted
    family: str
    tensors: dict[str, Tensor]
    options: dict[str, object]

    def read(self, kernel: str, name: str) -> Tensor:
        tensor = self.planted.read(kernel, name, self.tensors[name])
        return tensor.float() if tensor.is_floating_point() else tensor

    def has(self, name: str) -> bool:
        return self.tensors.get(name) is not None

    @property
    def scale(self) -> float:
        return float(self.options["scale"])

    @property
    def group(self) -> int:
        return self.tensors["q"].shape[1] // self.tensors["k"].shape[1]

    def of_heads(self, kernel: str, name: str) -> Tensor:
        """k or v, once for each query head."""
        return self.read(kernel, name).repeat_interleave(self.group, 1)


def _positions(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """i [M, 1], how far each key lies ahead of the diagonal [M, N], and whether both are of one sequence."""
    m, n = p.tensors["q"].shape[2], p.tensors["k"].shape[2]
    ends_q = p.tensors["cu_seqlens_q"].tolist() if p.has("cu_seqlens_q") else [0, m]
    ends_k = ends_q if ends_q[-1] == n else [0, n]
    ends_k = p.tensors["cu_seqlens_k"].tolist() if p.has("cu_seqlens_k") else ends_k
    ahead, together = torch.zeros(m, n, dtype=torch.long), torch.zeros(m, n, dtype=torch.bool)
    for at in range(len(ends_q) - 1):
        rows, keys = ends_q[at + 1] - ends_q[at], ends_k[at + 1] - ends_k[at]
        shift = keys - rows if p.options.get("align", "bottom-right") == "bottom-right" else 0
        here = (slice(ends_q[at], ends_q[at + 1]), slice(ends_k[at], ends_k[at + 1]))
        ahead[here] = torch.arange(keys) - torch.arange(rows)[:, None] - shift
        together[here] = True
    return torch.arange(m)[:, None], ahead, together


def _valid(p: Problem, kernel: str) -> Tensor:
    """[B, H or 1, M, N]."""
    i, ahead, valid = _positions(p)
    left, right = p.options.get("window") or (-1, -1)
    valid = valid & (ahead <= 0) if p.options.get("causal") or p.family == "lazy" else valid
    valid = valid & (ahead >= -left) if left >= 0 else valid
    valid = (valid & (ahead <= right) if right >= 0 else valid)[None, None]
    if p.has("seqlens"):
        lengths = p.tensors["seqlens"][:, None, None, None]
        valid = valid & (i < lengths) & (torch.arange(ahead.shape[1]) < lengths)
    valid = valid & p.read(kernel, "mask") if p.has("mask") else valid
    return p.planted.make(kernel, "valid", valid.expand(*p.tensors["q"].shape[:2], -1, -1))


def _scores(p: Problem, kernel: str, valid: Tensor) -> tuple[Tensor, Tensor | None]:
    """The scores, and softcap's slope."""
    i, ahead, _ = _positions(p)
    s = p.read(kernel, "q") @ p.of_heads(kernel, "k").mT * p.scale
    cap = p.options.get("softcap")
    tanh = None if cap is None else (s / cap).tanh()
    s = s if tanh is None else tanh * cap
    if p.has("bias"):
        bias = p.read(kernel, "bias")
        if p.family == "lazy":
            distance = -ahead
            inside = (distance >= 0) & (distance < bias.shape[1])
            bias = bias[:, distance.clamp(0, bias.shape[1] - 1)] * inside
        s = s + bias
    if p.has("alibi"):
        s = s - p.read(kernel, "alibi")[:, None, None] * ahead.abs()
    s = p.planted.make(kernel, "S", s).masked_fill(~valid, -torch.inf)
    return s, None if tanh is None else p.planted.make(kernel, "slope", 1 - tanh**2)


def _weights(p: Problem, kernel: str, weights: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """(what multiplies V, what dP is multiplied by)."""
    if p.family == "lazy":
        i, _, _ = _positions(p)
        z = p.planted.make(kernel, "Z", weights + p.read(kernel, "tau")[:, None, None] / (i + 1))
        return z.relu() * valid, ((z > 0) & valid).float()
    if p.has("keep"):
        share = p.read(kernel, "keep").float() / (1 - float(p.options["dropout"]))
        return weights * share, share * valid
    return weights, valid.float()


def _forward(p: Problem) -> tuple[Tensor, Tensor]:
    valid = _valid(p, "forward")
    s, _ = _scores(p, "forward", valid)
    every = s if not p.has("sinks") else torch.cat((s, _sink_logits(p, "forward", s)), -1)
    lse = p.planted.make("forward", "LSE", every.logsumexp(-1))
    weights = (s - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
    pe, _ = _weights(p, "forward", weights, valid)
    return p.planted.make("forward", "O", pe @ p.of_heads("forward", "v")), lse


def _sink_logits(p: Problem, kernel: str, s: Tensor) -> Tensor:
    return p.read(kernel, "sinks")[:, None, None].expand(*s.shape[:-1], 1)


def _probabilities(p: Problem, kernel: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """valid, P and softcap's slope, from the LSE that is stored."""
    valid = _valid(p, kernel)
    s, slope = _scores(p, kernel, valid)
    lse = p.read(kernel, "lse")
    weights = (s - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
    return valid, p.planted.make(kernel, "P", weights), slope


def _preprocess(p: Problem) -> Tensor:
    if p.family == "softmax":
        made = p.read("preprocess", "do") * p.read("preprocess", "o")
    else:
        valid, weights, _ = _probabilities(p, "preprocess")
        made = weights * _dp(p, "preprocess", weights, valid)
    return p.planted.make("preprocess", "delta", made.sum(-1))


def _dp(p: Problem, kernel: str, weights: Tensor, valid: Tensor) -> Tensor:
    _, share = _weights(p, kernel, weights, valid)
    return p.planted.make(kernel, "dP", p.read(kernel, "do") @ p.of_heads(kernel, "v").mT * share)


def _ds(p: Problem, kernel: str) -> tuple[Tensor, ...]:
    valid, weights, slope = _probabilities(p, kernel)
    dp = _dp(p, kernel, weights, valid)
    dt = weights * (dp - p.read(kernel, "delta")[..., None])
    ds = p.planted.make(kernel, "dS", dt if slope is None else dt * slope)
    return valid, weights, dp, dt if slope is not None else ds, ds


def _dq(p: Problem) -> dict[str, Tensor]:
    valid, weights, dp, dt, ds = _ds(p, "dq")
    i, ahead, _ = _positions(p)
    found = {"P": weights, "dP": dp, "dS": ds, "dQ": ds @ p.of_heads("dq", "k") * p.scale}
    if p.has("bias") and p.family == "lazy":
        inside = (-ahead >= 0) & (-ahead < p.tensors["bias"].shape[1])
        sums = torch.zeros(p.tensors["bias"].shape)
        found["dBias"] = sums.index_add_(1, -ahead[inside], ds.sum(0)[:, inside])
    elif p.has("bias"):
        found["dBias"] = dt.sum_to_size(p.tensors["bias"].shape)
    if p.has("sinks"):
        taken = (p.read("dq", "sinks")[:, None] - p.read("dq", "lse")).exp()
        found["dSink"] = -(taken * p.read("dq", "delta")).sum((0, 2))
    if p.family == "lazy":
        found["dTau"] = (dp / (i + 1)).sum((0, 2, 3))
    ends = [name for name in GRADIENTS if name in found]
    return found | {name: p.planted.make("dq", name, found[name]) for name in ends}


def _dkdv(p: Problem) -> dict[str, Tensor]:
    valid, weights, _, _, ds = _ds(p, "dkdv")
    pe, _ = _weights(p, "dkdv", weights, valid)
    found = {"dK": ds.mT @ p.read("dkdv", "q") * p.scale, "dV": pe.mT @ p.read("dkdv", "do")}
    found = {name: p.planted.make("dkdv", name, value) for name, value in found.items()}
    return {name: value.unflatten(1, (-1, p.group)).sum(2) for name, value in found.items()}


def backward(
    planted: Planted, family: str, tensors: dict[str, Tensor], options: dict[str, object]
) -> dict[str, Tensor]:
    """Every intermediate; P, dP and dS are those of the kernel of dQ."""
    p = Problem(planted, family, dict(tensors), options)
    o, lse = _forward(p)
    for name, value in (("o", o.to(tensors["q"].dtype)), ("lse", lse)):
        p.tensors[name] = p.tensors.get(name) if p.tensors.get(name) is not None else value
    p.tensors["delta"] = _preprocess(p) if p.tensors.get("delta") is None else p.tensors["delta"]
    found = {"LSE": lse, "O": o, "delta": p.tensors["delta"], **_dq(p), **_dkdv(p)}
    narrow = {name: found[name].to(tensors["q"].dtype) for name in ("O", "dQ", "dK", "dV")}
    return planted.call(found | narrow)


def softmax_target(planted: Planted = Planted(), exposed: tuple[str, ...] = EVERYTHING) -> Target:
    def softmax(
        q, k, v, do, *, causal, scale, window=None, softcap=None, align="bottom-right", dropout=0.0, bias=None,
        alibi=None, mask=None, sinks=None, keep=None, seqlens=None, cu_seqlens_q=None, cu_seqlens_k=None,
    ):  # fmt: skip
        tensors = {
            "q": q, "k": k, "v": v, "do": do, "bias": bias, "alibi": alibi, "mask": mask, "sinks": sinks, "keep": keep,
            "seqlens": seqlens, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        }  # fmt: skip
        options = {
            "causal": causal, "scale": scale, "window": window, "softcap": softcap, "align": align, "dropout": dropout,
        }  # fmt: skip
        found = backward(planted, "softmax", tensors, options)
        return {name: value for name, value in found.items() if name in exposed}

    return target_of(softmax)


def lazy_target(planted: Planted = Planted(), exposed: tuple[str, ...] = EVERYTHING) -> Target:
    def lazy(q, k, v, do, *, tau, scale, bias=None, seqlens=None):
        tensors = {"q": q, "k": k, "v": v, "do": do, "tau": tau, "bias": bias, "seqlens": seqlens}
        found = backward(planted, "lazy", tensors, {"scale": scale, "causal": True})
        return {name: value for name, value in found.items() if name in exposed}

    return target_of(lazy, "lazy")


TARGETS = {"softmax": softmax_target, "lazy": lazy_target}


def told(
    planted: Planted = Planted(), family: str = "softmax", exposed: tuple[str, ...] = EVERYTHING, **options
) -> ProbeResult:  # fmt: skip
    """What a probe says of a fault, by default on a small case whose tensors lie contiguous."""
    sizes = {"batch": 2, "heads": 2, "seqlen": 40, "head_dim": 8}
    sizes |= {"head_dim_v": 8} if family == "softmax" else {}
    for name in ("seqlen", "batch") if "cu_seqlens" in options else ("seqlen",):
        if {"cu_seqlens", "seqlen_q"} & options.keys():
            del sizes[name]
    case = case_of(family, **{"runs": ((),)} | sizes | options)
    return probe(case, TARGETS[family](planted, exposed))


def named(report: ProbeResult) -> str:
    """The fault that is named as the cause, where one is."""
    assert not any("fault of gradprobe" in sentence for sentence in report.known), report.known
    first = next(iter(report.diagnoses), None)
    return first.fault if first is not None and first.is_named else ""


def reading(name: str, change: Callable[[Tensor], Tensor], kernels=KERNELS) -> Planted:
    """Some kernels find something else in a tensor."""
    return Planted(read=_changed(name, change, kernels))


def making(name: str, change: Callable[[Tensor], Tensor], kernels=KERNELS) -> Planted:
    """Some kernels make something else of an intermediate."""
    return Planted(make=_changed(name, change, kernels))


def _changed(name: str, change: Callable[[Tensor], Tensor], kernels: tuple[str, ...]) -> Change:
    return lambda kernel, of, t: change(t) if of == name and kernel in kernels else t


def remembering(name: str, change: Callable[..., Tensor]) -> Planted:
    """An intermediate is made of what its kernel read and made before, by name."""
    known: dict[tuple[str, str], Tensor] = {}

    def read(kernel: str, of: str, tensor: Tensor) -> Tensor:
        known[kernel, of] = tensor.float() if tensor.is_floating_point() else tensor
        return tensor

    def make(kernel: str, of: str, tensor: Tensor) -> Tensor:
        tensor = change(lambda one: known[kernel, one], tensor) if of == name else tensor
        known[kernel, of] = tensor
        return tensor

    return Planted(read=read, make=make)


def with_strides_of(name: str, other: str, axes: tuple[int, ...], kernels=KERNELS) -> Planted:
    """A tensor is read with another one's strides along some axes."""
    strides: dict[str, tuple[int, ...]] = {}

    def read(kernel: str, of: str, tensor: Tensor) -> Tensor:
        strides[of] = tensor.stride()
        if of != name or kernel not in kernels:
            return tensor
        own = enumerate(tensor.stride())
        taken = [strides[other][axis] if axis in axes else step for axis, step in own]
        return tensor.as_strided(tensor.shape, taken, tensor.storage_offset())

    return Planted(read=read)


def rows_of(matrix: Tensor) -> Tensor:
    return torch.arange(matrix.shape[-2])[:, None]


def keys_of(matrix: Tensor) -> Tensor:
    return torch.arange(matrix.shape[-1])


def of_head_0(tensor: Tensor) -> Tensor:
    return tensor[:, :1].expand_as(tensor)


def of_batch_0(tensor: Tensor) -> Tensor:
    return tensor[:1].expand_as(tensor)
