"""Variant: a problem as a fault has it computed. TileScope: the names that formulas of faults may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import CodeType
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS
from ..reference import Attention, Tile, evaluate, live_length
from ..reference.problem import kept_share

Made = TypeVar("Made")
Finish = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""What a caller gets, by intermediate, from what was computed; those that stay as they are may be left out."""
BUFFERS = ("LSE", "O", "delta")
"""What one kernel stores for another."""

_NAMES = {
    "diagonal": "x.diagonal(tile)",
    "every": "visible(causal=False)",
    "first_key": "(i + reach[0]).clamp(0, n_keys)",  # [m, 1] the keys that a row may see, by causal and the window
    "end_key": "(i + reach[1]).clamp(0, n_keys)",  # [m, 1] exclusive
    "first_row": "(j - reach[1] + 1).clamp(0, n_rows)",  # [1, n] the rows that may see a key
    "end_row": "(j - reach[0] + 1).clamp(0, n_rows)",
    "dead": "~valid.any(-1, keepdim=True)",  # [h or 1, m, 1] the rows that see no key
    "scores": "scale * q @ k.mT",
    "tanh": "(scores / softcap).tanh()",
    "rows": "delta[..., None]",
    "spread": "dP - delta[..., None]",
    "s": "evaluate(x, tile)['S']",  # the scores, -inf where masked
    "dpe": "do @ v.mT",  # before any mask
    # what multiplies V: relu(P + tau / (i + 1)) in the lazy family, P with dropout in the other
    "pe": "z(i + 1).relu() * valid if family == 'lazy' else P if keep is None else P * kept",
    "kept": "kept_share(x, tile)",  # [h, m, n] by what dropout multiplies
    "last_bias": "x.bias[tile.heads, -1, None, None] * (i - j >= x.bias.shape[1])",
    "nan": "float('nan')",
}
"""What formulas call by a name."""


@cache
def compiled(expression: str) -> CodeType:
    """An expression, parsed once."""
    return compile(expression, expression, "eval")


