"""Values: what factors, rows and signs they may lack; statements: in which order, and what their siblings say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from ..kernel_file import KernelFile, called, calls_in, inside, names_in, parameters
from ..text import Edit
from ..triton_source import blocks, bound_in
from .address_rows import has_strides, scales
from .mask_rows import is_mask
from .patterns import TOKEN, Found, is_delta, is_infinite
from .spots import Spot, Undone

# How much of two statements must be the same for one to be a source of edits of the other.
_ALIKE, _FEW_STATEMENTS = 0.7, 5
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"


def are_counts(file: KernelFile, found: Found) -> bool:
    """Whether whole numbers are compared."""
    for side in (found["_a"], found["_b"]):
        if is_infinite(side) or (isinstance(side, ast.Constant) and isinstance(side.value, float)):
            return False
    return True


def factor_added(at: Spot) -> Undone:
    """The value that is assigned, or a part of it, times a factor in scope; or times log2(e) or ln(2)."""
    value = at.value
    if value is None or has_strides(value) or is_mask(at):
        return
    for further, part in _parts(value):
        for factor in scales(at.scope):
            again = 1.0 if factor in names_in(value) else 0.0
            yield at.put(1.3 + further + again, part, "_it * _factor", _factor=factor)
        for factor in (_LOG2E, _LN2):
            yield at.put(3.0 + further, part, "_it * _factor", _factor=factor)


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    """A value and the parts of it that a factor may be of, with how much less likely each is."""
    yield further, value
    match value:
        case ast.Call(ast.Attribute(inner, "to")) | ast.Call(ast.Attribute(attr="where"), [_, inner, _]):
            yield from _parts(inner, further + 0.1)
        case ast.Call(ast.Attribute(attr="exp" | "exp2" | "log" | "log2"), [inner, *_]):
            yield from _parts(inner, further + 0.1)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            yield from _parts(left, further + 0.2)
            yield from _parts(right, further + 0.2)


def delta_taken(at: Spot) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    pointers = parameters(at.function) if calls_in(at.function, "program_id") else []
    rows = [name for name in at.scope if is_delta(name) and name not in pointers]
    if not rows or at.value is None:
        return
    for product in inside(at.value, ast.BinOp):
        for side in (product.right, product.left) if isinstance(product.op, ast.Mult) else ():
            for row in rows if isinstance(side, ast.Name) or called(side) == "dot" else ():
                yield at.put(0.9, side, "_it - _row[:, None]", _row=row)
                yield at.put(1.2, side, "_it - _row[None, :]", _row=row)


def constant_changed(at: Spot) -> Undone:
    """A whole number one more or less; 0, 1 and -inf for one another; a factor of 1.0 by one that has a name."""
    for node in inside(at.root, ast.Constant):
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool):
            for other in (value + 1, value - 1)[: 1 + (value > 0)]:
                yield at.put(2.5, node, "_other", _other=str(other))
        elif isinstance(value, float) and value in (0.0, 1.0):
            for name in scales(at.scope) if value else ():
                yield at.put(1.0, node, "_other", _other=name)
            yield at.put(2.0, node, "_other", _other="0.0" if value else "1.0")
            yield at.put(2.0, node, 'float("-inf")')


def is_sum(file: KernelFile, found: Found) -> bool:
    """Whether something is added in a loop to what begins as a tile of zeros."""
    above = list(file.above(found["_it"]))
    kernel = next(each for each in above if isinstance(each, ast.FunctionDef))
    tiles = [each for each in inside(kernel, ast.Assign) if called(each.value) in ("zeros", "full")]
    in_loop = any(isinstance(each, ast.For) for each in above)
    return in_loop and file.text_of(found["_a"]) in bound_in(target for each in tiles for target in each.targets)


def has_value(file: KernelFile, found: Found) -> bool:
    """Whether the name that is assigned has a value already."""
    name, statement = found["_a"], found["_it"]
    function = next(each for each in file.above(statement) if isinstance(each, ast.FunctionDef))
    before = [each for each in inside(function, ast.Assign) if each.lineno < statement.lineno]  # type: ignore[attr-defined]
    return isinstance(name, ast.Name) and name.id in bound_in(before)


def moved(at: Spot) -> Undone:
    """The statement before its neighbour above, or behind the one below; the last one of a loop behind it."""
    around = next(at.file.above(at.statement))
    block = next((each for each in blocks(around) if at.statement in each), [])  # type: ignore[arg-type]
    if not at.is_whole:
        return
    for first, second in pairwise(block):
        if at.statement in (first, second) and _depend(first, second, Spot(at.file, at.function, first, first).scope):
            texts = at.file.text_of(first), at.file.text_of(second)
            yield 1.2, (at.file.replaced(first, texts[1]), at.file.replaced(second, texts[0]))
    if isinstance(around, ast.For) and at.statement is block[-1] and block[1:]:
        start, end = at.file.span(block[-2])[1], at.file.span(at.statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * around.col_offset}{at.file.text_of(at.statement)}"),)


def _depend(first: ast.stmt, second: ast.stmt, known: list[str]) -> bool:
    """Whether the order of two simple statements may matter: what one binds the other has."""
    bound, also = set(bound_in([first])) & names_in(second), set(bound_in([second])) & names_in(first)
    return not (blocks(first) or blocks(second)) and bool(bound or also) and bound <= {*known}


def of_siblings(at: Spot) -> Undone:
    """The statement as those of the file have it that say nearly the same: each piece that differs, then all."""
    if not at.is_whole or not at.is_on_device:
        return
    own, start = at.file.text_of(at.statement), at.file.span(at.statement)[0]
    unknown = _locals(at.file) - {*at.scope}
    for ratio, other in _siblings(at.file, own):
        edits = [each for each in _differences(own, other, start) if unknown.isdisjoint(_NAME.findall(each.text))]
        for edit in edits:
            yield 1.5 - ratio, (edit,)
        if len(edits) in (2, 3):
            yield 1.5 - ratio, tuple(edits)


@lru_cache(maxsize=4)
def _locals(file: KernelFile) -> set[str]:
    """The names that some function of a file has for itself."""
    found = set(bound_in(file.functions))
    return found.union(*map(parameters, file.functions))


@lru_cache(maxsize=1024)
def _siblings(file: KernelFile, own: str) -> list[tuple[float, str]]:
    """(how much is the same, text) of the statements that are most alike, or assign to the same name."""
    matcher, found = SequenceMatcher(None, "", _tokens_of(own), autojunk=False), []
    target = own.partition(" = ")[0] + " = "
    for text in _simple(file) - {own}:
        matcher.set_seq1(_tokens_of(text))
        is_alike = text.startswith(target) or (
            matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE and matcher.ratio() > _ALIKE
        )
        if is_alike:
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
    """Each piece in which two statements differ, as the other has it; what is assigned stays."""
    here, there = TOKEN.findall(own), TOKEN.findall(other)
    for kind, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
        old, new = "".join(here[a:b]), "".join(there[c:d])
        is_comma = {old.strip(), new.strip()} == {"", ","}  # before a closing bracket: it says nothing
        if kind != "equal" and a and not is_comma:
            first = start + len("".join(here[:a]))
            yield Edit(first, first + len(old), new)
