"""The values of a case, the same for a seed on every machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..model.assignment import OUTPUTS
from ..model.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def draw(case: Case) -> dict[str, Tensor]:
    """Contiguous tensors by name.

    Returns:
        q, k, v and do in the case's dtype. Where the case has them: bias, [H, W] float32 in lazy, in softmax four axes
        in the case's dtype; tau, alibi and sinks [H] float32; mask, four axes, and keep [B, H, M, N] bool; seqlens
        [B], cu_seqlens_q and cu_seqlens_k int32.
    """
    import torch

    generator = torch.Generator().manual_seed(case.seed)
    drawn = ("q", "k", "v", "do", "bias") if case.bias else ("q", "k", "v", "do")
    values = {name: torch.randn(_shape(case, name), generator=generator) for name in drawn}
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
