"""A problem as a fault has it computed, and the names that formulas use."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import CodeType, MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS
from ..numerics.declared_precision import Tensors
from ..reference import Attention, Tile, evaluate, live_length
from ..reference.problem import kept_share

Made = TypeVar("Made")
Finish = Callable[[Tensors], Tensors]
BUFFERS = ("LSE", "O", "delta")  # what one kernel stores for another

_NAMES = {
    "diagonal": "x.diagonal(tile)",
    "every": "visible(causal=False)",
    # [m, 1] the keys that a row may see, [1, n] the rows that may see a key, by causal and the window; ends exclusive
    "end_key": "(i + reach[1]).clamp(0, n_keys)",
    "first_row": "(j - reach[1] + 1).clamp(0, n_rows)",
    "end_row": "(j - reach[0] + 1).clamp(0, n_rows)",
    # [h or 1, m, 1] the rows that see no key
    "dead": "~valid.any(-1, keepdim=True)",
    "scores": "scale * q @ k.mT",
    "tanh": "(scores / softcap).tanh()",
    "rows": "delta[..., None]",
    "spread": "dP - rows",
    # the scores, -inf where masked; dP before any mask
    "s": "evaluate(x, tile)['S']",
    "dpe": "do @ v.mT",
    # what multiplies V: relu(P + tau / (i + 1)) in the lazy family, P with dropout in the other
    "pe": "z(i + 1).relu() * valid if family == 'lazy' else P if keep is None else P * kept",
    # [h, m, n] by what dropout multiplies
    "kept": "kept_share(x, tile)",
    # [m, n] the keys that a bias by distance does not reach; [w] distances but the last
    "beyond": "i - j >= x.bias.shape[1]",
    "last_bias": "x.bias[tile.heads, -1, None, None] * beyond",
    "nearer": "torch.arange(x.bias.shape[1], device=i.device) < x.bias.shape[1] - 1",
    # [h, 1, 1] the number of each head in its group
    "member": "(torch.arange(x.n_heads, device=i.device)[tile.heads] % (x.n_heads // x.k.shape[1]))[:, None, None]",
    "nan": "float('nan')",
}


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, expression, "eval")


class TileScope:
    """What formulas use of a tile: its right values, that broadcast to [h, m, n]."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    diagonal: Tensor
    buffers: Tensors = MappingProxyType({})

    def __init__(self, x: Attention, tile: Tile) -> None:
        self.x, self.tile = x, tile
        self.i, self.j = x.positions(tile)
        self.n_rows = live_length(x, tile.batch)
        self.n_keys = x.n_key if x.seqlens is None else self.n_rows
        self.altered: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            return getattr(self.x, name)
        if name in ("s", "dpe"):  # many hypotheses ask for them
            return self.x.once(name, self.tile, lambda: self.value(_NAMES[name]))
        return self.value(_NAMES[name])

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def value(self, formula: str) -> Tensor:
        found: Tensor = eval(compiled(formula), FUNCTIONS, self)  # type: ignore[arg-type]
        return found

    # --- which keys are seen

    @cached_property
    def valid(self) -> Tensor:
        """[h or 1, m, n] bool: which keys each row should see."""
        return Attention.valid(self.x, self.tile)

    def visible(self, **options: Any) -> Tensor:
        other = copy(self.x)
        other.__dict__.update(options)
        return Attention.valid(other, self.tile)

    @cached_property
    def reach(self) -> tuple[int, int]:
        """From where to where (exclusive) a row sees keys, relative to its own number."""
        x, everything = self.x, 2 * (self.x.n_query + self.x.n_key)
        is_shifted = x.cu_seqlens_q is None and x.align == "bottom-right"
        shift = x.n_key - x.n_query if is_shifted else 0
        left, right = (everything if size < 0 else size for size in x.window or (-1, -1))
        return shift - left, shift + 1 + (0 if x.causal else right)

    def tile_sees(self, rows: int, keys: int) -> Tensor:
        """[m, n] bool: keys in tiles of which causal shows any."""
        return self.j // keys * keys <= self.diagonal + (rows - 1 - self.i % rows)

    def of_first_key(self, bound: Tensor, n: int) -> Tensor:
        return bound.expand_as(self.j)[0][(self.j // n * n)[0]][None]

    def of_row(self, bound: Tensor, m: int, within: int) -> Tensor:
        at = self.i // m * m + within - self.i[0]
        return bound[at.clamp(0, len(self.i) - 1)[:, 0]]

    # --- what is made otherwise

    def z(self, divisor: Tensor) -> Any:
        return self.P + self.tau[self.tile.heads, None, None] / divisor

    def share(self, tile: int) -> float:
        return 1 / (self.x.n_key + -self.x.n_key % tile)

    def _operands(self, result: str, matrix: Any = None) -> tuple[Tensor, Tensor, float]:
        of = PRODUCTS[result]
        matrix = self["pe" if of.matrix == "P" else of.matrix] if matrix is None else matrix
        matrix = matrix.mT if of.is_transposed else matrix
        return matrix, self[of.other], self.x.scale if of.is_scaled else 1.0

    def product(self, result: str, matrix: Any = None, other: Any = None) -> Tensor:
        matrix, own, scale = self._operands(result, matrix)
        found: Tensor = scale * (matrix @ (own if other is None else other))
        return found

    def by_tiles(self, result: str, other: Tensor, size: int, how: str) -> Tensor:
        """An einsum of [h, tiles of the result, of the sum, row in one, in the other] and [h, tiles, row, d]."""
        matrix, _, scale = self._operands(result)
        matrix = _in_tiles(_in_tiles(matrix, size).mT, size).mT
        made = torch.einsum(how, matrix, _in_tiles(other, size))
        return scale * made.flatten(1, 2)[:, : self[result].shape[-2]]

    def rounded_sum(self, result: str, size: int, dtype: str) -> Tensor:
        matrix, other, scale = self._operands(result)
        total: Tensor = self[result] * 0
        for first in range(0, other.shape[-2], size):
            part = slice(first, first + size)
            total = rounded(total + matrix[..., part] @ other[..., part, :], dtype)
        return scale * total

    # --- what lies beyond the end

    def tail(self, axis: str, size: int, read: str = "") -> dict[str, Tensor]:
        """Beyond the last of "rows" or "keys", up to a whole tile; all but `read` is 0."""
        x, tile, is_of_rows = self.x, self.tile, axis == "rows"
        count, place = -(x.n_query if is_of_rows else x.n_key) % size, (tile.batch, tile.heads)
        # As many rows as keys are added, so that the diagonal stays.
        longer, given = dict[str, Any](memo={}), dict[str, Tensor]()
        for name in ("q", "k", "v", "do"):
            longer[name] = torch.cat([vars(x)[name], self._behind(name, count, read)], 2)
        for name in ("LSE", "delta"):
            if is_of_rows:
                given[name] = self._behind(name.lower(), count, read)[place]
            elif name in vars(self):
                given[name] = vars(self)[name]
        keys, rows = slice(x.n_key, x.n_key + count), slice(x.n_query, x.n_query + count)
        tail = {"rows": rows, "keys": slice(x.n_key)} if is_of_rows else {"keys": keys}
        return evaluate(replace(x, **longer), replace(tile, **tail), given)

    def _behind(self, name: str, count: int, read: str) -> Tensor:
        """[B, H, count, ...]; 0 where it is masked."""
        tensor: Tensor = self.memory[name]
        shape = (*tensor.shape[:2], count, *tensor.shape[3:])
        if name not in read.split(","):
            return torch.zeros(shape, dtype=torch.float64, device=tensor.device)
        at = offsets(shape, tensor.stride()) + tensor.shape[2] * tensor.stride(2)
        return found_at(tensor, at).double().nan_to_num_(0.0)

    # --- what the reference asks of it

    def get(self, name: str, value: Tensor) -> Tensor:
        """`altered` has what is stored under the name."""
        self.formula = vars(self)[name] = found = value
        place = self.tile.batch, self.tile.heads, self.tile.rows
        if name in self.made:
            self.altered[name] = found = self.value(self.made[name])
        if name in self.buffers:
            vars(self)[name] = found = self.buffers[name][place]
            found = self.value(self.made[name]) if name in self.made else found
        if name in self.found:
            found = self.found[name][place]
        vars(self)[name] = found
        return found


def _in_tiles(rows: Tensor, size: int) -> Tensor:
    padded: Any = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % size))
    return padded.unflatten(-2, (-1, size))  # type: ignore[no-any-return]


