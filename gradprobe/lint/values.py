"""What an expression of a kernel may be where only addresses matter: amounts, pointers, and constants."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..source.text import SourceLine
from ..source.triton_source import Function

# Products of sums are multiplied out as far as this many terms.
_MOST = 24


@dataclass(frozen=True)
class StrideFactor:
    """A stride's parameter of the kernel, where it stands in a product."""

    parameter: str
    spots: tuple[SourceLine, ...]
    """From the kernel's own text inwards: where it is passed, and where it is multiplied."""


@dataclass(frozen=True)
class Term:
    """One product in a sum."""

    factors: tuple[StrideFactor, ...] = ()
    index: frozenset[str] = frozenset()
    """The variables that it is a product of besides, each by the name under which it was computed."""
    via: SourceLine | None = None
    """The variable that held it, where it was added to the pointer by that."""


@dataclass(frozen=True)
class Amount:
    """A number, or a block of numbers: a sum of products."""

    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class AddressValue:
    """An address: one of some parameters, and what was added to it."""

    bases: frozenset[str]
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class LaunchConstant:
    """A constant of this launch."""

    value: Any


@dataclass(frozen=True)
class Parts:
    """A tuple."""

    values: tuple[Value, ...]


Value = Amount | AddressValue | LaunchConstant | Parts
NOTHING = Amount()


def opaque(*values: Value, name: str = "") -> Amount:
    """A number of which no more is known than what it was computed from; under a name, that alone."""
    index = frozenset({name}) if name else frozenset(word for value in values for word in _names_of(value))
    return Amount((Term(index=index),))


def terms_of(value: Value) -> tuple[Term, ...]:
    """The products that a value adds to a pointer."""
    if isinstance(value, Amount):
        return value.terms
    return () if isinstance(value, LaunchConstant) else (Term(index=frozenset(_names_of(value))),)


def multiplied(left: Value, right: Value) -> Amount:
    """The product of two numbers."""
    if LaunchConstant(0) in (left, right):
        return NOTHING
    first, second = (terms_of(value) or (Term(),) for value in (left, right))
    if len(first) * len(second) > _MOST:
        return opaque(left, right)
    return Amount(tuple(Term(a.factors + b.factors, a.index | b.index, a.via or b.via) for a in first for b in second))


def joined(values: Iterable[Value]) -> Value:
    """What a variable may be behind several branches."""
    found = list(dict.fromkeys(values))
    if len(found) == 1:
        return found[0]
    pointers = [value for value in found if isinstance(value, AddressValue)]
    if pointers:
        bases = frozenset(base for pointer in pointers for base in pointer.bases)
        terms = dict.fromkeys(term for pointer in pointers for term in pointer.terms)
        return AddressValue(bases, tuple(terms)[: 4 * _MOST])
    parts = [value for value in found if isinstance(value, Parts)]
    if len(parts) == len(found) and found and len({len(part.values) for part in parts}) == 1:
        return Parts(tuple(joined(values) for values in zip(*(part.values for part in parts), strict=True)))
    # Of several sums with strides in them nobody knows here which one goes with which pointer.
    return opaque(*found)


def held_by(value: Value, name: str, spot: SourceLine) -> Value:
    """What a variable holds after a value is assigned to it: a number without a stride goes by the variable's name."""
    if not isinstance(value, Amount):
        return value
    if not any(term.factors for term in value.terms):
        return opaque(name=name)
    return Amount(tuple(replace(term, via=spot) if term.factors else term for term in value.terms))


def _names_of(value: Value) -> list[str]:
    if isinstance(value, Parts):
        return [word for part in value.values for word in _names_of(part)]
    if isinstance(value, LaunchConstant):
        return []
    bases = list(value.bases) if isinstance(value, AddressValue) else []
    factors = [factor.parameter for term in value.terms for factor in term.factors]
    return [*bases, *factors, *(word for term in value.terms for word in term.index)]


@dataclass(frozen=True)
class Advance:
    """One product that is added to a pointer."""

    base: str
    """The parameter that it starts from."""
    term: Term
    spot: SourceLine
    """Of the whole pointer expression."""
    local: str
    """What the pointer is called in the function where that stands."""


@dataclass
class Record:
    """What was seen."""

    function: Any
    """The kernel: a Function, or a CudaKernel."""
    advances: dict[Advance, None] = field(default_factory=dict)
    accesses: dict[str, SourceLine] = field(default_factory=dict)
    """The first load or store of each pointer, by the parameter that it starts from."""
    expressions: set[SourceLine] = field(default_factory=set)
    """Every pointer expression that was read."""
    lost: set[str] = field(default_factory=set)
    """The parameters of pointers that could not be followed everywhere."""

    def advance(self, pointer: AddressValue, term: Term, spot: SourceLine, names: Mapping[str, str]) -> None:
        """Notes a product that is added to a pointer."""
        self.expressions.add(spot)
        if len(pointer.bases) > 1:  # which of them it is, a branch decides that is not known
            self.lost |= pointer.bases
            return
        for base in pointer.bases:
            self.advances[Advance(base, term, spot, names.get(base, base))] = None

    def access(self, value: Value, function: Function, node: ast.AST) -> None:
        """Notes a load or a store."""
        if isinstance(value, AddressValue):
            spot = function.line_of(node)
            self.expressions.add(spot)
            for base in value.bases:
                self.accesses.setdefault(base, spot)

    def lose(self, *values: Value) -> None:
        """Notes that pointers went where they are not followed."""
        for value in values:
            if isinstance(value, AddressValue):
                self.lost |= value.bases
            elif isinstance(value, Parts):
                self.lose(*value.values)
