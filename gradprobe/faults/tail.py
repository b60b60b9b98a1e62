"""M3: rows or keys beyond the end of a tensor are read, those of the next head, and not masked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..reference import Attention
from .hypothesis import Hypothesis, Seen
from .memory import offsets, readable, whole_storage
from .variant import Scope, Variant

if TYPE_CHECKING:
    from torch import Tensor

_SIZES = (16, 32, 64, 128)


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """The rows that fill up the last tile, in dK and dV; the keys that do, in dQ."""
    case = seen.case
    plain = all(getattr(seen.x, name) is None for name in ("bias", "mask", "keep", "seqlens", "cu_seqlens_q", "alibi"))
    if not plain or seen.x.family == "lazy":
        return
    for size in dict.fromkeys((case.block_m, case.block_n, *_SIZES)):
        if case.seqlen_q % size:
            yield Hypothesis(
                "tail/q", "M3", f"rows beyond the last one, up to a whole tile of {size}, are read from the "
                "next head and added to dK and dV", partial(_rows, seen, -(-case.seqlen_q // size) * size),
                frozenset({"dK", "dV"}), fix="mask the rows by the length: offs_m < n_ctx", tensor="q",
            )  # fmt: skip


def _behind(tensor: Tensor, count: int) -> Tensor:
    """[B, H, count, ...] what lies behind the last row of each head."""
    shape = (*tensor.shape[:2], count, *tensor.shape[3:])
    flat = whole_storage(tensor)
    at = offsets(shape, tensor.stride()) + int(tensor.storage_offset()) + tensor.shape[2] * tensor.stride(2)
    found = flat[at.clamp(0, len(flat) - 1).to(tensor.device)].double()
    return found.masked_fill((at >= len(flat)).to(tensor.device), 0.0)


def _rows(seen: Seen, until: int, variant: Variant) -> Variant:
    """dK and dV with the rows added that are no rows."""
    tensors, count = readable(seen), until - seen.case.seqlen_q
    q, do, lse, delta = (_behind(tensors[name], count) for name in ("q", "do", "lse", "delta"))

    def parts(scope: Scope) -> tuple[Tensor, Tensor, Tensor]:
        """P, dS and dO of those rows, which are seen wherever a causal mask lets them."""
        x, tile = scope.x, scope.tile
        _, k, v, _ = scope.tensors
        place = (tile.batch, tile.heads)
        p = (x.scale * q[place] @ k.mT - lse[place][..., None]).exp() * _seen(x, until - count, count)
        return p, p * (do[place] @ v.mT - delta[place][..., None]), do[place]

    def dk(value: Tensor, scope: Scope) -> Tensor:
        _, ds, _ = parts(scope)
        return value + scope.x.scale * ds.mT @ q[scope.tile.batch, scope.tile.heads]

    def dv(value: Tensor, scope: Scope) -> Tensor:
        p, _, of_rows = parts(scope)
        return value + p.mT @ of_rows

    return variant.hooked(("dK", dk), ("dV", dv))


def _seen(x: Attention, first: int, count: int) -> Tensor:
    import torch

    i = torch.arange(first, first + count, device=x.q.device)[:, None]
    j = torch.arange(x.n_key, device=x.q.device)[None, :]
    i = i + (x.n_key - x.n_query if x.align == "bottom-right" else 0)
    (left, right) = x.window or (-1, -1)
    seen = (j <= i) if x.causal else (j == j)
    seen = seen & (j >= i - left) if left >= 0 else seen
    return seen & (j <= i + right) if right >= 0 else seen