def rounded(tensor: Tensor, dtype: str) -> Tensor:
    if dtype in _CUT_OFF:
        add, keep = _CUT_OFF[dtype]
        return ((tensor.float().view(torch.int32) + add) & keep).view(torch.float32).double()
    return tensor.to(getattr(torch, dtype)).double()


# Triton's interpreter cuts bfloat16 off.
_CUT_OFF = {"bfloat16, cut off": (0, ~0xFFFF), "tf32": (0x1000, ~0x1FFF)}
FUNCTIONS = {"torch": torch, "evaluate": evaluate, "kept_share": kept_share, "rounded": rounded}

# --- memory


def whole_storage(tensor: Tensor) -> Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def offsets(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    total: Tensor = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(shape, strides, strict=True):
        total = total[..., None] + torch.arange(size).mul(stride)
    return total


def found_at(tensor: Tensor, at: Tensor) -> Tensor:
    """NaN outside its storage."""
    flat, at = whole_storage(tensor), at.to(tensor.device) + int(tensor.storage_offset())
    inside = (at >= 0) & (at < len(flat))
    read = flat[at.clamp(0, len(flat) - 1)]
    if bool(inside.all()):
        return read
    is_float = read.is_floating_point()
    return read.double().masked_fill(~inside, torch.nan) if is_float else read & inside


@dataclass(frozen=True)
class Variant(Attention):
    made: Mapping[str, str] = field(default_factory=dict)  # formulas, by intermediate
    sees: str = "valid"
    # Whole LSE, O or delta that kernels find.
    found: Tensors = field(default_factory=dict)
    # [H] the key head of each query head, where it is another.
    key_heads: Tensor | None = None
    memory: Tensors = field(default_factory=dict)
    finish: Finish | None = None
    # Made once of a tile, for all variants with the same inputs and masks.
    memo: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """The problem that it departs from was checked."""

    def kv_heads(self, tile: Tile) -> Tensor:
        return super().kv_heads(tile) if self.key_heads is None else self.key_heads[tile.heads]

    def valid(self, tile: Tile) -> Tensor:
        return self.once("valid", tile, lambda: TileScope(self, tile).value(self.sees))

    def once(self, name: str, tile: Tile, make: Callable[[], Made]) -> Made:
        key = name, repr(tile)
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]  # type: ignore[no-any-return]

    def on(self, tile: Tile, buffers: Tensors) -> dict[str, Tensor]:
        scope = TileScope(self, tile)
        scope.buffers, scope.valid = buffers, self.valid(tile)
        scope.q, scope.k, scope.v, scope.do = self.tensors(tile)
        return evaluate(self, tile, scope) | scope.altered  # type: ignore[arg-type]


def plain_variant(x: Attention, memory: Tensors) -> Variant:
    fields = Attention.__dataclass_fields__
    return Variant(**{name: getattr(x, name) for name in fields}, memory=memory)
