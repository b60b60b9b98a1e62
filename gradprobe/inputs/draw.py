"""The values of a case, the same for a seed on every machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING

from ..model.assignment import OUTPUTS
from ..model.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def draw(case: Case, device: str = "cpu") -> dict[str, Tensor]:
    """Contiguous tensors by name.

    Returns:
        q, k, v and do in the case's dtype, large ones on the device. Where the case has them: bias, [H, W] float32
        in lazy, in softmax four axes in the case's dtype; tau, alibi and sinks [H] float32; mask, four axes, and keep
        [B, H, M, N] bool; seqlens [B], cu_seqlens_q and cu_seqlens_k int32.
    """
    import torch

    generator = torch.Generator().manual_seed(case.seed)
    drawn = ("q", "k", "v", "do", "bias") if case.bias else ("q", "k", "v", "do")
    device = "cpu" if case.pattern == "dyadic" else device
    values = {name: _normal(_shape(case, name), generator, device) for name in drawn}
    values = _patterned(values, case)
    for name in values:
        if not (name == "bias" and case.family == "lazy"):
            values[name] = values[name].to(getattr(torch, case.dtype))
    if case.alibi:
        # The slopes of Press, Smith and Lewis (2022): a geometric sequence that ends at 2^-8.
        values["alibi"] = 2.0 ** (-8.0 * torch.arange(1, case.heads + 1) / case.heads)
    if case.sinks:
        # Near the scores: else it takes all of P, or none.
        near = MEANS.get(case.pattern, 0.0)
        values["sinks"] = torch.randn(_shape(case, "sinks"), generator=generator) + near
    if case.mask is not None:
        values["mask"] = _mask(case, generator)
    if case.dropout:
        values["keep"] = torch.rand(_shape(case, "keep"), generator=generator) >= case.dropout
    if case.pattern == "dyadic":
        from .dyadic import dyadic

        made = dyadic(case, values | numbers_of(case), generator)
        values |= {name: value.to(values[name].dtype) for name, value in made.items()}
    return values | numbers_of(case)


# Elements of a tensor from which on its values are counted, since drawn on a CPU they take longer than a check on a
# GPU; and how many are made at once.
_LARGE = 1 << 22
_PARTS = {"cpu": 1 << 20, "cuda": 1 << 24}
# The increment and the multipliers of SplitMix64 (Steele, Lea and Flood, 2014), as signed integers.
_INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
_LAST = 31
# Quantiles of the normal distribution between which is interpolated. The outermost are those of this probability.
_QUANTILES = 1 << 16
_OUTERMOST = 2.0**-22


def _normal(shape: list[int], generator: torch.Generator, device: str) -> Tensor:
    import torch

    if math.prod(shape) < _LARGE:
        return torch.randn(shape, generator=generator)
    seed = int(torch.randint(1 << 62, (), generator=generator))
    drawn = torch.empty(shape, device=device)
    size = _PARTS[drawn.device.type]
    for number, part in enumerate(drawn.view(-1).split(size)):
        part.copy_(counted(seed, number * size, len(part), device))
    return drawn


def counted(seed: int, first: int, count: int, device: str) -> Tensor:
    """[count] float32 on a device, from the place `first` on, which is even; normal, to 5 standard deviations.

    64 bits make two values, by integers and by single float32 operations: what every device computes alike.
    """
    import torch

    places = torch.arange(first // 2, (first + count + 1) // 2, device=device)
    bits = places.mul_(_INCREMENT).add_(seed)
    for shift, factor in _MIX:
        bits = _folded(bits, shift).mul_(factor)
    halves = _folded(bits, _LAST).view(torch.int32)[:count]
    lower, width = _table(device)
    at = (halves >> 16) & (_QUANTILES - 1)
    inside = (halves & 0xFFFF).float().mul_(2.0**-16).mul_(width.index_select(0, at))
    return inside.add_(lower.index_select(0, at))


def _folded(bits: Tensor, shift: int) -> Tensor:
    """Bits xored with themselves, shifted to the right; from the left come zeros."""
    return bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))


@cache
def _table(device: str) -> tuple[Tensor, Tensor]:
    """[2^16] float32 each: the lower end of each interval of equal probability, and its width."""
    import torch

    ends = torch.arange(_QUANTILES + 1, dtype=torch.double) / _QUANTILES
    quantiles = torch.special.ndtri(ends.clamp(_OUTERMOST, 1 - _OUTERMOST))
    lower = quantiles[:-1].float()
    return lower.to(device), (quantiles[1:].float() - lower).to(device)


def numbers_of(case: Case) -> dict[str, Tensor]:
    import torch

    found: dict[str, Tensor] = {}
    for name in ("tau", "seqlens", "cu_seqlens_q", "cu_seqlens_k"):
        if (given := getattr(case, name)) is not None:
            dtype = torch.float32 if name == "tau" else torch.int32
            found[name] = torch.tensor(given, dtype=dtype)
    return found


# Of the scores, in the patterns in which all lie far from 0.
MEANS = {"negative": -120.0, "positive": 120.0}
# Of q: scores so much wider make P nearly one-hot; and reach 100, where what rounds one of them errs by more.
_WIDER = {"large": 4, "wide": 20}


def _shape(case: Case, name: str) -> list[int]:
    return [*map(case.size, case.input_axes(name))]


def _mask(case: Case, generator: torch.Generator) -> Tensor:
    """Each row sees its diagonal; in "dead-rows" a seventh sees nothing."""
    import torch

    i, j = torch.arange(case.seqlen_q)[:, None], torch.arange(case.seqlen_k)
    if case.mask == "padding":
        lengths = torch.randint(1, case.seqlen_k + 1, (case.batch, 1, 1, 1), generator=generator)
        return j < lengths
    mask = torch.rand(_shape(case, "mask"), generator=generator) < 0.8
    shift = case.seqlen_k - case.seqlen_q if case.align == "bottom-right" else 0
    mask |= j == (i + shift).clamp(0, case.seqlen_k - 1)
    return mask & (i % 7 != 3) if case.mask == "dead-rows" else mask


def _patterned(values: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    """Each exposes a class of faults that others hide."""
    q, k = values["q"], values["k"]
    if case.pattern == "small":
        # Scores near 0: P is nearly uniform, and lazy rows at tau = -1 sit on the kink.
        values |= {"q": q * 0.02, "k": k * 0.02}
        values |= {"bias": values["bias"] * 0} if "bias" in values else {}
    elif case.pattern in _WIDER:
        values |= {"q": q * _WIDER[case.pattern]}
    elif case.pattern in MEANS:
        # Every score near -120 or 120, so exp(S) underflows or overflows unless the maximum is subtracted.
        mean = MEANS[case.pattern]
        root = (abs(mean) / (case.scale * case.head_dim)) ** 0.5 if case.scale > 0 else 1.0
        width = 0.2 / max(1.0, case.scale) ** 0.5  # scores spread by 3.1: all beyond 88.7
        values |= {"q": q * width + root, "k": k * width + math.copysign(root, mean)}
    elif case.pattern == "offset":
        values |= {name: values[name] + 1.0 for name in ("q", "k", "v", "do")}
    elif case.pattern == "lowrank":
        for name in ("q", "k", "v"):
            if min(values[name].shape[-2:]) > 1:
                values[name] = _of_rank_2(values[name])
    return values


def _of_rank_2(tensor: Tensor) -> Tensor:
    """A product of matrices would round as its device does."""
    first, second = (tensor[..., at, None] * tensor[..., at, None, :] for at in (0, 1))
    return first + second


# The input whose gradient it is, where the two have one dtype; the others are sums in float32.
_LIKE = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias"}


def outputs_of(
    case: Case, names: Collection[str], values: Mapping[str, Tensor], fill: float = float("nan")
) -> dict[str, Tensor]:
    """The outputs before a run, of the inputs' dtypes or float32, full of `fill`."""
    import torch

    found = {}
    for name in OUTPUTS:
        if name in names and case.exists(name):
            dtype = values[_LIKE[name]].dtype if name in _LIKE else torch.float32
            shape, device = _shape(case, name), values["q"].device
            found[name] = torch.full(shape, fill, dtype=dtype, device=device)
    return found


def in_float64(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = dict(values)
    for name, value in values.items():
        if value.is_floating_point():
            found[name] = value.double()
    return found
