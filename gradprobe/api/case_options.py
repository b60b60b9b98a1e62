"""The case options of `gradprobe check` as types; `python -m tests.api.typed_options` writes this file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch


class Options(TypedDict, total=False):
    """By the names of the command line; None stands for an option that is not given."""

    batch: int | None
    """Batches (default: 2)."""
    heads: int | None
    """Query heads (default: 3)."""
    kv_heads: int | None
    """Key/value heads, a divisor of --heads (default: as many)."""
    seqlen: int | None
    """Query rows and keys (default: 72)."""
    seqlen_q: int | None
    """Query rows."""
    seqlen_k: int | None
    """Keys."""
    head_dim: int | None
    """Head dim of q and k (default: 24)."""
    head_dim_v: int | None
    """Head dim of v (default: --head-dim)."""
    dtype: str | torch.dtype | None
    """float32, float16, bfloat16 (default: float32)."""
    causal: bool | None
    """Causal mask (default: lazy always, softmax not)."""
    align: str | None
    """Corner of the causal diagonal for M != N: bottom-right, top-left (default: bottom-right)."""
    window: str | float | Sequence[float] | None
    """Sliding window, keys to the left and right; -1 for no limit."""
    window_as: str | None
    """How TARGET takes the window: pair or number, LEFT alone (default: number where its parameter is an int)."""
    softcap: float | None
    """Scores become c * tanh(S / c)."""
    scale: float | None
    """Factor of the scores (default: 1 / sqrt(head dim))."""
    bias: bool | None
    """Additive bias and its gradient (default: lazy with, softmax without)."""
    bias_window: int | None
    """Distances that the lazy bias covers (default: 40)."""
    bias_axes: str | None
    """Axes that the softmax bias has, of b, h, m, n; else broadcast (default: hmn)."""
    bias_rank: int | None
    """Number of axes of TARGET's bias, 2 to 4, without leading broadcast ones (default: 4)."""
    alibi: bool | None
    """ALiBi slopes, one a head."""
    mask: str | None
    """Boolean mask, True where a key may be seen: random, dead-rows, padding."""
    mask_axes: str | None
    """Axes that the mask has, as --bias-axes (default: bhmn; of padding bn)."""
    mask_rank: int | None
    """Number of axes of TARGET's mask, as --bias-rank."""
    mask_as: str | None
    """How TARGET takes the mask: boolean or additive, 0 where a key may be seen and -inf elsewhere (default: ..."""
    lse_as: str | None
    """The unit in which a TARGET takes LSE: natural or log2 (default: natural)."""
    sinks: bool | None
    """A learnable sink logit per head, and its gradient."""
    dropout: float | None
    """Probability that dropout zeroes an entry of P; TARGET is given the mask."""
    tau: str | float | Sequence[float] | None
    """Lazy attention's tau, one number or one a head (default: both signs)."""
    seqlens: str | float | Sequence[float] | None
    """Live length of each batch, right padding."""
    cu_seqlens: str | float | Sequence[float] | None
    """Packed sequences: where each begins, and where the last one ends."""
    cu_seqlens_k: str | float | Sequence[float] | None
    """The same of the keys (default: as --cu-seqlens)."""
    seed: int | None
    """Seed of the drawn values (default: 0)."""
    device: str | torch.device | None
    """Where TARGET runs: auto, cpu, cuda (default: auto)."""
    layout: str | Sequence[str] | Mapping[str, str] | None
    """How a tensor, or all, lies, in place of the default layouts: contiguous, blhd, packed, expanded, distinct, ..."""
    runs: str | Sequence[str] | Mapping[str, str] | None
    """A layout to run in, in place of the default ones; may be given several times: contiguous, distinct, ..."""
    block_m: int | None
    """Query rows of a tile, in reported places and for a TARGET that takes it (default: 32)."""
    block_n: int | None
    """Keys of a tile, likewise (default: 16)."""
    inputs: str | os.PathLike[str] | None
    """File of real q, k, v, do (.pt, .npz), which run as they lay, contiguous and distinct."""
    shapes: str | None
    """Order of axes in which TARGET takes q, k, v, dO: bhld, blhd, lbhd, lhd, hld, bld (default: bhld)."""
    implied: str | None
    """What TARGET does by itself and has no parameter for: causal, window, softcap, scale."""
    as_cuda: bool | None
    """In Triton's interpreter, let tensors say that they are on a GPU, for wrappers that ask."""
    arch: str | None
    """Without a GPU, the one that Triton and torch tell TARGET of: sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, ..."""
    untested: bool | None
    """Go on with versions of torch, triton or numpy that gradprobe is not tested with."""
    ranks: int | None
    """Processes that TARGET works in at once, each given its shard (default: it is given all)."""
    shards: str | None
    """What each rank holds: contiguous, zigzag, striped, heads, or FILE.py:FUNCTION (default: contiguous)."""
    pattern: str | None
    """Pattern of the drawn values: normal, small, large, wide, negative, positive, offset, lowrank, dyadic ..."""
    dots: str | None
    """Arithmetic of float32 dots: ieee, bf16x6, tf32x3, bf16x3, tf32 (default: what the backend does)."""
    repeat: int | None
    """Runs of each layout, compared with one another (default: 1)."""
    poison: bool | None
    """Fill what TARGET allocates with NaN, in every second run with 7.0 (default: neither)."""
    inplace: str | Sequence[str] | Mapping[str, str] | None
    """An input that TARGET may write over (default: none)."""
    recover: bool | None
    """Recover P, dP, delta and dS of a TARGET that exposes gradients only (default: yes)."""
    strict: bool | None
    """Count warnings as mismatches, and sums that a kernel keeps in 16 bits (default: no)."""
