"""Rules of values: signs, factors, constants, sums and what a difference is of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile, called
from ..operators.addresses import parameters
from ..triton_source import bound_in
from .alike import scales
from .repairs import MASK, Repairs, Undone, has_strides, value_of
from .spots import Spot

_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
# What rows are called that are subtracted from dP.
_ROWS = in_kernels("delta")


def sign_changed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`+` for `-`, `*` for `/` and the reverse."""
    signs = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
    for node in by.nodes(spot):
        if isinstance(node, ast.BinOp) and type(node.op) in signs:
            sign, other = signs[type(node.op)]
            yield (
                0.9 if sign in "+-" and not has_strides(spot.statement) else 2.0,
                (replace(by.file.operator(node.left, sign), text=other),),
            )
    statement = spot.statement
    if isinstance(statement, ast.AugAssign) and type(statement.op) in signs and spot.roots == (statement,):
        sign, other = signs[type(statement.op)]
        yield 1.2, (replace(by.file.operator(statement.target, f"{sign}="), text=f"{other}="),)


def constant_changed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A whole number one more or less; 0, 1 and -inf for one another; a factor of 1.0 by one that has a name."""
    for node in by.nodes(spot):
        if not isinstance(node, ast.Constant) or isinstance(node.value, (bool, str)) or node.value is None:
            continue
        if isinstance(node.value, int):
            yield from ((2.5, by.replaced(node, str(node.value + step))) for step in (1, -1) if node.value + step >= 0)
        elif isinstance(node.value, float) and node.value in (0.0, 1.0):
            known = scales(scope) if node.value == 1.0 else []
            yield from ((1.0, by.replaced(node, name)) for name in known)
            others = [word for word in ("0.0", "1.0", 'float("-inf")') if node.value != _float(word)]
            yield from ((2.0, by.replaced(node, word)) for word in others)


def _float(word: str) -> float:
    return float(word) if word[0].isdigit() else float("-inf")


def factor_added(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """The value that is assigned, or a part of it, times a factor in scope; or the value times log2(e) or ln(2)."""
    value = value_of(by, spot)
    if value is None or has_strides(value) or any(map(MASK.search, bound_in([spot.statement]))):
        return
    for factor in scales(scope):
        twice = 1.0 if re.search(rf"\b{re.escape(factor)}\b", by.file.text_of(value)) else 0.0
        yield from ((1.3 + further + twice, by.multiplied(part, factor)) for further, part in _parts(value))
    for part in (value, *_summands(value)):
        yield from ((3.0, by.multiplied(part, factor)) for factor in (_LOG2E, _LN2))


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    """A value and the parts of it that a factor may be of, with how much less likely each is."""
    yield further, value
    if isinstance(value, ast.Call):
        inner = value.func.value if called(value) == "to" and isinstance(value.func, ast.Attribute) else None
        inner = value.args[0] if called(value) in ("exp", "exp2", "log", "log2") and value.args else inner
        inner = value.args[1] if called(value) == "where" and len(value.args) == 3 else inner
        if inner is not None:
            yield from _parts(inner, further + 0.1)
    for side in _summands(value):
        yield from _parts(side, further + 0.2)


def _summands(value: ast.expr) -> tuple[ast.expr, ...]:
    is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub))
    return (value.left, value.right) if is_sum and isinstance(value, ast.BinOp) else ()


def factor_moved(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`a * c - b` and `a - b * c` for `(a - b) * c`, and the reverse: what of a difference a factor is of."""
    for node in by.nodes(spot):
        if not isinstance(node, ast.BinOp):
            continue
        sides = (node.left, node.right), (node.right, node.left)
        if isinstance(node.op, ast.Mult):
            for inner, factor in ((a, by.bracketed_text(b)) for a, b in sides if _is_sum(a)):
                sign = "-" if isinstance(inner.op, ast.Sub) else "+"  # type: ignore[attr-defined]
                one, other = by.bracketed_text(inner.left), by.bracketed_text(inner.right)  # type: ignore[attr-defined]
                yield 1.4, by.bracketed(node, f"{one} * {factor} {sign} {other}")
                yield 1.5, by.bracketed(node, f"{one} {sign} {other} * {factor}")
        elif _is_sum(node):
            sign = "-" if isinstance(node.op, ast.Sub) else "+"
            for inner, rest in sides:
                if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult):
                    kept = [by.bracketed_text(inner.left), by.bracketed_text(rest)]
                    both = f" {sign} ".join(kept if inner is node.left else kept[::-1])
                    yield 1.5, by.bracketed(node, f"({both}) * {by.bracketed_text(inner.right)}")


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))


