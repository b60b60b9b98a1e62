"""Record: what was seen of a kernel's pointers while it was followed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from ..running.taps.functions import Function
from ..source.line import SourceLine
from .values import Parts, Pointer, Term, Value


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

    def advance(self, pointer: Pointer, term: Term, spot: SourceLine, names: dict[str, str]) -> None:
        """Notes a product that is added to a pointer."""
        self.expressions.add(spot)
        if len(pointer.bases) > 1:  # which of them it is, a branch decides that is not known
            self.lost |= pointer.bases
            return
        for base in pointer.bases:
            self.advances[Advance(base, term, spot, names.get(base, base))] = None

    def access(self, value: Value, function: Function, node: ast.AST) -> None:
        """Notes a load or a store."""
        if isinstance(value, Pointer):
            spot = function.line_of(node)
            self.expressions.add(spot)
            for base in value.bases:
                self.accesses.setdefault(base, spot)

    def lose(self, *values: Value) -> None:
        """Notes that pointers went where they are not followed."""
        for value in values:
            if isinstance(value, Pointer):
                self.lost |= value.bases
            elif isinstance(value, Parts):
                self.lose(*value.values)
