"""CUDA kernels' pointers, read from their syntax trees: what is added to each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ..cuda.kernel import KernelEntry
from ..source.cuda_syntax import above, declared_name, node_text, nodes
from ..source.text import SourceLine
from .pointers import Advance, Record, StrideFactor, Term

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A kernel of a .cu file."""

    entry: KernelEntry
    name: str
    file: str
    line: int
    parameters: tuple[str, ...]

    @cached_property
    def mentions(self) -> tuple[Node, ...]:
        """Every use of a name in its body, in the order of the text."""
        body = self.entry.unit.source.declared[self.name].node.child_by_field_name("body")
        return tuple(nodes(body, "identifier")) if body is not None else ()

    @cached_property
    def mentioned(self) -> dict[str, int]:
        """How often each name stands in its body."""
        return Counter(map(node_text, self.mentions))

    @cached_property
    def _lines(self) -> list[str]:
        return self.entry.unit.source.text.split("\n")

    def product_at(self, spot: SourceLine) -> str:
        """The product that a name is part of, as it is written; "" where it is part of none."""
        around = (name.parent for name in self.mentions if name.parent is not None and self.spot(name) == spot)
        return next((node_text(node) for node in around if node_text(node.child_by_field_name("operator")) == "*"), "")

    def spot(self, name: Node) -> SourceLine:
        """Where a name stands."""
        row, column = name.start_point
        line = self._lines[row]
        indent = len(line) - len(line.lstrip())
        return SourceLine(self.file, row + 1, line.strip(), column - indent, len(node_text(name)), self.name)


@lru_cache(maxsize=256)
def kernel_of(entry: KernelEntry) -> CudaKernel:
    """A kernel, read once."""
    names = tuple(parameter.name for parameter in entry.parameters)
    return CudaKernel(entry, entry.plain_name, str(entry.file), entry.line, names)


def read_cuda(kernel: CudaKernel, strides: frozenset[str], pointers: frozenset[str]) -> Record:
    """What its pointers are advanced by in its own body.

    Args:
        strides, pointers: which of its parameters are strides, and which tensors.
    """
    record, reader = Record(), _CudaReader(kernel, strides, {name: name for name in pointers})
    for mention in kernel.mentions:
        base = reader.names.get(node_text(mention))
        if base is None:
            reader.note_alias(mention)
            continue
        spot = kernel.spot(mention)
        record.expressions.add(spot)
        for term in reader.terms(mention):
            record.advances[Advance(base, term, spot, node_text(mention))] = None
        if not _is_advanced(mention):
            record.accesses.setdefault(base, spot)
    return replace(record, lost=reader.lost)


@dataclass
class _CudaReader:
    """One kernel as it is read."""

    kernel: CudaKernel
    strides: frozenset[str]
    names: dict[str, str]
    """What each pointer starts from: a parameter, or a variable that was made from one."""
    lost: set[str] = field(default_factory=set)
    """Those that are passed on with strides of which it is not known whose they are."""

    def note_alias(self, mention: Node) -> None:
        """A variable that is declared as a pointer plus something is that pointer too."""
        declaration = next((node for node in above(mention) if node.type == "init_declarator"), None)
        declarator = declaration.child_by_field_name("declarator") if declaration is not None else None
        if declaration is None or declarator is None or declared_name(declarator) != mention:
            return
        is_auto = declaration.parent is not None and node_text(declaration.parent.child_by_field_name("type")) == "auto"
        first = next(_summands(declaration.child_by_field_name("value")), None)
        if node_text(first) in self.names and (declarator.type == "pointer_declarator" or is_auto):
            self.names[node_text(mention)] = self.names[node_text(first)]

    def terms(self, pointer: Node) -> Iterator[Term]:
        """What is added to a pointer where it is mentioned."""
        node = pointer
        for around in above(pointer):
            left, right = around.child_by_field_name("left"), around.child_by_field_name("right")
            if _is_sum(around):
                yield from self._sum(right if left == node else left)
            elif around.type == "subscript_expression" and around.child_by_field_name("argument") == node:
                indices = around.child_by_field_name("indices")
                yield from (term for index in (indices.named_children if indices else ()) for term in self._sum(index))
            elif around.type == "assignment_expression" and left == node and _is_advanced(pointer):
                yield from self._sum(right)
            elif around.type == "argument_list":
                yield from self._passed(around, node)
            if not _is_sum(around) and around.type != "parenthesized_expression":
                return
            node = around

    def _passed(self, arguments: Node, pointer: Node) -> Iterator[Term]:
        """The strides that are passed right behind the only pointer of a call; whose others are, nobody knows here."""
        given = arguments.named_children
        bases = {self.names[word] for word in map(node_text, nodes(arguments, "identifier")) if word in self.names}
        strides = [node for node in given if node.type == "identifier" and node_text(node) in self.strides]
        behind = given[given.index(pointer) + 1 :] if len(bases) == 1 else []
        own = list(itertools.takewhile(lambda node: node in strides, behind))
        if len(own) < len(strides):
            self.lost |= bases
        yield from (Term((self._factor(node),)) for node in own)

    def _sum(self, expression: Node | None) -> Iterator[Term]:
        for summand in _summands(expression):
            names = list(nodes(summand, "identifier"))
            factors = [self._factor(name) for name in names if node_text(name) in self.strides]
            yield Term(tuple(factors), frozenset(node_text(name) for name in names) - self.strides)

    def _factor(self, name: Node) -> StrideFactor:
        return StrideFactor(node_text(name), (self.kernel.spot(name),))


def _is_advanced(pointer: Node) -> bool:
    """Whether it is the left side of `+=`."""
    around = pointer.parent
    is_left = around is not None and around.child_by_field_name("left") == pointer
    return around is not None and is_left and node_text(around.child_by_field_name("operator")) == "+="


def _is_sum(node: Node) -> bool:
    return node.type == "binary_expression" and node_text(node.child_by_field_name("operator")) in ("+", "-")


def _summands(expression: Node | None) -> Iterator[Node]:
    """What a sum adds and subtracts, in the order of the text."""
    if expression is None:
        return
    if expression.type == "parenthesized_expression":
        yield from _summands(expression.named_children[0])
    elif _is_sum(expression):
        yield from _summands(expression.child_by_field_name("left"))
        yield from _summands(expression.child_by_field_name("right"))
    else:
        yield expression
