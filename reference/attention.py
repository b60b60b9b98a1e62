"""One attention problem, its tiles, and `manual_attention_backward`, which adds the tiles up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from . import lazy, softmax
from .problem import Attention, Tile, live_length

__all__ = ["Attention", "Tile", "evaluate", "live_length", "manual_attention_backward", "tiles"]

FAMILIES = {"lazy": lazy.evaluate, "softmax": softmax.evaluate}
MATRICES = ("P", "dP", "dS")
BY_ROW = ("LSE", "P", "O", "dP", "delta", "dS", "dQ")
BY_KEY = ("dK", "dV")
BY_HEAD = lazy.BY_HEAD | softmax.BY_HEAD
"""By name, the input without which it does not exist."""


def tiles(x: Attention, *, rows: int | None = None, heads: int | None = None) -> Iterator[Tile]:
    """The problem cut into tiles of at most `rows` query rows and `heads` heads, one batch each (None: all of them)."""
    rows, heads = max(x.n_query, 1) if rows is None else rows, x.n_heads if heads is None else heads
    if rows < 1 or heads < 1:
        raise ValueError(f"tiles must have at least one row and one head, got {rows} and {heads}")
    for b in range(x.n_batch):
        for h in range(0, x.n_heads, heads):
            for m in range(0, x.n_query, rows):
                yield Tile(b, slice(h, min(h + heads, x.n_heads)), slice(m, min(m + rows, x.n_query)))


def evaluate(
    x: Attention, tile: Tile, given: Mapping[str, Tensor] | None = None, wanted: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Every intermediate on one tile; dK, dV, dBias and those by head hold what this tile adds to them.

    Args:
        given: values to use in place of the computed ones, by intermediate, in the tile's shapes. Whatever depends on
            one of them is computed from it; the result still holds the computed value of the one given itself. So with
            a kernel's own results given, the result is what each intermediate should be *given its own parents*.
        wanted: the intermediates that may not be left out, of those of which nothing else is made; None for all.

    Returns:
        By name, with h heads, m rows and n keys of the tile: LSE and delta [h, m]; P, dP, dS and the auxiliary S,
        PE, dPE, valid [h, m, n] (lazy also Z); O and dQ [h, m, D]; dK and dV [h, n, D], one for each *query* head;
        dBias in the shape of `bias` cut to the tile; those by head [h].
    """
    return FAMILIES[x.family](x, tile, given or {}, wanted)


def add_keys(x: Attention, results: Mapping[str, Tensor], tile: Tile, values: Mapping[str, Tensor]) -> None:
    """Adds a tile's share of dK and dV [Hkv, N, D] as `evaluate` has it, without a tensor of its own for each tile."""
    q, _, _, do = x.tensors(tile)
    for name, matrix, rows, factor in (("dK", "dS", q, x.scale), ("dV", "PE", do, 1.0)):
        if name in results:
            add_transposed(results[name][:, tile.keys], values[matrix], rows, factor)


def add_transposed(into: Tensor, matrix: Tensor, rows: Tensor, factor: float = 1.0) -> None:
    """Adds factor * matrix^T rows of h heads, [h, m, n] and [h, m, D], to the key heads [g, n, D] that they share."""
    matrix, rows = (tensor.reshape(into.shape[0], -1, tensor.shape[-1]) for tensor in (matrix, rows))
    into.baddbmm_(matrix.mT, rows, alpha=factor)


