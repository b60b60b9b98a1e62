"""Variant: a way of computing a backward that departs from the specification, and what it gives on a tile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from torch import Tensor

from ..model.intermediates import PRODUCTS
from ..reference import Attention, Tile, evaluate
from ..reference.softmax import kept_share

Made = TypeVar("Made")
Rule = Callable[[Tensor, Attention, Tile], Tensor]
"""What is seen, [h or 1, m, N] bool, from what should be."""

BUFFERS = ("LSE", "O", "delta")
"""What one kernel stores for another."""
USED = "used "
"""Before the name of one of these: a hook on what is read from it, and not on what was stored."""
_INPUTS = ("q", "k", "v", "do")


@dataclass(frozen=True)
class RuledAttention(Attention):
    """A problem whose rows may see other keys. What a tile holds is made once: every hypothesis reads it."""

    rule: Rule = lambda valid, x, tile: valid
    _made: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def valid(self, tile: Tile) -> Tensor:
        return self.once("valid", tile, lambda: self.rule(Attention.valid(self, tile), self, tile))

    def tensors(self, tile: Tile) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.once("tensors", tile, lambda: Attention.tensors(self, tile))

    def positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        return self.once("positions", tile, lambda: Attention.positions(self, tile))

    def once(self, name: str, tile: Tile, make: Callable[[], Made]) -> Made:
        key = (name, tile.batch, tile.heads.start, tile.heads.stop, tile.rows.start, tile.rows.stop)
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made


def seeing_all(x: Attention) -> RuledAttention:
    """The same problem, which makes what a tile holds once."""
    return RuledAttention(**{name: getattr(x, name) for name in Attention.__dataclass_fields__})


@dataclass
class TileScope:
    """What a hook knows of the tile that is being computed; handed to the reference in place of given values.

    Its attributes q, k, v, do, P, dP, delta and so on are the inputs of the tile and what was computed on so far.
    """

    x: Attention
    tile: Tile
    hooks: tuple[tuple[str, Hook], ...]
    buffers: Mapping[str, Tensor]
    """Whole LSE, O and delta as the kernels find them, where they are known."""
    used: dict[str, Tensor] = field(default_factory=dict)
    altered: dict[str, Tensor] = field(default_factory=dict)
    formula: dict[str, Tensor] = field(default_factory=dict)
    """What the formula gave, before any hook and any buffer."""

    def __getattr__(self, name: str) -> Tensor:
        if name in _INPUTS:
            return self.x.tensors(self.tile)[_INPUTS.index(name)]
        return self.used[name]

    @property
    def place(self) -> tuple[int, slice]:
        """The batch and the heads."""
        return self.tile.batch, self.tile.heads

    @property
    def i(self) -> Tensor:
        """[m, 1] the numbers of the rows."""
        return self.x.positions(self.tile)[0]

    @property
    def j(self) -> Tensor:
        """[1, N] the numbers of the keys."""
        return self.x.positions(self.tile)[1]

    @cached_property
    def valid(self) -> Tensor:
        """[h or 1, m, N] bool: which keys each row sees."""
        return self.x.valid(self.tile)

    @property
    def s(self) -> Tensor:
        """[h, m, N] the scores of the lazy family, -inf where masked."""
        return self.x.once("S", self.tile, lambda: evaluate(self.x, self.tile)["S"])

    @property
    def dpe(self) -> Tensor:
        """[h, m, N] dO V^T, before any mask."""
        return self.x.once("unmasked dP", self.tile, lambda: self.do @ self.v.mT)

    @property
    def spread(self) -> Tensor:
        """[h, m, N] dP - delta."""
        return self.dP - self.delta[..., None]

    def z(self, divisor: Tensor | None = None) -> Tensor:
        """[h, m, N] P + tau / (i + 1) of the lazy family, or over another divisor."""
        assert self.x.tau is not None
        floor = self.x.tau[self.tile.heads, None, None] / (self.i + 1.0 if divisor is None else divisor)
        return self.P + floor

    @property
    def pe(self) -> Tensor:
        """[h, m, N] what multiplies V: relu(P + tau / (i + 1)) in the lazy family, P with dropout in the other."""
        if self.x.family == "lazy":
            return self.z().relu() * self.valid
        share = kept_share(self.x, self.tile)
        return self.P if share is None else self.P * share

    def operand(self, name: str) -> Tensor:
        """An input, or the intermediate that kernels multiply under a name: of P what stands in its place."""
        return self.pe if name == "P" else cast("Tensor", getattr(self, name))

    def product(self, result: str, matrix: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        """O, dQ, dK or dV by its formula, of another matrix or operand where one is given."""
        of = PRODUCTS[result]
        matrix = self.operand(of.matrix) if matrix is None else matrix
        made = (matrix.mT if of.is_transposed else matrix) @ (self.operand(of.other) if other is None else other)
        return self.x.scale * made if of.is_scaled else made

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

    def seeing(self, rule: Rule) -> Variant:
        """The same with another rule of which keys a row sees, after whatever rule there is."""
        x = self.x if isinstance(self.x, RuledAttention) else seeing_all(self.x)
        before = x.rule
        return replace(self, x=replace(x, rule=lambda valid, x, tile: rule(before(valid, x, tile), x, tile)))

    def hooked(self, hooks: Mapping[str, Hook]) -> Variant:
        """The same with further hooks."""
        return replace(self, hooks=(*self.hooks, *hooks.items()))

    def sharing(self, share: Tensor) -> Variant:
        """The same with other sums over the query heads of a key head."""
        return replace(self, share=share)

    def finished(self, finish: Finish) -> Variant:
        """The same, of which a caller gets something else."""
        return replace(self, finishes=(*self.finishes, finish))

    def on(self, tile: Tile, buffers: Mapping[str, Tensor], wanted: Collection[str] | None = None) -> dict[str, Tensor]:
        """Every intermediate on a tile, as `reference.evaluate` gives them.

        Args:
            buffers: whole LSE, O and delta, where they are what the kernels found.
            wanted: from `reference.evaluate`.
        """
        scope = TileScope(self.x, tile, self.hooks, buffers)
        return evaluate(self.x, tile, cast("Mapping[str, Tensor]", scope), wanted) | scope.altered


Alter = Callable[[Variant], Variant]
"""One fault: another way of computing made of a way of computing."""


def wide(tensor: Tensor) -> Tensor:
    """Floating-point numbers in float64."""
    return tensor.double() if tensor.is_floating_point() else tensor
