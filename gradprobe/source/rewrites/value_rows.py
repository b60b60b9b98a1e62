"""Values: what factors, rows and signs they may lack; statements: in which order, and what their siblings say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from ..kernel_file import KernelFile, called, calls_in, inside, names_in, parameters
from ..text import Edit
from ..triton_source import blocks, bound_in
from .address_rows import has_strides, scales, stride_of
from .mask_rows import is_mask
from .patterns import TOKEN, is_delta, is_infinite
from .spots import Spot, Undone

# How much of two statements must be the same for one to be a source of edits of the other.
_ALIKE, _FEW_STATEMENTS = 0.7, 5
_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
_AXES = {"[:, None]": "[None, :]", "[None, :]": "[:, None]"}


def are_counts(file: KernelFile, node: ast.AST, holes: dict[str, ast.AST]) -> bool:
    """Whether whole numbers are compared."""
    sides = holes["_a"], holes["_b"]
    is_float = any(isinstance(side, ast.Constant) and isinstance(side.value, float) for side in sides)
    return not is_float and not any(map(is_infinite, sides))


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
    own, products = at.file.text_of(at.statement), _products(at.file, at.function)
    for node in at.names:
        for product in products.get(node.id, ()):
            if product not in own:
                yield at.put(1.0, node, "_product", _product=product)


@lru_cache(maxsize=256)
def _products(file: KernelFile, function: ast.FunctionDef) -> dict[str, list[str]]:
    """What a function multiplies by something, by its name: the products."""
    found: dict[str, list[str]] = {}
    for node in inside(function, ast.BinOp):
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Name):
            found.setdefault(node.left.id, []).append(file.text_of(node))
    return found


def delta_taken(at: Spot) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    own = set(parameters(at.function)) if calls_in(at.function, "program_id") else set()
    rows = [name for name in at.scope if is_delta(name) and name not in own]
    for node in inside(at.value, ast.BinOp) if rows and at.value is not None else ():
        for side in (node.right, node.left) if isinstance(node.op, ast.Mult) else ():
            for name in rows if isinstance(side, ast.Name) or called(side) == "dot" else ():
                yield at.put(0.9, side, "_it - _row[:, None]", _row=name)
                yield at.put(1.2, side, "_it - _row[None, :]", _row=name)


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
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool):
            numbers = [str(other) for other in (value + 1, value - 1) if other >= 0]
            yield from (at.put(2.5, node, "_other", _other=other) for other in numbers)
        elif isinstance(value, float) and value in (0.0, 1.0):
            for name in scales(at.scope) if value else ():
                yield at.put(1.0, node, "_other", _other=name)
            yield at.put(2.0, node, "_other", _other="0.0" if value else "1.0")
            yield at.put(2.0, node, "_other", _other='float("-inf")')


def is_sum(file: KernelFile, node: ast.AST, holes: dict[str, ast.AST]) -> bool:
    """Whether something is added in a loop to what begins as a tile of zeros."""
    above, sums = list(file.above(node)), set[str]()
    kernel = next(each for each in above if isinstance(each, ast.FunctionDef))
    for tile in inside(kernel, ast.Assign):
        if called(tile.value) in ("zeros", "full"):
            sums |= {target.id for target in tile.targets if isinstance(target, ast.Name)}
    return any(isinstance(each, ast.For) for each in above) and file.text_of(holes["_a"]) in sums


def has_value(file: KernelFile, node: ast.AST, holes: dict[str, ast.AST]) -> bool:
    """Whether the name that is assigned has a value already."""
    function = next(each for each in file.above(node) if isinstance(each, ast.FunctionDef))
    before = [each for each in inside(function, ast.Assign) if each.lineno < node.lineno]  # type: ignore[attr-defined]
    return isinstance(holes["_a"], ast.Name) and holes["_a"].id in bound_in(before)


def moved(at: Spot) -> Undone:
    """The statement before its neighbour above, or behind the one below."""
    around = blocks(next(at.file.above(at.statement))) if at.is_whole else []  # type: ignore[arg-type]
    for first, second in pairwise(next((block for block in around if at.statement in block), [])):
        if at.statement in (first, second) and _depend(first, second):
            texts = at.file.text_of(first), at.file.text_of(second)
            yield 1.2, (at.file.replaced(first, texts[1]), at.file.replaced(second, texts[0]))


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two simple statements may matter: what one binds the other has, or both act on memory."""
    if blocks(first) or blocks(second):
        return False
    if set(bound_in([first])) & names_in(second) or set(bound_in([second])) & names_in(first):
        return True
    stores = [isinstance(each, ast.Expr) for each in (first, second)]
    acts = [isinstance(each, ast.Expr) or bool(calls_in(each, "load")) for each in (first, second)]
    return any(stores) and all(acts)