def manual_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    *,
    family: str = "softmax",
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
    tau: Tensor | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    seqlens: Tensor | None = None,
    align: str = "bottom-right",
    alibi: Tensor | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    keep: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    row_tile: int | None = None,
    head_tile: int | None = None,
    matrices: bool = True,
) -> dict[str, Tensor]:
    """Every intermediate of an attention backward, in float64, each computed by its formula.

    Args:
        q, do: [B, H, M, D] and [B, H, M, Dv]; k, v: [B, Hkv, N, D] and [B, Hkv, N, Dv], any floating dtype.
        family: "softmax" (FlashAttention) or "lazy" (M = N; causal whatever `causal` says).
        scale: of the scores, 1 / sqrt(D) when None.
        bias: softmax: anything that broadcasts to [B, H, M, N]; lazy: [H, W] by distance i - j.
        tau: lazy only, [H].
        window: softmax only, (left, right) keys around the diagonal, both included; -1 for no limit.
        softcap: softmax only, scores become c * tanh(S / c).
        seqlens: [B] live lengths under right padding; needs M = N.
        align: softmax only, where the diagonal of causal, window and alibi ends: "bottom-right" (j = i + N - M) or
            begins: "top-left" (j = i).
        alibi: softmax only, [H] slopes: each score loses slope * |diagonal - j|.
        mask: softmax only, bool, anything that broadcasts to [B, H, M, N]; True where a row attends.
        sinks: softmax only, [H], a logit a head that only the softmax's denominator sees.
        dropout, keep: softmax only, the probability p in [0, 1) and what it kept, bool [B, H, M, N].
        cu_seqlens_q, cu_seqlens_k: softmax only, [n + 1] integers ascending from 0 to M, and to N: packed sequences in
            a batch of 1. The second equals the first where it is None.
        row_tile, head_tile: work on at most so many rows and heads at once; no step then needs more than
            [head_tile, row_tile, N].
        matrices: also keep P, dP and dS, each [B, H, M, N].

    Returns:
        LSE and delta [B, H, M], O [B, H, M, Dv], the gradients of q, k, v, and of bias, tau and sinks where there are
        such, in their shapes, and P, dP, dS with `matrices`.

    Raises:
        ValueError: where shapes do not agree or an option does not exist in the family.

    Source: Dao et al., FlashAttention (2022), appendix B.2, for softmax; the module docstrings hold the formulas.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    x = Attention(
        family, q.double(), k.double(), v.double(), do.double(), scale, causal or family == "lazy",
        _wide(bias), _wide(tau), window, softcap, seqlens,
        align, _wide(alibi), mask, _wide(sinks), dropout, keep, cu_seqlens_q, cu_seqlens_k,
    )  # fmt: skip
    results = _empty_results(x, matrices)
    for tile in tiles(x, rows=row_tile, heads=head_tile):
        add_tile(x, results, tile, evaluate(x, tile))
    return results


def _wide(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.double()


def _empty_results(x: Attention, matrices: bool) -> dict[str, Tensor]:
    rows = (x.n_batch, x.n_heads, x.n_query)
    shapes = {"LSE": rows, "O": (*rows, x.v.shape[-1]), "delta": rows}
    shapes |= {"dQ": x.q.shape, "dK": x.k.shape, "dV": x.v.shape}
    shapes |= {"dBias": x.bias.shape} if x.bias is not None else {}
    shapes |= {name: rows[1:2] for name, needed in BY_HEAD.items() if getattr(x, needed) is not None}
    shapes |= dict.fromkeys(MATRICES, (*rows, x.k.shape[-2])) if matrices else {}
    return {name: x.q.new_zeros(shape) for name, shape in shapes.items()}


def add_tile(x: Attention, results: Mapping[str, Tensor], tile: Tile, values: Mapping[str, Tensor]) -> None:
    """Writes a tile's rows into `results` and adds its share of what is summed over rows; names absent are skipped."""
    for name in results:
        if name in MATRICES:
            results[name][tile.batch, tile.heads, tile.rows, tile.keys] = values[name]
        elif name in BY_ROW:
            results[name][tile.batch, tile.heads, tile.rows] = values[name]
        elif name in BY_KEY:
            results[name][tile.batch, :, tile.keys].index_add_(0, x.kv_heads(tile), values[name])
        elif name in BY_HEAD:
            results[name][tile.heads] += values[name]
        else:
            x.bias_part(results[name], tile).add_(values[name])
