"""Attention: the tensors and options of one problem, in float64. Tile: the part of it that is worked on at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """One batch, some heads, some query rows."""

    batch: int
    heads: slice
    rows: slice


@dataclass(frozen=True)
class Attention:
    """One attention problem. Shapes and options as in `manual_attention_backward`; every tensor float64.

    Raises:
        ValueError: where shapes do not agree or an option does not exist in the family.
    """

    family: str
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    scale: float
    causal: bool
    bias: Tensor | None = None
    tau: Tensor | None = None
    window: tuple[int, int] | None = None
    softcap: float | None = None
    seqlens: Tensor | None = None

    def __post_init__(self) -> None:
        if self.family not in ("lazy", "softmax"):
            raise ValueError(f"family must be lazy or softmax, got {self.family!r}")
        for name in ("q", "k", "v", "do"):
            if getattr(self, name).dim() != 4:
                raise ValueError(f"{name} must have four axes, [B, H, L, D], got {_shape(getattr(self, name))}")
        self._check_heads()
        self._check_lengths()
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap must be above 0, got {self.softcap}")
        self._check_lazy() if self.family == "lazy" else self._check_softmax()

    def _check_heads(self) -> None:
        (batch, heads, queries, dim), (_, kv_heads, keys, _) = self.q.shape, self.k.shape
        value_dim = self.v.shape[3]
        expected = {
            "k": (batch, kv_heads, keys, dim), "v": (batch, kv_heads, keys, value_dim),
            "do": (batch, heads, queries, value_dim),
        }  # fmt: skip
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"{name} must be {list(shape)} beside q {_shape(self.q)}, got {_shape(getattr(self, name))}"
                )
        if kv_heads == 0 or heads % kv_heads:
            raise ValueError(f"the heads of k must divide those of q, got {kv_heads} and {heads}")

    def _check_lengths(self) -> None:
        if self.seqlens is None:
            return
        if self.n_query != self.n_key:
            raise ValueError(
                f"seqlens (right padding) needs as many keys as query rows, got {self.n_key} and {self.n_query}"
            )
        if self.seqlens.shape != (self.n_batch,):
            raise ValueError(f"seqlens must be [B] = [{self.n_batch}], got {_shape(self.seqlens)}")
        if bool(((self.seqlens < 0) | (self.seqlens > self.n_query)).any()):
            raise ValueError(f"seqlens must lie in 0 to {self.n_query}, got {self.seqlens.tolist()}")

    def _check_lazy(self) -> None:
        if self.tau is None or self.tau.shape != (self.n_heads,):
            raise ValueError(f"the lazy family needs tau [H] = [{self.n_heads}], got {_shape(self.tau)}")
        if self.bias is not None and (
            self.bias.dim() != 2 or self.bias.shape[0] != self.n_heads or not self.bias.shape[1]
        ):
            raise ValueError(f"lazy bias must be [H, W] with H = {self.n_heads} and W > 0, got {_shape(self.bias)}")
        if self.window is not None or self.softcap is not None or not self.causal:
            raise ValueError("the lazy family is always causal and has neither window nor softcap")
        if self.q.shape != self.k.shape:
            raise ValueError(f"the lazy family needs q and k of one shape, got {_shape(self.q)} and {_shape(self.k)}")

    def _check_softmax(self) -> None:
        if self.tau is not None:
            raise ValueError("the softmax family has no tau")
        full = (self.n_batch, self.n_heads, self.n_query, self.n_key)
        if self.bias is not None:
            shape = (1,) * (4 - self.bias.dim()) + tuple(self.bias.shape)
            if len(shape) > 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
                raise ValueError(f"bias must broadcast to [B, H, M, N] = {list(full)}, got {_shape(self.bias)}")

    @property
    def n_batch(self) -> int:
        return self.q.shape[0]

    @property
    def n_heads(self) -> int:
        return self.q.shape[1]

    @property
    def n_query(self) -> int:
        return self.q.shape[2]

    @property
    def n_key(self) -> int:
        return self.k.shape[2]

    def kv_heads(self, tile: Tile) -> Tensor:
        """[h] the key/value head that each of the tile's query heads reads."""
        group = self.n_heads // self.k.shape[1]
        return torch.arange(tile.heads.start, tile.heads.stop, device=self.q.device) // group

    def tensors(self, tile: Tile) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [h, m, D], k [h, N, D], v [h, N, Dv] and do [h, m, Dv] of a tile; a NaN in the padding reads as 0."""
        rows, keys = (tile.batch, tile.heads, tile.rows), self.kv_heads(tile)
        q, k, v, do = self.q[rows], self.k[tile.batch, keys], self.v[tile.batch, keys], self.do[rows]
        if self.seqlens is None:
            return q, k, v, do
        i, j = self.positions(tile)
        dead_row, dead_key = i >= live_length(self, tile.batch), (j >= live_length(self, tile.batch)).mT
        return _live(q, dead_row), _live(k, dead_key), _live(v, dead_key), _live(do, dead_row)

    def positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """i [m, 1] and j [1, N]."""
        i = torch.arange(tile.rows.start, tile.rows.stop, device=self.q.device)
        return i[:, None], torch.arange(self.n_key, device=self.q.device)[None, :]

    def valid(self, tile: Tile) -> Tensor:
        """[m, N] bool: which keys each row sees. Causal and window are aligned to the bottom right corner."""
        i, j = self.positions(tile)
        length = live_length(self, tile.batch)
        keep = (i < length) & (j < length) if self.seqlens is not None else (i >= 0) & (j >= 0)
        diagonal = i + self.n_key - self.n_query
        if self.causal:
            keep = keep & (j <= diagonal)
        left, right = self.window or (-1, -1)
        keep = keep & (j >= diagonal - left) if left >= 0 else keep
        return keep & (j <= diagonal + right) if right >= 0 else keep

    def bias_part(self, like_bias: Tensor, tile: Tile) -> Tensor:
        """The part of a tensor in bias's shape that belongs to a tile: [h, W] for lazy, else what broadcasts to it."""
        if self.family == "lazy":
            return like_bias[tile.heads]
        full = like_bias[(None,) * (4 - like_bias.dim())]
        b, h, m = full.shape[:3]
        return full[
            tile.batch if b > 1 else 0, tile.heads if h > 1 else slice(None), tile.rows if m > 1 else slice(None)
        ]


def _live(tensor: Tensor, dead: Tensor) -> Tensor:
    return tensor.masked_fill(dead & ~tensor.isfinite(), 0.0)


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)


def live_length(x: Attention, batch: int) -> int:
    """The number of live rows of a batch."""
    return x.n_query if x.seqlens is None else int(x.seqlens[batch])


@dataclass
class Steps:
    """Notes each computed intermediate, and hands on the given value in its place where there is one."""

    given: Mapping[str, Tensor]
    computed: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        self.computed[name] = value
        return self.given.get(name, value)