def factor_of_sibling(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`acc * fade[:, None]` for `acc` where another statement of the function multiplies it so: another branch."""
    own = by.file.text_of(spot.statement)
    for node in spot.names:
        for name, product in _products(by.file, spot.function):
            if name == node.id and product not in own:
                yield 1.0, by.bracketed(node, product)


@lru_cache(maxsize=256)
def _products(file: KernelFile, function: ast.FunctionDef) -> list[tuple[str, str]]:
    """What a function multiplies by something: (the name, the product)."""
    inside = [node for node in ast.walk(function) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    return sorted({(node.left.id, file.text_of(node)) for node in inside if isinstance(node.left, ast.Name)})


def transposed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A transpose of what a dot is given."""
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) == "dot":
            for each in node.args[:2]:
                yield 1.2, by.replaced(each, f"tl.trans({by.file.text_of(each)})")


def axis_given(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`dp - delta[:, None]` for `dp - delta`, which goes along the last axis; and the other axis of two."""
    turned = {"[:, None]": "[None, :]", "[None, :]": "[:, None]"}
    for node in by.nodes(spot):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            for side in (node.left, node.right):
                words = by.file.text_of(side)
                if isinstance(side, ast.Name) and plain(words.lower().removeprefix("b_")) in (*_ROWS, "lse"):
                    yield 0.9, by.replaced(side, f"{words}[:, None]")
                elif isinstance(side, ast.Subscript) and not has_strides(spot.statement):
                    yield from (
                        (1.4, by.replaced(side, words.replace(*axes))) for axes in turned.items() if axes[0] in words
                    )


def delta_taken(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    value = value_of(by, spot)
    is_launched = any(called(node) == "program_id" for node in ast.walk(spot.function))
    own = set(parameters(spot.function)) if is_launched else set()
    rows = [name for name in scope if plain(name.lower().removeprefix("b_")) in _ROWS and name not in own]
    for node in ast.walk(value) if value is not None else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for side in (node.right, node.left):
                if isinstance(side, ast.Name) or called(side) == "dot":
                    words = by.file.text_of(side)
                    for name in rows:
                        twice = 1.0 if name in _subtracted(spot.function) else 0.0
                        yield 0.9 + twice, by.replaced(side, f"({words} - {name}[:, None])")
                        yield 1.2 + twice, by.replaced(side, f"({words} - {name}[None, :])")


@lru_cache(maxsize=256)
def _subtracted(function: ast.FunctionDef) -> frozenset[str]:
    """The names in what a function subtracts."""
    sides = [node.right for node in ast.walk(function) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)]
    return frozenset(node.id for side in sides for node in ast.walk(side) if isinstance(node, ast.Name))


def sum_kept(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`+=` for `=` of what has a value already, and the reverse; atomic_add for store."""
    statement = spot.statement
    if spot.roots == (statement,) and isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        in_loop = any(isinstance(above, (ast.For, ast.While)) for above in by.file.above(statement))
        target = statement.targets[0]
        if isinstance(target, ast.Name) and _is_bound_before(spot, target.id):
            yield 0.9 if in_loop else 1.1, (replace(by.file.operator(statement.targets[0], "="), text="+="),)
    elif spot.roots == (statement,) and isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        yield 2.5, (replace(by.file.operator(statement.target, "+="), text="="),)
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) == "store":
            words = by.file.text_of(node.func)
            yield 1.5, by.replaced(node.func, words.removesuffix("store") + "atomic_add")


def _is_bound_before(spot: Spot, name: str) -> bool:
    return _first_bound(spot.function).get(name, spot.statement.lineno) < spot.statement.lineno


@lru_cache(maxsize=256)
def _first_bound(function: ast.FunctionDef) -> dict[str, int]:
    """The first line at which a function assigns to a name, by the name."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    return {name: each.lineno for each in sorted(found, key=lambda each: -each.lineno) for name in bound_in([each])}
