"""Variant: a way of computing a backward that departs from the specification, and what it gives on a tile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from torch import Tensor

from ..model.intermediates import PRODUCTS
from ..numerics.precision import softcap_slope
from ..reference import Attention, Tile, evaluate
from ..reference.softmax import kept_share

Made = TypeVar("Made")

BUFFERS = ("LSE", "O", "delta")
"""What one kernel stores for another."""
USED = "used "
"""Before the name of one of these: a hook on what is read from it, and not on what was stored."""


@dataclass(frozen=True)
class Seeing(Attention):
    """A problem whose rows may see other keys. What a tile holds is made once: it is small, and read by every hook."""

    rule: Callable[[Tensor, Attention, Tile], Tensor] = lambda valid, x, tile: valid
    """What is seen, from what should be: [h or 1, m, N] bool."""
    _made: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def valid(self, tile: Tile) -> Tensor:
        return self.once("valid", tile, lambda: self.rule(Attention.valid(self, tile), self, tile))

    def tensors(self, tile: Tile) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.once("tensors", tile, lambda: Attention.tensors(self, tile))

    def positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        return self.once("positions", tile, lambda: Attention.positions(self, tile))

    def once(self, name: str, tile: Tile, make: Callable[[], Made]) -> Made:
        key = (name, *place_of(tile))
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made


def place_of(tile: Tile) -> tuple[int, ...]:
    """Where a tile lies: what two of the same place have in common."""
    return tile.batch, tile.heads.start, tile.heads.stop, tile.rows.start, tile.rows.stop


def seeing_all(x: Attention) -> Seeing:
    """The same problem, which makes what a tile holds once."""
    return Seeing(**{name: getattr(x, name) for name in Attention.__dataclass_fields__})


@dataclass
class TileScope:
    """What a hook knows of the tile that is being computed; handed to the reference in place of given values."""

    x: Attention
    tile: Tile
    hooks: tuple[tuple[str, Hook], ...]
    buffers: Mapping[str, Tensor]
    """Whole LSE, O and delta as the kernels find them, where they are known."""
    used: dict[str, Tensor] = field(default_factory=dict)
    """What was computed on so far, by intermediate."""
    altered: dict[str, Tensor] = field(default_factory=dict)
    formula: dict[str, Tensor] = field(default_factory=dict)
    """What the formula gave, before any hook and any buffer."""

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and do of the tile."""
        return self.x.tensors(self.tile)

    @property
    def q(self) -> Tensor:
        return self.tensors[0]

    @property
    def k(self) -> Tensor:
        return self.tensors[1]

    @property
    def v(self) -> Tensor:
        return self.tensors[2]

    @property
    def do(self) -> Tensor:
        return self.tensors[3]

    @property
    def unmasked_dp(self) -> Tensor:
        """[h, m, N] dO V^T."""
        return self.x.once("unmasked dP", self.tile, lambda: self.do @ self.v.mT)

    @property
    def valid(self) -> Tensor:
        """[h or 1, m, N] bool: which keys each row sees."""
        return self.x.valid(self.tile)

    def get(self, name: str, value: Tensor) -> Tensor:
        """The value that the computation goes on with; what is stored under the name is made from `value` alone."""
        self.formula[name] = value
        made = self._hooked(name, value)
        if made is not value:
            self.altered[name] = made
        if name in self.buffers:
            made = self._hooked(name, self.buffers[name][self.tile.batch, self.tile.heads, self.tile.rows])
        self.used[name] = self._hooked(USED + name, made)
        return self.used[name]

    def _hooked(self, name: str, value: Tensor) -> Tensor:
        for of, hook in self.hooks:
            value = hook(value, self) if of == name else value
        return value


