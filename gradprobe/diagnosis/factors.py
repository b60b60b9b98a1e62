"""ValueFactors: which operation gave an operand of a wrong value a constant factor that does not belong there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..model.intermediates import PRODUCTS, unscaled
from ..runtime.interpreter.dataflow import Node, Role, Site
from .follow import Followed

# What each result is stored as.
STORED = {name: f"scale * {unscaled(name)}" if unscaled(name) != name else name for name in PRODUCTS}
STORED |= {name: name for name in ("LSE", "delta")}
_INPUTS, _SUMS = ("q", "k", "v", "do", "o"), frozenset(map(unscaled, PRODUCTS))


@dataclass(frozen=True)
class FactorSource:
    """An operation that gave a value a factor, or left one out, for which what is made of the value is wrong."""

    node: Node
    words: str
    """What its value is."""
    wanted: str
    """What it is where all is right."""

    @property
    def name(self) -> str:
        return _role(self.node).name


class ValueFactors:
    """The constant factors of the values of one run."""

    def __init__(self, run: Followed) -> None:
        self._run = run

    def culprit(self, node: Node) -> FactorSource | None:
        """Of a wrong value whose operands are right: where one of them got a factor that does not belong there."""
        return self._of_sum(node) or self._of_operand(node)

    def entries(self, node: Node) -> Iterator[Site]:
        """Where the operands of a value got their factors."""
        yield from (entry.site for one in node.operands if (entry := _entry(one)) is not None)

    def _of_sum(self, node: Node) -> FactorSource | None:
        """Of two terms with different factors the one that is scaled between rounds, or that no right result has."""
        terms = _terms(node)
        if len(terms) != 2 or _role(terms[0]).factor == _role(terms[1]).factor:
            return None
        entered = [_entry(term) for term in terms]
        between = [entry is not None and any(one.site == node.site for one in entry.operands) for entry in entered]
        right = [any(one.number in self._stored_right for one in _carriers(term)) for term in terms]
        odd = between.index(True) if any(between) else right.index(False) if right[0] != right[1] else None
        return None if odd is None else _found(entered[odd] or terms[odd], _role(terms[1 - odd]).factor)

    def _of_operand(self, node: Node) -> FactorSource | None:
        """An operand that has another factor wherever the same operation comes to something right."""
        for at, operand in enumerate(node.operands):
            others = [one.operands[at] for one in self._right.get(node.site, ()) if len(one.operands) > at]
            factors = {_role(one).factor for one in others if _role(one).name == _role(operand).name}
            if _role(operand).is_known and factors and _role(operand).factor not in factors:
                return _found(_entry(operand) or operand, min(factors))
        return None

    @cached_property
    def _right(self) -> dict[Site, list[Node]]:
        found: dict[Site, list[Node]] = {}
        for node in self._run.flow.nodes:
            if _role(node).is_known:
                found.setdefault(node.site, []).append(node)
        return found

    @cached_property
    def _stored_right(self) -> set[int]:
        """The numbers of what right results were made of."""
        names = self._run.outcome.storages
        pending = [
            one.node for one in self._run.flow.stores if STORED.get(names.get(one.home, "")) == _role(one.node).formula
        ]
        found: set[int] = set()
        while pending:
            node = pending.pop()
            if node.number not in found:
                found.add(node.number)
                pending += node.operands
        return found


def _role(node: Node) -> Role:
    return node.role or Role("")


def _found(odd: Node, factor: str) -> FactorSource:
    return FactorSource(odd, _role(odd).formula, replace(_role(odd), factor=factor).formula)


def _terms(node: Node) -> Sequence[Node]:
    """What a sum adds, each of them right: of a dot what it is added to, and the operand that its factor comes from."""
    operands = node.operands
    if node.site.operation == "fadd":
        is_one = len({_role(one).name for one in operands}) == 1
        return operands if is_one and all(_role(one).is_known for one in operands) else ()
    added = [one for one in operands if _role(one).name in _SUMS]
    made_of = [one for one in operands if one not in added and _role(one).is_known]
    scaled = [one for one in made_of if _role(one).factor]
    matrix = [one for one in made_of if _role(one).name not in _INPUTS]
    if node.site.operation != "dot" or len(made_of) != 2 or len(scaled) > 1:
        return ()
    return (*added, *(scaled or matrix))


def _carriers(node: Node) -> Iterator[Node]:
    """A value and what it has its factor from, back to the operation that multiplied by it."""
    last: Node | None = node
    while last is not None:
        yield last
        here = _role(last)
        same = (one for one in last.operands if _role(one).name and _role(one).factor == here.factor)
        of_sum = here.name in _SUMS
        linear = (
            one
            for one in same
            if here.factor or _role(one).name == here.name or (of_sum and _role(one).name not in _INPUTS)
        )
        last = next(linear, None)


def _entry(node: Node) -> Node | None:
    """The operation that multiplied by the factor that a value has; None where it has none."""
    return [*_carriers(node)][-1] if _role(node).factor else None
