"""Values: what factors, rows and signs they may lack; and order: where statements stand, which pointers move on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from ..kernel_file import KernelFile, called, calls_in, inside, names_in, parameters
from ..text import Edit
from ..triton_source import blocks, bound_in
from .address_rows import has_strides
from .alike import scales, stride_of
from .mask_rows import is_mask
from .patterns import is_delta
from .spots import Spot, Undone

_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
_AXES = {"[:, None]": "[None, :]", "[None, :]": "[:, None]"}


def factor_added(at: Spot) -> Undone:
    """The value that is assigned, or a part of it, times a factor in scope; or the value times log2(e) or ln(2)."""
    value = at.value
    if value is None or has_strides(value) or is_mask(at):
        return
    for factor in scales(at.scope):
        twice = 1.0 if factor in names_in(value) else 0.0
        for further, part in _parts(value):
            yield at.put(1.3 + further + twice, part, "_it * _factor", _factor=factor)
    for factor in (_LOG2E, _LN2):
        yield from (at.put(3.0, part, "_it * _factor", _factor=factor) for part in (value, *_summands(value)))


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    """A value and the parts of it that a factor may be of, with how much less likely each is."""
    yield further, value
    match value:
        case ast.Call(ast.Attribute(inner, "to")) | ast.Call(ast.Attribute(attr="where"), [_, inner, _]):
            yield from _parts(inner, further + 0.1)
        case ast.Call(ast.Attribute(attr="exp" | "exp2" | "log" | "log2"), [inner, *_]):
            yield from _parts(inner, further + 0.1)
    for side in _summands(value):
        yield from _parts(side, further + 0.2)


def _summands(value: ast.expr) -> tuple[ast.expr, ...]:
    match value:
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return left, right
    return ()


def factor_of_sibling(at: Spot) -> Undone:
    """`acc * fade[:, None]` for `acc` where another statement of the function multiplies it so: another branch."""
    own = at.file.text_of(at.statement)
    for node in at.names:
        for name, product in _products(at.file, at.function):
            if name == node.id and product not in own:
                yield at.put(1.0, node, "_product", _product=product)


@lru_cache(maxsize=256)
def _products(file: KernelFile, function: ast.FunctionDef) -> list[tuple[str, str]]:
    """What a function multiplies by something: (the name, the product)."""
    products = [node for node in inside(function, ast.BinOp) if isinstance(node.op, ast.Mult)]
    return sorted({(node.left.id, file.text_of(node)) for node in products if isinstance(node.left, ast.Name)})


def delta_taken(at: Spot) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    own = set(parameters(at.function)) if calls_in(at.function, "program_id") else set()
    rows = [name for name in at.scope if is_delta(name) and name not in own]
    products = inside(at.value, ast.BinOp) if rows and at.value is not None else ()
    for node in (each for each in products if isinstance(each.op, ast.Mult)):
        for side in (node.right, node.left):
            for name in rows if isinstance(side, ast.Name) or called(side) == "dot" else ():
                rank = 0.9 + (name in _subtracted(at.function))
                yield at.put(rank, side, "_it - _row[:, None]", _row=name)
                yield at.put(rank + 0.3, side, "_it - _row[None, :]", _row=name)


@lru_cache(maxsize=256)
def _subtracted(function: ast.FunctionDef) -> frozenset[str]:
    """The names in what a function subtracts."""
    sides = [node.right for node in inside(function, ast.BinOp) if isinstance(node.op, ast.Sub)]
    return frozenset().union(*map(names_in, sides))


def axis_given(at: Spot) -> Undone:
    """`dp - delta[:, None]` for `dp - delta`, which goes along the last axis; and the other axis of two."""
    sides = [side for node in at.nodes if isinstance(node, ast.BinOp) for side in (node.left, node.right)]
    for side in sides:
        words = at.file.text_of(side)
        if isinstance(side, ast.Name) and is_delta(words, "lse"):
            yield at.put(0.9, side, "_it[:, None]")
        elif isinstance(side, ast.Subscript) and not has_strides(at.statement):
            turns = [words.replace(*axes) for axes in _AXES.items() if axes[0] in words]
            yield from (at.put(1.4, side, "_turned", _turned=turned) for turned in turns)


def constant_changed(at: Spot) -> Undone:
    """A whole number one more or less; 0, 1 and -inf for one another; a factor of 1.0 by one that has a name."""
    for node in inside(at.root, ast.Constant):
        value, others = node.value, list[tuple[float, str]]()
        if isinstance(value, int) and not isinstance(value, bool):
            others = [(2.5, str(other)) for other in (value + 1, value - 1) if other >= 0]
        elif isinstance(value, float) and value in (0.0, 1.0):
            others = [(1.0, name) for name in (scales(at.scope) if value else ())]
            others += [(2.0, "0.0" if value else "1.0"), (2.0, 'float("-inf")')]
        yield from (at.put(rank, node, "_other", _other=other) for rank, other in others)


def is_sum(file: KernelFile, node: ast.AST, holes: dict[str, ast.AST]) -> bool:
    """Whether something is added in a loop to what begins as a tile of zeros."""
    above, sums = list(file.above(node)), set[str]()
    kernel = next(each for each in above if isinstance(each, ast.FunctionDef))
    tiles = [each for each in inside(kernel, ast.Assign) if called(each.value) in ("zeros", "full")]
    sums = {target.id for each in tiles for target in each.targets if isinstance(target, ast.Name)}
    return any(isinstance(each, ast.For) for each in above) and file.text_of(holes["_a"]) in sums


def has_value(file: KernelFile, node: ast.AST, holes: dict[str, ast.AST]) -> bool:
    """Whether the name that is assigned has a value already."""
    function = next(each for each in file.above(node) if isinstance(each, ast.FunctionDef))
    before = [each for each in inside(function, ast.Assign) if each.lineno < node.lineno]  # type: ignore[attr-defined]
    return isinstance(holes["_a"], ast.Name) and holes["_a"].id in bound_in(before)


def order_changed(at: Spot) -> Undone:
    """The statement before its neighbour above, or behind the one below."""
    around = blocks(next(at.file.above(at.statement))) if at.is_whole else []  # type: ignore[arg-type]
    for first, second in pairwise(next((block for block in around if at.statement in block), [])):
        are_simple = not blocks(first) and not blocks(second)
        if at.statement in (first, second) and are_simple and _depend(first, second):
            texts = at.file.text_of(first), at.file.text_of(second)
            yield 1.2, (at.file.replaced(first, texts[1]), at.file.replaced(second, texts[0]))


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two statements may matter: what one binds the other has, or both act on memory."""
    if set(bound_in([first])) & names_in(second) or set(bound_in([second])) & names_in(first):
        return True
    stores = [isinstance(each, ast.Expr) for each in (first, second)]
    loads = [bool(calls_in(each, "load")) for each in (first, second)]
    return any(stores) and (stores[0] or loads[0]) and (stores[1] or loads[1])


