"""Edits that no pattern says."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from itertools import combinations, filterfalse, islice, pairwise

from ..kernel_file import KernelFile
from ..parameter_names import (
    belongs,
    has_axis,
    has_strides,
    is_like_one,
    others_of,
    scales,
    stride_by_name,
)
from ..syntax import (
    Edit,
    blocks,
    bound_in,
    called,
    calls_in,
    inside,
    keywords,
    last_name,
    names_in,
    ordered_names,
    parameters,
)
from .patterns import FAMILIES, TOKEN, Spot, Undone, is_delta, parsed, replaced

# How much later each further name is tried in the place of one; and a tile for a pointer, or the reverse.
_NEXT, _OTHER_KIND = 0.2, 1.5
# How much of two statements must be the same, and how many are looked at.
_ALIKE, _FEW_STATEMENTS = 0.7, 5
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_INFINITE = 'float("-inf")'
_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
# What masks are called, and scores.
_MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)
_SCORES = re.compile(r"qk|score|^s|att|logit", re.IGNORECASE)
# How many names or vectors are tried, and how many tests or rows.
_FEW, _MORE = 3, 8


def another_name(at: Spot) -> Undone:
    own = parameters(at.function)
    for node in at.names:
        above = next(at.file.above(node), None)
        if isinstance(above, ast.Attribute) and above.attr in ("dtype", "type", "device"):
            continue  # nearly all have the same
        for number, (unlikely, other) in enumerate(others_of(node.id, at.scope, at.reads)):
            is_other_kind = at.is_on_device and (node.id in own) != (other in own)
            rank = 1.0 + unlikely + _OTHER_KIND * is_other_kind + _NEXT * number
            yield at.put(rank, node, "_new", other)


def term_missing(at: Spot) -> Undone:
    terms = list(_terms(at)) if at.is_on_device else []
    own = parameters(at.function)
    for node in at.nodes if terms else ():
        above, template, is_offset = next(at.file.above(node), None), "_it + _new", False
        match node:
            case ast.Name(name) if name in own:
                is_first = isinstance(above, ast.Call) and node in above.args[:1]
                is_offset = node is at.value or is_first
            case ast.BinOp():
                is_offset = not isinstance(above, ast.BinOp) and has_strides(node)
            case ast.Constant(0):
                is_offset, template = isinstance(above, ast.AugAssign), "_new"
        for rank, term in terms if is_offset else ():
            yield at.put(rank, node, template, term)


def _terms(at: Spot) -> Iterator[tuple[float, str]]:
    beside = {*at.reads, *at.targets}
    left = at.unread.intersection(at.scope, bound_in(*at.function.body))
    for stride in filter(has_axis, at.scope):
        tensor, axis = stride_by_name(stride)
        for index in sorted(filterfalse(has_axis, left)) if stride in at.unread else ():
            yield 0.2, f"{index} * {stride}"
        is_own = not tensor or belongs(stride, beside)
        if stride not in beside and (is_own or is_like_one(stride, beside)):
            for index in _indices(at.file, axis):
                if index in at.scope and index not in beside:
                    rank = (0.3 if stride in at.unread else 1.8) + (not is_own)
                    yield rank, f"{index} * {stride}"


@lru_cache(maxsize=256)
def _indices(file: KernelFile, axis: str) -> list[str]:
    found = Counter[str]()
    for node in inside(file.tree, ast.BinOp):
        match node:
            case ast.BinOp(
                ast.Name(index) | ast.Call(ast.Attribute(ast.Name(index), "to")),
                ast.Mult(),
                ast.Name(stride),
            ):
                found[index] += stride_by_name(stride)[1] == axis
    return sorted(filter(found.get, found), key=lambda index: (-found[index], index))[:_FEW]


# --- factors, rows and constants


def factor_added(at: Spot) -> Undone:
    value = at.value
    if value is None or has_strides(value) or any(map(_MASK.search, at.targets)):
        return
    factors = [(1.3 + (name in at.reads), name) for name in scales(at.scope)]
    for further, part in _parts(value):
        for rank, factor in (*factors, (3.0, _LOG2E), (3.0, _LN2)):
            yield at.put(rank + further, part, "_it * _new", factor)


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    is_bound, step, parts = called(value) in ("maximum", "minimum"), 0.1, list[ast.expr]()
    yield further + 0.6 * is_bound, value  # seldom of both sides
    match value:
        case ast.Call(ast.Attribute(inner, "to")) | ast.Call(
            ast.Attribute(attr="where"), [_, inner, _]
        ):
            parts = [inner]
        case ast.Call(ast.Attribute(attr="exp" | "exp2" | "log" | "log2"), [inner, *_]):
            parts = [inner]
        case ast.Call(args=[_, _]) if is_bound:
            step, parts = 0.3, value.args
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            step, parts = 0.2, [left, right]
    for part in parts:
        yield from _parts(part, further + step)


def delta_taken(at: Spot) -> Undone:
    pointers = parameters(at.function) if calls_in(at.function, "program_id") else []
    rows = [*filterfalse(pointers.__contains__, filter(is_delta, at.scope))]
    for node in inside(at.value, ast.BinOp) if rows and at.value is not None else ():
        for side in (node.right, node.left) if isinstance(node.op, ast.Mult) else ():
            for row in rows if isinstance(side, ast.Name) or called(side) == "dot" else ():
                yield at.put(0.9, side, "_it - _new[:, None]", row)
                yield at.put(1.2, side, "_it - _new[None, :]", row)


def constant_changed(at: Spot) -> Undone:
    """In host code any number may stand for a scale."""
    known, rank = at.scope, 1.0
    if not at.is_on_device:
        known, rank = [*known, *map(ast.unparse, inside(at.function, ast.Attribute))], -2.0
    for node in inside(at.root, ast.Constant):
        value, others = node.value, list[tuple[float, str]]()
        if type(value) is int:
            others = [(2.5, str(value + 1)), (2.5, str(value - 1))][: 1 + (value > 0)]
        elif isinstance(value, float):
            if value in (0.0, 1.0):
                others = [(2.0, _INFINITE), (2.0, "0.0" if value else "1.0")]
            if value == 1.0 or not at.is_on_device:
                factors = [*dict.fromkeys(scales(known))]
                both = [] if at.is_on_device else combinations(factors[:_FEW], 2)
                others += [(rank, factor) for factor in factors]
                others += [(rank + 1.0, " * ".join(pair)) for pair in both]
        for cost, text in others:
            yield at.put(cost, node, "_new", text)


# --- launches

# Numbers of programs are few, and tried early.
_OF_GRID = -1.5
_HEADS, _DIM = (
    re.compile(r"head|^H|\[1\]", re.IGNORECASE),
    re.compile(r"dim|^D$|\[(-1|3)\]", re.IGNORECASE),
)
# What holds these is an index, or no list that could be exchanged.
_OPEN = (ast.Slice, ast.Starred)


def exchanged(at: Spot) -> Undone:
    """Neighbours that are passed or returned."""
    for node in at.nodes if not at.is_on_device else ():
        several = list[ast.expr]()
        match node:
            case ast.Call(ast.Subscript(), arguments, words):
                passed = [*arguments, *(word.value for word in words)]
                several = [each for each in passed if isinstance(each, ast.Name)]
            case ast.Tuple(several) if not inside(node, *_OPEN):
                pass
        for first, second in pairwise(several):
            texts = list(map(at.file.text_of, (first, second)))
            if texts[0] != texts[1]:
                edits = at.file.replaced(first, texts[1]), at.file.replaced(second, texts[0])
                rank = _OF_GRID if node in at.file.in_grids else 0.6
                yield rank + isinstance(node, ast.Call), edits


def size_added(at: Spot) -> Undone:
    """To a number of programs."""
    sizes = _sizes(at.function) if not at.is_on_device else []
    for node in filter(at.file.in_grids.__contains__, inside(at.root, ast.Tuple)):
        for part in filter(lambda each: at.file.text_of(each) in sizes, node.elts):
            for number, size in enumerate(sizes):
                yield at.put(_OF_GRID + 0.1 * number, part, "_it * _new", size)


@lru_cache(maxsize=256)
def _sizes(host: ast.FunctionDef) -> list[str]:
    """Heads first, and no head dim."""
    found = list[str]()
    for made in inside(host, ast.Assign):
        if "shape" in map(last_name, ast.walk(made.value)):
            found += bound_in(made)
    found += map(ast.unparse, _read_sizes(host))
    heads, others = list[str](), list[str]()
    for size in dict.fromkeys(filterfalse(_DIM.search, found)):
        (heads if _HEADS.search(size) else others).append(size)
    return heads + others


def _read_sizes(host: ast.FunctionDef) -> Iterator[ast.Subscript]:
    for read in inside(host, ast.Subscript):
        if last_name(read.value) == "shape":
            yield read


# --- masks


def test_added(at: Spot) -> Undone:
    nodes = list[ast.expr]()
    for call in calls_in(at.root, "where"):
        nodes += call.args[:1]
    for word in inside(at.root, ast.keyword):
        if word.arg == "mask":
            nodes.append(word.value)
    match at.value:
        case ast.Compare() | ast.BinOp(op=ast.BitAnd()):
            nodes.append(at.value)
        case ast.expr() if any(map(_MASK.search, at.targets)):
            nodes.append(at.value)
    for node in nodes:
        for rank, test in _tests(at):
            if test not in at.file.text_of(node):
                yield at.put(rank, node, "_it & _new", test)


def mask_put_on(at: Spot) -> Undone:
    for call in calls_in(at.root, *FAMILIES["ACCESS"]):
        if "mask" not in keywords(call):
            other = ", other=0.0" if called(call) == "load" else ""
            end = at.file.span(call)[1] - 1
            for rank, test in _tests(at):
                yield rank, (Edit(end, end, f", mask={test}{other}"),)


def guard_added(at: Spot) -> Undone:
    value = at.value
    if value is None or not isinstance(at.statement, ast.Assign) or not at.is_on_device:
        return
    hidden = (_INFINITE, "0.0") if any(map(_SCORES.search, at.targets)) else ("0.0", _INFINITE)
    # A value that is assigned to itself, or a mere number, is what is left of a guard.
    further = -1.0 if at.file.text_of(value) in (*at.targets, "0.0", "float(0.0)") else 0.0
    further += isinstance(value, ast.Compare) or bool(calls_in(at.statement, "where", "load"))
    for rank, test in _tests(at):
        for more, text in enumerate(hidden):
            yield at.put(rank + further + more, value, f"tl.where(_new, _it, {text})", test)


def _tests(at: Spot) -> list[tuple[float, str]]:
    found = dict[str, float]()
    for number, (test, hidden, targets, function) in enumerate(_guards(at.file)):
        if "inf" in hidden and function is at.function:
            found.setdefault(test, 0.6 + 0.01 * number)
        # After the other sign: most lines have nothing to do with a guard.
        found.setdefault(test, 1.0 if targets & {*at.targets} else 2.2)
    more = filterfalse(found.__contains__, _conditions(at.file))
    found |= dict.fromkeys(islice(more, _MORE), 2.0)
    scope = {*at.scope, "tl", "float"}
    known = list[tuple[float, str]]()
    for test, rank in found.items():
        if names_in(parsed(test)) <= scope:
            known.append((rank, test))
    masks = list(filterfalse(at.targets.__contains__, filter(_MASK.search, at.scope)))
    masks.sort(key=lambda name: name not in at.unread)
    for name in masks[:_FEW]:
        known += [(1.5, f"{name}[:, None]"), (1.5, f"{name}[None, :]"), (1.5, name)]
    return known


@lru_cache(maxsize=4)
def _guards(file: KernelFile) -> list[tuple[str, str, set[str], ast.AST]]:
    found = list[tuple[str, str, set[str], ast.AST]]()
    for function in file.functions:
        for call in calls_in(function, "where"):
            if len(call.args) == 3:
                test, _, hidden = map(file.text_of, call.args)
                found.append((test, hidden, set(bound_in(file.statement(call))), function))
    return found


@lru_cache(maxsize=4)
def _conditions(file: KernelFile) -> list[str]:
    found = dict[str, None]()
    for function in file.functions:
        for node in inside(function, ast.Compare):
            if inside(node, ast.Subscript):
                found[file.text_of(node)] = None
    return list(found)


def moved(at: Spot) -> Undone:
    """Around its neighbour; the last one of a loop behind it."""
    file, around, own = at.file, next(at.file.above(at.statement)), at.file.text_of(at.statement)
    for block in blocks(around) if at.is_whole else ():
        for first, second in pairwise(block):
            if at.statement not in (first, second) or blocks(first) or blocks(second):
                continue
            bound = names_in(second).intersection(bound_in(first))
            also = names_in(first).intersection(bound_in(second))
            if (bound or also) and bound.issubset(Spot(file, at.function, first, first).scope):
                texts = file.text_of(second), file.text_of(first)
                yield 1.2, tuple(map(file.replaced, (first, second), texts))
        if isinstance(around, ast.For) and block[1:] and at.statement is block[-1]:
            start, end = file.span(block[-2])[1], file.span(at.statement)[1]
            yield 1.0, (Edit(start, end, f"\n{' ' * around.col_offset}{own}"),)


def grown(at: Spot) -> Undone:
    """What each turn of a loop multiplies again is multiplied where it is used."""
    statement, edits = at.statement, list[Edit]()
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Mult):
        return
    if next(at.file.above(statement, ast.For), None) is None:
        return
    for block in blocks(next(at.file.above(statement))):
        for behind in block[block.index(statement) + 1 :] if statement in block else ():
            for use in ordered_names(behind, ast.Load):
                if [use.id] == bound_in(statement):
                    holes = {"_it": use, "_by": statement.value}
                    edits.append(replaced(at.file, use, "_it * _by", holes))
    if edits:
        yield 0.5, (at.file.replaced(statement, "pass"), *edits)


def of_siblings(at: Spot) -> Undone:
    """Each piece that differs, then all."""
    if not at.is_whole or not at.is_on_device:
        return
    own, start = at.file.text_of(at.statement), at.file.span(at.statement)[0]
    unknown = set(bound_in(*at.file.functions)) - {*at.scope}
    for number, other in enumerate(_siblings(at.file, own)):
        rank, edits = 0.6 + 0.1 * number, list[Edit]()
        for edit in _differences(own, other, start):
            if unknown.isdisjoint(_NAME.findall(edit.text)):
                edits.append(edit)
                yield rank, (edit,)
        if len(edits) in (2, 3):
            yield rank, tuple(edits)


@lru_cache(maxsize=1024)
def _siblings(file: KernelFile, own: str) -> list[str]:
    texts = set(map(file.text_of, inside(file.tree, ast.Assign, ast.AugAssign, ast.Expr)))
    return get_close_matches(own, sorted(texts - {own}), _FEW_STATEMENTS, _ALIKE)


def _differences(own: str, other: str, start: int) -> Iterator[Edit]:
    here, there = TOKEN.findall(own), TOKEN.findall(other)
    for kind, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
        if kind != "equal" and a:
            first, old = start + len("".join(here[:a])), "".join(here[a:b])
            yield Edit(first, first + len(old), "".join(there[c:d]))
