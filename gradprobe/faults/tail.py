"""M3: rows or keys beyond the end of a tensor are read, those of the next head, and not masked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..reference import Attention
from .hypothesis import Hypothesis, Observed, making
from .memory import offsets, readable, whole_storage
from .variant import Alter, TileScope, hooking

_SIZES = (16, 32, 64, 128)


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Rows beyond the end that reach dK and dV, and keys beyond it that reach dQ; some operands are masked to 0."""
    case = seen.case
    plain = all(getattr(seen.x, name) is None for name in ("bias", "mask", "keep", "seqlens", "cu_seqlens_q", "alibi"))
    if not plain or seen.x.family == "lazy" or seen.x.softcap is not None:
        return
    for size in dict.fromkeys((case.block_m, case.block_n, *_SIZES)):
        rows, keys = -case.seqlen_q % size, -case.seqlen_k % size
        beyond = f"beyond the last one, up to a whole tile of {size},"
        for read in (("q", "do", "lse", "delta"), ("q", "do"), ("q",)) if rows else ():
            summary = f"rows {beyond} are read from the next head and added to dK and dV"
            alter, changes, fix = (
                _rows(seen, rows, read),
                frozenset({"dK", "dV"}),
                "mask the rows by the length: offs_m < n_ctx",
            )
            yield Hypothesis("tail/q", "M3", summary, alter, changes, fix, tensor="q")
        for read in (("k", "v"), ("k",)) if keys else ():
            summary = f"keys {beyond} are read from the next head and added to dQ"
            alter, changes, fix = (
                _keys(seen, keys, read),
                frozenset({"dQ"}),
                "mask the keys by the length: offs_n < n_ctx",
            )
            yield Hypothesis("tail/k", "M3", summary, alter, changes, fix, tensor="k")
        if keys:
            summary, counted = f"keys {beyond} count with a score of 0", partial(_counted, keys)
            fix = "mask the scores by the length: tl.where(offs_n < n_ctx, s, -inf)"
            yield making("tail/scores", "M3", summary, {"LSE": counted}, also=("P", "O"), fix=fix)


def _behind(seen: Observed, name: str, count: int, read: tuple[str, ...]) -> Tensor:
    """[B, H, count, ...] what lies behind the last row of each head; 0 where it is masked."""
    tensor = readable(seen)[name]
    shape = (*tensor.shape[:2], count, *tensor.shape[3:])
    if name not in read:
        return tensor.new_zeros(shape).double()
    flat = whole_storage(tensor)
    at = offsets(shape, tensor.stride()) + int(tensor.storage_offset()) + tensor.shape[2] * tensor.stride(2)
    found = flat[at.clamp(0, len(flat) - 1).to(tensor.device)].double()
    return found.masked_fill((at >= len(flat)).to(tensor.device), 0.0)


def _rows(seen: Observed, count: int, read: tuple[str, ...]) -> Alter:
    """dK and dV with rows beyond the end added."""
    q, do, lse, delta = (_behind(seen, name, count, read) for name in ("q", "do", "lse", "delta"))

    def p(scope: TileScope) -> Tensor:
        """P of those rows, which see what a causal mask and a window let them."""
        x, place = scope.x, (scope.tile.batch, scope.tile.heads)
        sees = _sees(x, slice(x.n_query, x.n_query + count), slice(0, x.n_key))
        return (x.scale * q[place] @ scope.k.mT - lse[place][..., None]).exp() * sees

    def dk(value: Tensor, scope: TileScope) -> Tensor:
        place = (scope.tile.batch, scope.tile.heads)
        ds = p(scope) * (do[place] @ scope.v.mT - delta[place][..., None])
        return value + scope.x.scale * ds.mT @ q[place]

    def dv(value: Tensor, scope: TileScope) -> Tensor:
        return value + p(scope).mT @ do[scope.tile.batch, scope.tile.heads]

    return hooking(("dK", dk), ("dV", dv))


def _keys(seen: Observed, count: int, read: tuple[str, ...]) -> Alter:
    """dQ with keys beyond the end added."""
    k, v = (_behind(seen, name, count, read) for name in ("k", "v"))

    def dq(value: Tensor, scope: TileScope) -> Tensor:
        x, tile, used = scope.x, scope.tile, scope.used
        of_heads = k[tile.batch, x.kv_heads(tile)]
        sees = _sees(x, tile.rows, slice(x.n_key, x.n_key + count))
        p = (x.scale * scope.q @ of_heads.mT - used["LSE"][..., None]).exp() * sees
        ds = p * (scope.do @ v[tile.batch, x.kv_heads(tile)].mT - used["delta"][..., None])
        return value + x.scale * ds @ of_heads

    return hooking(("dQ", dq))


def _counted(count: int, value: Tensor, scope: TileScope) -> Tensor:
    """LSE with keys beyond the end, which a load pads with 0 as it does their values."""
    seen = _sees(scope.x, scope.tile.rows, slice(scope.x.n_key, scope.x.n_key + count))
    return value.logaddexp(seen.sum(-1).to(value).log())


def _sees(x: Attention, rows: slice, keys: slice) -> Tensor:
    """[rows, keys] bool, by causal and the window alone."""
    i = torch.arange(rows.start, rows.stop, device=x.q.device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=x.q.device)[None, :]
    i = i + (x.n_key - x.n_query if x.align == "bottom-right" else 0)
    (left, right) = x.window or (-1, -1)
    seen = (j <= i) if x.causal else (j == j) | (i == i)
    seen = seen & (j >= i - left) if left >= 0 else seen
    return seen & (j <= i + right) if right >= 0 else seen