class TileScope:
    """What a formula may use of a tile; all about its entries broadcasts to [h, m, n].

    Its names are where the entries lie, the inputs of the tile, what was computed on so far, and the options of the
    problem; the intermediate that is made otherwise has its right value, or what was stored of it; `formula` is what it
    is computed to. The reference takes it for given values.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    diagonal: Tensor
    dpe: Tensor

    def __init__(self, x: Attention, tile: Tile, buffers: Mapping[str, Tensor] | None = None) -> None:
        """
        Args:
            buffers: whole LSE, O and delta as the kernels find them, where they are known.
        """
        self.x, self.tile, self._buffers = x, tile, buffers or {}
        self.i, self.j = x.positions(tile)
        self.n_rows = live_length(x, tile.batch)
        self.n_keys = x.n_key if x.seqlens is None else self.n_rows
        self.altered: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("s", "dpe"):  # many hypotheses ask for them
            return self.x.once(name, self.tile, lambda: self.value(_NAMES[name]))
        return self.value(_NAMES[name]) if name in _NAMES else getattr(self.x, name)

    def __getitem__(self, name: str) -> Any:
        found = getattr(self, name, self)
        if found is self:
            raise KeyError(name)
        return found

    def value(self, formula: str) -> Tensor:
        """What a formula gives here."""
        found: Tensor = eval(compiled(formula), {**FUNCTIONS}, self)  # type: ignore[arg-type]
        return found

    # --- which keys are seen

    @cached_property
    def valid(self) -> Tensor:
        """[h or 1, m, n] bool: which keys each row should see."""
        return Attention.valid(self.x, self.tile)

    def visible(self, **options: Any) -> Tensor:
        """What is seen by other options, also where the family has no others."""
        other = copy(self.x)
        other.__dict__.update(options)
        return Attention.valid(other, self.tile)

    @cached_property
    def reach(self) -> tuple[int, int]:
        """From where to where (exclusive) a row sees keys, from its own number on, by causal and the window alone."""
        x, everything = self.x, 2 * (self.x.n_query + self.x.n_key)
        is_shifted = x.cu_seqlens_q is None and x.align == "bottom-right"
        shift = x.n_key - x.n_query if is_shifted else 0
        left, right = x.window or (-1, -1)
        right = 0 if x.causal else right
        return shift - (everything if left < 0 else left), shift + 1 + (everything if right < 0 else right)

    def tile_sees(self, rows: int, keys: int) -> Tensor:
        """[m, n] bool: keys whose tile has any that a causal mask shows to the last row of this row's tile."""
        return self.j // keys * keys <= self.diagonal + (rows - 1 - self.i % rows)

    def of_first_key(self, bound: Tensor, n: int) -> Tensor:
        """Each key's bound on rows, taken at the first key of its tile."""
        return bound.expand_as(self.j)[0][(self.j // n * n)[0]][None]

    def of_row(self, bound: Tensor, m: int, within: int) -> Tensor:
        """Each row's bound on keys, taken at a row of its tile."""
        at = self.i // m * m + within - self.i[0]
        return bound[at.clamp(0, len(self.i) - 1)[:, 0]]

    # --- what is made otherwise

    def z(self, divisor: Tensor) -> Tensor:
        """[h, m, n] P + tau / (i + 1) of the lazy family, or over another divisor."""
        assert self.x.tau is not None
        found: Tensor = self.P + self.x.tau[self.tile.heads, None, None] / divisor
        return found

    def share(self, tile: int) -> float:
        """Of one key in all, and those that fill its last tile."""
        return 1 / (self.x.n_key + -self.x.n_key % tile)

    def of_member(self, member: int) -> Tensor:
        """[h, 1, 1] bool: the heads that are one member of their group."""
        heads = torch.arange(self.tile.heads.start, self.tile.heads.stop, device=self.i.device)
        return (heads % (self.x.n_heads // self.x.k.shape[1]) == member)[:, None, None]

    def _operands(self, result: str) -> tuple[Tensor, Tensor]:
        """What kernels multiply to O, dQ, dK or dV: of P what stands in its place, transposed as the result needs."""
        of = PRODUCTS[result]
        matrix, other = (self["pe" if name == "P" else name] for name in (of.matrix, of.other))
        return matrix.mT if of.is_transposed else matrix, other

    def _scaled(self, result: str, made: Tensor) -> Tensor:
        return self.x.scale * made if PRODUCTS[result].is_scaled else made

    def product(self, result: str, matrix: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        """O, dQ, dK or dV by its formula, of another matrix or operand where one is given."""
        own, of_sum = self._operands(result)
        if matrix is not None:
            own = matrix.mT if PRODUCTS[result].is_transposed else matrix
        return self._scaled(result, own @ (of_sum if other is None else other))

    def by_tiles(self, result: str, other: Tensor, size: int, how: str) -> Tensor:
        """A gradient summed in square tiles in another way, with an operand.

        Args:
            how: what is multiplied of the matrix [h, tiles of the result, of the sum, row in the one, in the other] and
                of the operand [h, tiles, row in it, d].
        """
        matrix, rows = self._operands(result)[0], self[result].shape[-2]
        matrix = _in_tiles(_in_tiles(matrix, size).mT, size).mT
        made = torch.einsum(how, matrix, _in_tiles(other, size))
        return self._scaled(result, made.flatten(1, 2)[:, :rows])

    def rounded_sum(self, result: str, size: int, dtype: str) -> Tensor:
        """A gradient whose sum is rounded after each tile that is added, before the scale."""
        matrix, other = self._operands(result)
        total: Tensor = self[result] * 0
        for first in range(0, other.shape[-2], size):
            part = slice(first, first + size)
            total = rounded(total + matrix[..., part] @ other[..., part, :], dtype)
        return self._scaled(result, total)

    # --- what lies beyond the end

    def shown_beyond(self, rows: int | None = None, keys: int | None = None) -> Tensor:
        """[rows or m, keys or n] bool: what a causal mask and a window show of rows, or keys, beyond the end."""
        i, j = self.i, self.j
        if rows is not None:
            i = torch.arange(rows, device=i.device)[:, None] + self.x.n_query
        if keys is not None:
            j = torch.arange(keys, device=j.device) + self.x.n_key
        return (j >= i + self.reach[0]) & (j < i + self.reach[1])

    def of_rows_beyond(self, size: int, read: str) -> tuple[Tensor, Tensor]:
        """What rows beyond the last one, up to a whole tile, add to dK and dV."""
        count, place = -self.x.n_query % size, (self.tile.batch, self.tile.heads)
        q, do, lse, delta = (self._behind(name, count, read)[place] for name in ("q", "do", "lse", "delta"))
        p = (self.x.scale * q @ self.k.mT - lse[..., None]).exp() * self.shown_beyond(rows=count)
        ds = p * (do @ self.v.mT - delta[..., None])
        return self.x.scale * ds.mT @ q, p.mT @ do

    def of_keys_beyond(self, size: int, read: str) -> Tensor:
        """What keys beyond the last one, up to a whole tile, add to dQ."""
        count, place = -self.x.n_key % size, (self.tile.batch, self.x.kv_heads(self.tile))
        k, v = (self._behind(name, count, read)[place] for name in ("k", "v"))
        p = (self.x.scale * self.q @ k.mT - self.LSE[..., None]).exp() * self.shown_beyond(keys=count)
        added: Tensor = self.x.scale * (p * (self.do @ v.mT - self.delta[..., None])) @ k
        return added

    def _behind(self, name: str, count: int, read: str) -> Tensor:
        """[B, H, count, ...] what lies behind the last row of each head; 0 where it is masked."""
        tensor: Tensor = self.memory[name]
        shape, step = (*tensor.shape[:2], count, *tensor.shape[3:]), tensor.stride(2)
        there = found_at(tensor, offsets(shape, tensor.stride()) + tensor.shape[2] * step).double()
        return there.nan_to_num_(0.0) if name in read.split(",") else there.zero_()

    # --- what the reference asks of it

    def get(self, name: str, value: Tensor) -> Tensor:
        """The value that the computation goes on with; what is stored under the name is made from `value` alone."""
        self.formula = value
        found, place = value, (self.tile.batch, self.tile.heads, self.tile.rows)
        if name in self.made:
            vars(self)[name] = value
            self.altered[name] = found = self.value(self.made[name])
        if name in self._buffers:
            vars(self)[name] = found = self._buffers[name][place]
            found = self.value(self.made[name]) if name in self.made else found
        if name in self.found:
            found = self.found[name][place]
        vars(self)[name] = found
        return found


def _in_tiles(rows: Tensor, size: int) -> Tensor:
    """[h, ..., rows, d] -> [h, ..., tiles, size, d], filled up with 0."""
    tiles: Tensor = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % size)).unflatten(-2, (-1, size))
    return tiles


# --- functions that formulas call


def rounded(tensor: Tensor, dtype: str) -> Tensor:
    """A tensor in float64 with the bits of a narrower dtype."""
    if dtype in _CUT_OFF:
        add, keep = _CUT_OFF[dtype]
        return ((tensor.float().view(torch.int32) + add) & keep).view(torch.float32).double()
    return tensor.to(getattr(torch, dtype)).double()


# Triton's interpreter cuts bfloat16 off.
_CUT_OFF = {"bfloat16, cut off": (0, ~0xFFFF), "tf32": (0x1000, ~0x1FFF)}


def without_last(of_distances: Tensor) -> Tensor:
    """A bias, or its gradient, that is 0 at the last distance."""
    kept = of_distances.clone()
    kept[:, -1] = 0.0
    return kept


def with_all_beyond(of_distances: Tensor, ds: Tensor, distance: Tensor) -> Tensor:
    """A bias's gradient whose last distance has the sum of all beyond, too."""
    added = of_distances.clone()
    added[:, -1] += (ds * (distance >= added.shape[1])).sum((-2, -1))
    return added


FUNCTIONS = {each.__name__: each for each in (evaluate, kept_share, rounded, without_last, with_all_beyond)}
"""What formulas call beside the methods of their scope."""

# --- memory


def whole_storage(tensor: Tensor) -> Tensor:
    """Everything in a tensor's storage, as one row."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def offsets(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """How far each element of a shape lies from the first."""
    total: Tensor = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(shape, strides, strict=True):
        total = total[..., None] + torch.arange(size).mul(stride)
    return total


def found_at(tensor: Tensor, at: Tensor) -> Tensor:
    """What lies so far from a tensor's first element; NaN outside its storage."""
    flat, at = whole_storage(tensor), at.to(tensor.device) + int(tensor.storage_offset())
    inside = (at >= 0) & (at < len(flat))
    read = flat[at.clamp(0, len(flat) - 1)]
    if bool(inside.all()):
        return read
    return read.double().masked_fill(~inside, torch.nan) if read.is_floating_point() else read & inside


@dataclass(frozen=True)
class Variant(Attention):
    """A problem, and what is computed otherwise. What a tile holds is made once: every hypothesis reads it."""

    made: Mapping[str, str] = field(default_factory=dict)
    """By intermediate, the formula that it is made by."""
    sees: str = "valid"
    """Which keys rows see."""
    found: Mapping[str, Tensor] = field(default_factory=dict)
    """Whole LSE, O or delta that kernels find in place of what was stored."""
    key_heads: Tensor | None = None
    """[H] the key head of each query head, where it is another."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """The tensors that kernels read, as they lie."""
    finish: Finish | None = None
    memo: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)
    """What was made once; of all variants that have their inputs and masks in common."""

    def __post_init__(self) -> None:
        """The problem that it departs from was checked."""

    def kv_heads(self, tile: Tile) -> Tensor:
        return super().kv_heads(tile) if self.key_heads is None else self.key_heads[tile.heads]

    def valid(self, tile: Tile) -> Tensor:
        return self.once("valid", tile, lambda: TileScope(self, tile).value(self.sees))

    def once(self, name: str, tile: Tile, make: Callable[[], Made]) -> Made:
        key = name, tile.batch, tile.heads.start, tile.heads.stop, tile.rows.start, tile.rows.stop
        if key not in self.memo:
            self.memo[key] = make()
        made: Made = self.memo[key]
        return made

    def on(self, tile: Tile, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every intermediate on a tile, as `reference.evaluate` gives them.

        Args:
            buffers: whole LSE, O and delta, where they are what the kernels found.
        """
        scope = TileScope(self, tile, buffers)
        scope.valid = self.valid(tile)
        scope.q, scope.k, scope.v, scope.do = self.tensors(tile)
        return evaluate(self, tile, scope) | scope.altered  # type: ignore[arg-type]


def plain_variant(x: Attention, memory: Mapping[str, Tensor]) -> Variant:
    """A problem as it should be computed."""
    return Variant(**{name: getattr(x, name) for name in Attention.__dataclass_fields__}, memory=memory)