def moved_out(at: Spot) -> Undone:
    """The last statement of a loop behind it: once, and not in each round."""
    loop = next(iter(at.loops), None)
    if loop is not None and at.is_whole and at.statement is loop.body[-1] and not loop.orelse and loop.body[1:]:
        start, end = at.file.span(loop.body[-2])[1], at.file.span(at.statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * loop.col_offset}{at.file.text_of(at.statement)}"),)


def pointer_advanced(at: Spot) -> Undone:
    """A pointer that a loop reads from moved on in each round, as it moves on others that begin alike."""
    for loop in at.loops:
        moving = [each for each in loop.body if isinstance(each, ast.AugAssign) and _is_step(each)]
        pointers = [pointer for call in calls_in(loop, "load") for pointer in call.args[:1]]
        loaded = {pointer.id for pointer in pointers if isinstance(pointer, ast.Name)}
        standing = at.reads - set(bound_in(loop.body))
        for name in sorted(standing & {*parameters(at.function), *loaded}):
            for step in moving if stride_of(name) is None else ():
                likely = _begin_alike(at, loop, name, step) or (name in loaded and bool(names_in(step.target) & loaded))
                yield at.put_behind(0.5 if likely else 1.5, moving[-1], f"{name} += {at.file.text_of(step.value)}")


def _is_step(statement: ast.AugAssign) -> bool:
    """Whether it adds to a name what is made by no call, as sums of tiles are."""
    is_made = any(called(node) not in ("", "to") for node in ast.walk(statement.value))
    return isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add) and not is_made


def _begin_alike(at: Spot, loop: ast.AST, name: str, step: ast.AugAssign) -> bool:
    """Whether the same is added to both pointers before a loop."""
    starts = {name: "no", at.file.text_of(step.target): "none"}
    for each in inside(at.function, ast.AugAssign):
        if isinstance(each.target, ast.Name) and each.lineno < loop.lineno:  # type: ignore[attr-defined]
            starts[each.target.id] = at.file.text_of(each.value)
    return starts[name] == starts[at.file.text_of(step.target)]
