"""Right backwards in 16 bits, drawn over the arithmetic that people use: what is rounded, where, and how sums are kept.

Written from the formulas alone, in float32 between roundings, sharing nothing with the reference.
"""

import math
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

SUMS = ("O", "dQ", "dK", "dV")
EVERY = ("product", "scores", "shifted", "P", "PE", "dP", "spread", "delta", "dS", "scaled dS")


@dataclass(frozen=True)
class Roundings:
    """What a kernel rounds to the dtype of q beside its results."""

    at: frozenset[str]
    """Of "product" (q k), "scores" (scaled), "shifted" (less their maximum), "P", "PE" (of the second dots), "dP",
    "spread" (dP - delta), "delta", "dS", "scaled dS"."""
    folded: str = ""
    """"q" or "k", which is scaled and rounded before the scores; "" where the scores are scaled."""
    delta: str = "stored"
    """From the O that is "stored", from it "unrounded", or by "P dP"."""
    late: bool = False
    """Whether O is divided by the row's sum at its end, and P rounded before."""
    tiles: tuple[tuple[str, int], ...] = ()
    """By result that is kept in 16 bits: the rows or keys between two roundings."""
    backwards: bool = False
    """Whether the last tile comes first."""

    def __str__(self) -> str:
        words = [*sorted(self.at), f"delta {self.delta}"]
        words += [f"scale * {self.folded}"] if self.folded else []
        words += [f"{name} every {tile}" for name, tile in self.tiles] + ["late"] * self.late
        return ", ".join(words)


def drawn(random: Random) -> Roundings:
    """Any combination of what is shipped: all in 16 bits, autograd's, fused kernels', and what lies between."""
    style = random.choice(("fused", "eager", "mixed", "any"))
    of_scores = {
        "fused": [(), ("PE", "dS")], "eager": [("product", "scores", "P", "PE", "dP", "dS", "scaled dS")],
        "mixed": [("product", "PE", "dP", "dS"), ("product", "scores", "PE", "dP", "dS", "scaled dS")], "any": [()],
    }[style]  # fmt: skip
    at = {*random.choice(of_scores)}
    rate = {"any": 0.5, "fused": 0.0}.get(style, 0.15)
    at |= {name for name in EVERY if random.random() < rate}
    tiles = [(name, random.choice((16, 32, 64, 128))) for name in SUMS if random.random() < 0.25]
    delta = random.choice(("stored", "unrounded", "P dP"))
    folded = random.choice(("", "", "q", "k"))
    return Roundings(
        frozenset(at), folded, delta, random.random() < 0.3, tuple(tiles), random.random() < 0.3
    )


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, how: Roundings, *, causal: bool, scale: float | None = None
) -> dict[str, Tensor]:  # fmt: skip
    """O, dQ, dK and dV in the dtype of q; k and v may have fewer heads."""
    dtype, scale = q.dtype, scale or q.shape[-1] ** -0.5

    def at(name: str, tensor: Tensor) -> Tensor:
        return tensor.to(dtype).float() if name in how.at else tensor

    def folded(name: str, tensor: Tensor) -> Tensor:
        wide = tensor.float()
        return (wide * scale).to(dtype).float() if how.folded == name else wide

    def dot(name: str, a: Tensor, b: Tensor) -> Tensor:
        tile = dict(how.tiles).get(name)
        if tile is None:
            return a @ b
        out, firsts = a.new_zeros(*a.shape[:-1], b.shape[-1]), range(0, a.shape[-1], tile)
        for first in reversed(firsts) if how.backwards else firsts:
            part = a[..., first : first + tile] @ b[..., first : first + tile, :]
            out = (out + part).to(dtype).float()
        return out

    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    qs, ks, d32 = folded("q", q), folded("k", wide_k), do.float()
    product = at("product", qs @ ks.mT)
    s = product if how.folded else at("scores", product * scale)
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        s = s.masked_fill(hidden.triu(1 + k.shape[2] - q.shape[2]), -math.inf)
    most = s.amax(-1, keepdim=True)
    e = at("shifted", s - most.masked_fill(most == -math.inf, 0.0)).exp()
    total = e.sum(-1, keepdim=True)
    p = (e / total).nan_to_num(0.0)
    o = dot("O", at("PE", e if how.late else at("P", p)), wide_v.float())
    o = (o / total).nan_to_num(0.0) if how.late else o
    p = at("P", p)
    dp = at("dP", d32 @ wide_v.float().mT)
    of = {"stored": o.to(dtype).float(), "unrounded": o}
    delta = (p * dp).sum(-1) if how.delta == "P dP" else (of[how.delta] * d32).sum(-1)
    ds = at("dS", p * at("spread", dp - at("delta", delta)[..., None]))
    outer = 1.0 if "scaled dS" in how.at else scale
    ds = at("scaled dS", ds * scale) if "scaled dS" in how.at else ds
    dq = dot("dQ", ds, wide_k.float()) * outer
    # What was folded into the operand is in dK already.
    dk = dot("dK", ds.mT, qs if how.folded == "q" and outer == scale else q.float())
    dk = dk if how.folded == "q" and outer == scale else dk * outer
    dv = dot("dV", at("PE", p).mT, d32)
    results = {"O": o, "dQ": dq} | {
        name: _of_groups(one, group, dtype) for name, one in (("dK", dk), ("dV", dv))
    }
    return {name: one.to(dtype) for name, one in results.items()}


def _of_groups(tensor: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Each query head's part is rounded as it is stored, and these are added up in float32."""
    if group == 1:
        return tensor
    return tensor.to(dtype).float().unflatten(1, (-1, group)).sum(2)
