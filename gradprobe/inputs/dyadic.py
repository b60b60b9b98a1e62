"""Dyadic values: inputs on which every rounding to 16 bits inside a right kernel is exact.

Row i takes a class of keys: q_i is large in the class's dim, where k_j is 0 for a key of the class and 1 for any other.
So P is 1, 1/2, 1/4 or 1/8 on the keys of the class that the row sees, and 0 elsewhere. v and dO hold small integers,
sparse in the few dims that both have, so that O, dP, delta and dS are numbers of 8 bits. The other dims belong to one
of q, k, v and dO alone: by them one row's share of a gradient is told from another's.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..model.case import DYADIC_TAU, Case
from ..model.failures import UsageFailure, refuse_if
from ..reference import Attention, Tile, evaluate

SHARES = (1, 2, 4, 8)  # of so many keys a row's P may be the mean
# exp(-512) is 0 in float32, and in float16 no score overflows for it.
HIDDEN = 512.0
# The largest integer in dims that one tensor has for itself: nearly all bits of its dtype, so that what adds them up in
# 16 bits rounds early.
_WIDE = {"bfloat16": 127, "float16": 1023, "float32": 1023}
# A bias or mask that was drawn may leave a row without a class; another draw seldom does.
TRIES = 32
_OF_MASKS = ("mask", "bias", "tau", "seqlens", "cu_seqlens_q", "cu_seqlens_k")
_LEAST_SCALE, _MOST_CLASSES, _MOST_SHARED = 2.0**-6, 32, 4
_NO = "--pattern dyadic:"


def dyadic(
    case: Case, values: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """float32 q, k, v and dO of a case, and its bias; of `values`, shapes, masks and lengths count.

    Raises:
        UsageFailure: the case has no such values.
    """
    _refuse(case)
    for _ in range(TRIES):
        drawn: dict[str, Tensor] = {}
        if "bias" in values:
            hides = torch.rand(values["bias"].shape, generator=generator) < 0.15
            drawn["bias"] = -HIDDEN * hides
            if case.family == "lazy":
                drawn["bias"][:, 0] = 0.0
        try:
            q, k = _scores(case, _open(case, {**values, **drawn}), generator)
        except _UnfitRow as unfit:
            row = unfit.args[0]
            continue
        v, do = _products(case, generator)
        return drawn | {"q": q, "k": k, "v": v, "do": do}
    words = f"{_NO} row {row} sees 1, 2, 4 or 8 keys of no class that was drawn"
    raise UsageFailure(words, "pass another --seed or --mask, or a larger --head-dim")


class _UnfitRow(Exception):
    pass


def _refuse(case: Case) -> None:
    size, taus = abs(case.scale), case.tau or ()
    is_power = size >= _LEAST_SCALE and math.frexp(size)[0] == 0.5
    way_out = "pass --head-dim 16, 64 or 256, or --scale 0.25 if TARGET takes it"
    # P + tau / (i + 1) has 16 bits only where i + 1 is a power of two; and where P is 0, tau = 0 is on the kink.
    is_near = all(0 < abs(tau) <= DYADIC_TAU for tau in taus)
    keeps_power = math.frexp(1 - case.dropout)[0] == 0.5
    rules: list[tuple[bool, str, str]] = [
        (
            is_power,
            f"the scale must be a power of two, 1/64 or more, got {case.scale:g}",
            way_out,
        ),
        (case.head_dim >= 4, f"--head-dim must be 4 or more, got {case.head_dim}", "pass 16"),
        (is_near, f"tau must lie in -2^-20 to 2^-20 and not be 0, got {case.tau}", "drop --tau"),
        (keeps_power, f"1 - dropout must be a power of two, got {case.dropout}", "pass 0.5"),
    ]
    for name in ("softcap", "alibi", "sinks"):
        words = f"with --{name}, P is no power of two"
        rules.append((not getattr(case, name), words, f"leave out --{name}"))
    for is_right, rule, way_out in rules:
        refuse_if(not is_right, f"{_NO} {rule}", way_out)


def _open(case: Case, values: Mapping[str, Tensor]) -> Tensor:
    """[B, H, M, N] bool: the keys that a row sees and no bias hides."""
    options: dict[str, Any] = {}
    for name in ("q", "k", "v", "do"):
        options[name] = torch.zeros_like(values[name], dtype=torch.double)
    options |= {name: values[name] for name in _OF_MASKS if name in values}
    for name in ("family", "scale", "causal", "window", "align"):
        options[name] = getattr(case, name)
    x, rows = Attention(**options), slice(0, case.seqlen_q)
    tiles = (Tile(batch, slice(0, case.heads), rows) for batch in range(case.batch))
    # Of q and k that are 0, a score is its bias.
    return torch.stack([evaluate(x, tile, wanted=("P",))["S"] > -HIDDEN / 2 for tile in tiles])


def _scores(case: Case, is_open: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    count = min(case.head_dim // 2, _MOST_CLASSES)
    classes = torch.stack(list(_classes(is_open, count, generator)))
    q, k = _alone(case, "q", count, generator), _alone(case, "k", count, generator)
    size, group = -HIDDEN / case.scale, case.heads // case.kv_heads
    for b in range(case.batch):
        for g in range(case.kv_heads):
            order = torch.randperm(count, generator=generator)
            k[b, g, :, :count] = (~classes[order]).mT.float()
            for h in range(g * group, (g + 1) * group):
                chosen = _chosen(is_open[b, h], classes[order], generator)
                taken = (chosen >= 0).nonzero().flatten()
                q[b, h, taken, chosen[taken]] = size
    return q, k


def _classes(is_open: Tensor, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """[N] bool each: keys of which no row sees more than 1, 2, 4 or 8."""
    rows = is_open.flatten(0, 2).unique(dim=0).mT.contiguous().numpy()
    n_key = len(rows)
    for number in range(count):
        first = int(torch.randint(n_key, (), generator=generator)) if number else 0
        most = SHARES[int(torch.randint(len(SHARES), (), generator=generator))] if number else 1
        keys = torch.arange(n_key).roll(-first)
        if number % 2:
            keys = torch.randperm(n_key, generator=generator)
        counts = torch.zeros(rows.shape[1], dtype=torch.int32).numpy()
        taken = torch.zeros(n_key, dtype=torch.bool)
        for key in keys.tolist():
            seeing = rows[key]
            if (counts[seeing] < most).all():
                counts[seeing] += 1
                taken[key] = True
        yield taken


def _chosen(is_open: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    """[M] the class of each row; -1 for the mean of all it sees, or nothing."""
    seen = is_open.float() @ torch.cat([classes, torch.ones_like(classes[:1])]).float().mT
    fits = torch.isin(seen, torch.tensor(SHARES, dtype=seen.dtype))
    weight = fits * torch.where(seen > 1, 4.0, 1.0)
    unfit, alive = ~fits.any(1), is_open.any(1)
    if bool((unfit & alive).any()):
        raise _UnfitRow(int((unfit & alive).nonzero()[0]))
    weight[unfit, -1] = 1.0
    chosen = weight.multinomial(1, generator=generator)[:, 0]
    return chosen.masked_fill(chosen == len(classes), -1)


def _alone(case: Case, name: str, count: int, generator: torch.Generator) -> Tensor:
    tensor, half = _zeros(case, name), count + (case.head_dim - count + 1) // 2
    own = tensor[..., count:half] if name == "q" else tensor[..., half:]
    own.copy_(_integers(own.shape, _WIDE[case.dtype], generator))
    return tensor


def _products(case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    v, do = _zeros(case, "v"), _zeros(case, "do")
    order = torch.randperm(case.head_dim_v, generator=generator)
    both, others = order[:_MOST_SHARED], order[_MOST_SHARED:]
    of_v, of_do = others[::2], others[1::2]
    for tensor, own, largest in ((v, of_v, 1), (do, of_do, _WIDE[case.dtype])):
        small = _integers(tensor[..., both].shape, 2, generator)
        tensor[..., both] = small * (torch.rand(small.shape, generator=generator) < 0.5)
        tensor[..., own] = _integers(tensor[..., own].shape, largest, generator)
    # Three quarters of them are 0: a dO of ones, as `sum` gives, adds them all up.
    v[..., of_v] *= torch.rand(v[..., of_v].shape, generator=generator) < 0.25
    return v, do


def _zeros(case: Case, name: str) -> Tensor:
    return torch.zeros([*map(case.size, case.input_axes(name))])


def _integers(shape: torch.Size, largest: int, generator: torch.Generator) -> Tensor:
    sizes = torch.randint(1, largest + 1, shape, generator=generator)
    return (sizes * (2 * torch.randint(0, 2, shape, generator=generator) - 1)).float()
