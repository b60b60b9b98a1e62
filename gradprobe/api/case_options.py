"""The case options of `gradprobe check` as types; `python -m tests.api.typed_options` writes this file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch


class Options(TypedDict, total=False):
    """As `gradprobe check --help-all` explains them; None stands for an option that is not given."""

    batch: int | None
    heads: int | None
    kv_heads: int | None
    seqlen: int | None
    seqlen_q: int | None
    seqlen_k: int | None
    head_dim: int | None
    head_dim_v: int | None
    dtype: str | torch.dtype | None
    causal: bool | None
    align: str | None
    window: str | float | Sequence[float] | None
    window_as: str | None
    softcap: float | None
    scale: float | None
    bias: bool | None
    bias_window: int | None
    bias_axes: str | None
    bias_rank: int | None
    alibi: bool | None
    mask: str | None
    mask_axes: str | None
    mask_rank: int | None
    mask_as: str | None
    lse_as: str | None
    sinks: bool | None
    dropout: float | None
    tau: str | float | Sequence[float] | None
    seqlens: str | float | Sequence[float] | None
    cu_seqlens: str | float | Sequence[float] | None
    cu_seqlens_k: str | float | Sequence[float] | None
    seed: int | None
    device: str | torch.device | None
    layout: str | Sequence[str] | Mapping[str, str] | None
    runs: str | Sequence[str] | Mapping[str, str] | None
    block_m: int | None
    block_n: int | None
    inputs: str | os.PathLike[str] | None
    shapes: str | None
    implied: str | None
    as_cuda: bool | None
    arch: str | None
    untested: bool | None
    ranks: int | None
    shards: str | None
    pattern: str | None
    dots: str | None
    repeat: int | None
    poison: bool | None
    inplace: str | Sequence[str] | Mapping[str, str] | None
    recover: bool | None
    strict: bool | None
