"""Which operation gave an operand of a wrong value a constant factor that does not belong there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...model.intermediates import PRODUCTS, unscaled
from ...runtime.interpreter.dataflow import Node, Role, Site
from ..follow import FollowedRun

_INPUTS, _SUMS = ("q", "k", "v", "do", "o"), frozenset(map(unscaled, PRODUCTS))


def odd_factor(run: FollowedRun, node: Node) -> tuple[Node, str] | None:
    """Of a wrong value whose operands are right: what gave one of them a factor that does not belong there, or left
    one out; and what its value is where all is right.
    """
    return _of_sum(run, node) or _of_operand(run, node)


def entries(node: Node) -> Iterator[Site]:
    """Where the operands of a value got their factors."""
    yield from (entry.site for one in node.operands if (entry := _entry(one)) is not None)


def _of_sum(run: FollowedRun, node: Node) -> tuple[Node, str] | None:
    """Of two terms with different factors the one that is scaled between rounds, or that no right result has."""
    terms = _terms(node)
    if len(terms) != 2 or _factor(terms[0]) == _factor(terms[1]):
        return None
    entered = [_entry(term) for term in terms]
    between = [entry is not None and any(one.site == node.site for one in entry.operands) for entry in entered]
    right = [not run.stored_right.isdisjoint(_carriers(term)) for term in terms]
    odd = between.index(True) if any(between) else right.index(False) if right[0] != right[1] else None
    return None if odd is None else _with_factor(entered[odd] or terms[odd], _factor(terms[1 - odd]))


def _of_operand(run: FollowedRun, node: Node) -> tuple[Node, str] | None:
    """An operand that has another factor wherever the same operation comes to something right."""
    for at, operand in enumerate(node.operands):
        others = [one.operands[at] for one in run.right.get(node.site, ()) if len(one.operands) > at]
        factors = {_factor(one) for one in others if one.name == operand.name}
        if operand.is_known and factors and _factor(operand) not in factors:
            return _with_factor(_entry(operand) or operand, min(factors))
    return None


def _factor(node: Node) -> str:
    return node.role.factor if node.role is not None else ""


def _with_factor(odd: Node, factor: str) -> tuple[Node, str]:
    return odd, replace(odd.role or Role(""), factor=factor).formula


def _terms(node: Node) -> Sequence[Node]:
    """What a sum adds, each of them right: of a dot what it is added to, and the operand that its factor comes from."""
    operands = node.operands
    if node.site.operation == "fadd":
        is_one = len({one.name for one in operands}) == 1
        return operands if is_one and all(one.is_known for one in operands) else ()
    added = [one for one in operands if one.name in _SUMS]
    made_of = [one for one in operands if one not in added and one.is_known]
    scaled = [one for one in made_of if _factor(one)]
    matrix = [one for one in made_of if one.name not in _INPUTS]
    if node.site.operation != "dot" or len(made_of) != 2 or len(scaled) > 1:
        return ()
    return (*added, *(scaled or matrix))


def _carriers(node: Node) -> Iterator[Node]:
    """A value and what it has its factor from, back to the operation that multiplied by it."""
    last: Node | None = node
    while last is not None:
        yield last
        here, of_sum = last, last.name in _SUMS
        same = [one for one in here.operands if one.name and _factor(one) == _factor(here)]
        linear = [one for one in same if _factor(here) or one.name == here.name or (of_sum and one.name not in _INPUTS)]
        last = linear[0] if linear else None


def _entry(node: Node) -> Node | None:
    """The operation that multiplied by the factor that a value has; None where it has none."""
    return [*_carriers(node)][-1] if _factor(node) else None