def moved_out(at: Spot) -> Undone:
    """The last statement of a loop behind it: once, and not in each round."""
    loop = next(iter(at.loops), None)
    if loop is not None and at.is_whole and at.statement is loop.body[-1] and not loop.orelse and loop.body[1:]:
        start, end = at.file.span(loop.body[-2])[1], at.file.span(at.statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * loop.col_offset}{at.file.text_of(at.statement)}"),)


def pointer_advanced(at: Spot) -> Undone:
    """A pointer that a loop reads from moved on in each round, as it moves on others; first one that it loads from."""
    for loop in at.loops:
        moving = [each for each in loop.body if isinstance(each, ast.AugAssign) and _is_step(each)]
        pointers = [pointer for call in calls_in(loop, "load") for pointer in call.args[:1]]
        loaded = {pointer.id for pointer in pointers if isinstance(pointer, ast.Name)}
        standing = at.reads - set(bound_in(loop.body))
        for name in sorted(standing & {*parameters(at.function), *loaded}):
            for step in moving if stride_of(name) is None else ():
                end, margin = at.file.span(moving[-1])[1], " " * step.col_offset
                text = f"\n{margin}{name} += {at.file.text_of(step.value)}"
                yield 0.5 if name in loaded else 1.0, (Edit(end, end, text),)


def _is_step(statement: ast.AugAssign) -> bool:
    """Whether it adds to a name what is made by no call, as sums of tiles are."""
    is_made = any(called(node) not in ("", "to") for node in ast.walk(statement.value))
    return isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add) and not is_made


def of_siblings(at: Spot) -> Undone:
    """The statement as those of the file have it that say nearly the same: each piece that differs, then all."""
    if not at.is_whole or not at.is_on_device:
        return
    own = at.file.text_of(at.statement)
    for ratio, other in _siblings(at.file, own):
        edits = list(_differences(own, other, at.file.span(at.statement)[0]))
        yield from ((1.5 - ratio, (edit,)) for edit in edits)
        if 1 < len(edits) <= 3:
            yield 1.5 - ratio, tuple(edits)


@lru_cache(maxsize=1024)
def _siblings(file: KernelFile, own: str) -> list[tuple[float, str]]:
    """(how much is the same, text) of the statements that are most alike, or assign to the same name."""
    matcher, found = SequenceMatcher(None, "", _tokens_of(own), autojunk=False), []
    target = own.partition(" = ")[0]
    for text in _simple(file) - {own}:
        is_same_name = text.startswith(f"{target} = ")
        matcher.set_seq1(_tokens_of(text))
        is_near = is_same_name or (matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE)
        if is_near and (matcher.ratio() > _ALIKE or is_same_name):
            found.append((matcher.ratio(), text))
    return sorted(found, reverse=True)[:_FEW_STATEMENTS]


@lru_cache(maxsize=4)
def _simple(file: KernelFile) -> frozenset[str]:
    """The statements that hold no others, as they are written."""
    kinds = (ast.Assign, ast.AugAssign, ast.Expr)
    inner = [node for function in file.functions for node in ast.walk(function)]
    return frozenset(file.text_of(node) for node in inner if isinstance(node, kinds))


@lru_cache(maxsize=4096)
def _tokens_of(text: str) -> list[str]:
    return [token for token in TOKEN.findall(text) if token.strip()]


def _differences(own: str, other: str, start: int) -> Iterator[Edit]:
    """Each piece in which two statements differ, as the other has it."""
    here, there = TOKEN.findall(own), TOKEN.findall(other)
    for kind, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
        text, first = "".join(there[c:d]), len("".join(here[:a]))
        old = "".join(here[a:b])
        is_comma = {old.strip(), text.strip()} == {"", ","}  # before a closing bracket: it says nothing
        if kind != "equal" and a and not is_comma:  # what it assigns stays
            yield Edit(start + first, start + first + len(old), text)