Hook = Callable[[Tensor, TileScope], Tensor]
"""Another value of an intermediate on a tile, from the right one."""
Finish = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""What a caller gets, by intermediate, from what was computed; those that stay as they are may be left out."""


@dataclass(frozen=True)
class Variant:
    """One way of computing everything."""

    x: Attention
    """The problem as the kernels read it."""
    hooks: tuple[tuple[str, Hook], ...] = ()
    """(intermediate, hook), applied in their order."""
    share: Tensor | None = None
    """[Hkv, H] how often each query head is added to each key head's gradients; None: each to its own."""
    finishes: tuple[Finish, ...] = ()

    def reading(self, **tensors: Tensor) -> Variant:
        """The same from other tensors."""
        return self.having(**{name: wide(tensor) for name, tensor in tensors.items()})

    def having(self, **options: Any) -> Variant:
        """The same with other options."""
        return replace(self, x=replace(self.x, **options))

    def seeing(self, rule: Callable[[Tensor, Attention, Tile], Tensor]) -> Variant:
        """The same with another rule of which keys a row sees, after whatever rule there is."""
        x = self.x if isinstance(self.x, Seeing) else seeing_all(self.x)
        before = x.rule
        return replace(self, x=replace(x, rule=lambda valid, x, tile: rule(before(valid, x, tile), x, tile)))

    def hooked(self, *hooks: tuple[str, Hook]) -> Variant:
        """The same with further hooks."""
        return replace(self, hooks=(*self.hooks, *hooks))

    def sharing(self, share: Tensor) -> Variant:
        """The same with other sums over the query heads of a key head."""
        return replace(self, share=share)

    def on(self, tile: Tile, buffers: Mapping[str, Tensor], wanted: Collection[str] | None = None) -> dict[str, Tensor]:
        """Every intermediate on a tile, as `reference.evaluate` gives them.

        Args:
            buffers: whole LSE, O and delta, where they are what the kernels found.
            wanted: from `reference.evaluate`.
        """
        scope = TileScope(self.x, tile, self.hooks, buffers)
        values = evaluate(self.x, tile, cast("Mapping[str, Tensor]", scope), wanted)
        return values | scope.altered


@dataclass(frozen=True)
class Remembering(Variant):
    """The same, which makes each evaluation once; of buffers that live as long as it does."""

    wanted: Collection[str] = ()
    """In place of what is wanted of one evaluation alone."""
    _made: dict[tuple[object, ...], dict[str, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def on(self, tile: Tile, buffers: Mapping[str, Tensor], wanted: Collection[str] | None = None) -> dict[str, Tensor]:
        key = (*place_of(tile), *((name, id(buffer)) for name, buffer in buffers.items()))
        if key not in self._made:
            self._made[key] = super().on(tile, buffers, self.wanted)
        return self._made[key]


Alter = Callable[[Variant], Variant]
"""One fault: another way of computing made of a way of computing."""


def hooking(*hooks: tuple[str, Hook]) -> Alter:
    """A fault in intermediates."""
    return lambda variant: variant.hooked(*hooks)


def finishing(finish: Finish) -> Alter:
    """A fault in what a caller gets."""
    return lambda variant: replace(variant, finishes=(*variant.finishes, finish))


def wide(tensor: Tensor) -> Tensor:
    """Floating-point numbers in float64."""
    return tensor.double() if tensor.is_floating_point() else tensor


def pe(scope: TileScope) -> Tensor:
    """[h, m, N] what multiplies V: relu(P + tau / (i + 1)) in the lazy family, P with dropout in the other."""
    p = scope.used["P"]
    if scope.x.family == "lazy":
        assert scope.x.tau is not None
        floor = scope.x.tau[scope.tile.heads, None, None] / (scope.x.positions(scope.tile)[0] + 1.0)
        return (p + floor).relu() * scope.valid
    share = kept_share(scope.x, scope.tile)
    return p if share is None else p * share


def operand(scope: TileScope, name: str) -> Tensor:
    """An input on a tile, or the intermediate that kernels multiply under a name: of P what stands in its place."""
    inputs = dict(zip(("q", "k", "v", "do"), scope.tensors, strict=True))
    return inputs[name] if name in inputs else pe(scope) if name == "P" else scope.used[name]


def product(result: str, scope: TileScope, matrix: Tensor | None = None, other: Tensor | None = None) -> Tensor:
    """O, dQ, dK or dV on a tile by its formula, of another matrix or operand where one is given."""
    of = PRODUCTS[result]
    matrix = operand(scope, of.matrix) if matrix is None else matrix
    made = (matrix.mT if of.is_transposed else matrix) @ (operand(scope, of.other) if other is None else other)
    return scope.x.scale * made if of.is_scaled else made


def slope(scope: TileScope) -> Tensor | float:
    """[h, m, N] the softcap's derivative; 1 without."""
    return softcap_slope(scope.x, scope.q, scope.k)
