"""A grammar of single edits: names, terms, factors, constants, tests, order, and what statements like it say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import combinations, pairwise

from ..kernel_file import KernelFile, by_parameter, called, calls_in, calls_of, inside, names_in, parameters
from ..parameter_names import stride_by_name
from ..text import Edit
from ..triton_source import blocks, bound_in
from .name_kinds import belongs, core, has_strides, is_like_one, is_stride, others_of, scales
from .patterns import FAMILIES, TOKEN, is_delta, parsed
from .plants import owner_of
from .spots import Spot, Undone, place_of

# How much later each further name is tried in the place of one, so that they leave room to what other rows say; and a
# tile for a pointer, or the reverse, which would not run.
_NEXT, _OTHER_KIND = 0.2, 1.5
# How much of two statements must be the same for one to be a source of edits of the other.
_ALIKE, _FEW_STATEMENTS = 0.7, 5
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
# What masks are called, scores, positions of rows and of keys, and the size of a head.
_MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)
_SCORES = re.compile(r"qk|score|^s|att|logit", re.IGNORECASE)
_ROWS, _KEYS = re.compile(r"m|q|row|(^|_)i"), re.compile(r"n(?!t)|k|col|(^|_)j")
_DIMS = re.compile(r"D$|D_|DIM|DMODEL|HEAD", re.IGNORECASE)
_POSITIONS = re.compile(r"^(o|off|offs|offsets?|idx|index|pos|rows?|cols?|range)_|_(offs|offsets?|idx|pos|range)$")
_INFINITE, _ZERO = 'float("-inf")', "0.0"
# How many names of masks and tests of others are tried, and how many vectors of positions and other rows.
_FEW_NAMES, _FEW_TESTS, _FEW_VECTORS, _FEW_ROWS = 3, 8, 3, 8


def another_name(at: Spot) -> Undone:
    """Another name of its kind: a stride, an offset, a size, a tensor."""
    own = parameters(at.function)
    for node in at.names:
        above = next(at.file.above(node), None)
        if isinstance(above, ast.Attribute) and above.attr in ("dtype", "type", "device"):
            continue  # nearly all have the same
        for number, (unlikely, other) in enumerate(others_of(node.id, at.scope, at.reads)):
            is_other_kind = at.is_on_device and (node.id in own) != (other in own)
            yield at.put(1.0 + unlikely + _OTHER_KIND * is_other_kind + _NEXT * number, node, other)


def owner_meant(at: Spot) -> Undone:
    """`do.stride(1)` for `q.stride(1)` where the parameter of that place is called stride_doh."""
    for kernel in at.file.kernels if not at.is_on_device else ():
        for call in calls_of(at.file, kernel.name):
            for name, value in by_parameter(call, parameters(kernel)):
                owner, tensor = owner_of(value), core(stride_by_name(name)[0])
                if owner in at.nodes and owner is not None and tensor not in ("", core(owner.id)):
                    yield from (at.put(-1.0, owner, other) for other in at.scope if core(other) == tensor)


def term_missing(at: Spot) -> Undone:
    """`b * stride_qb + h * stride_qh` for `b * stride_qb`: the index with which others of that axis are multiplied."""
    terms = list(_terms(at)) if at.is_on_device else []
    own = parameters(at.function)
    for node in at.nodes if terms else ():
        above = next(at.file.above(node), None)
        is_first = isinstance(above, ast.Call) and node in above.args[:1]
        is_pointer = isinstance(node, ast.Name) and node.id in own and (node is at.value or is_first)
        is_sum = isinstance(node, ast.BinOp) and not isinstance(above, ast.BinOp) and has_strides(node)
        for rank, term in terms if is_pointer or is_sum else ():
            yield at.put(rank, node, "_it + _term", _term=term)
        is_nothing = isinstance(node, ast.Constant) and node.value == 0 and isinstance(above, ast.AugAssign)
        for rank, term in terms if is_nothing else ():
            yield at.put(rank, node, "_term", _term=term)


def _terms(at: Spot) -> Iterator[tuple[float, str]]:
    """(rank, term) of what an offset here may lack; first an index and a stride that nothing reads."""
    beside, made = {*at.reads, *at.targets}, set(bound_in(at.function.body))
    for stride in filter(is_stride, at.scope):
        is_unread = stride in at.unread
        is_own = belongs(stride, beside) or not stride_by_name(stride)[0]
        for index in at.scope if is_unread else ():
            if index in at.unread & made and index != stride and not is_stride(index):
                yield 0.2, f"{index} * {stride}"
        if stride not in beside and (is_own or is_like_one(stride, beside)):
            for index in _indices(at.file, stride_by_name(stride)[1]):
                if index in at.scope and index not in beside:
                    yield (0.3 if is_unread else 1.8) + (not is_own), f"{index} * {stride}"


@lru_cache(maxsize=256)
def _indices(file: KernelFile, axis: str) -> list[str]:
    """The indices that stand before strides of an axis, the most frequent."""
    found = list[str]()
    for node in file.inside_kernels(ast.BinOp):
        match node.left, node.right:
            case ((ast.Name(index) | ast.Call(ast.Attribute(ast.Name(index), "to"))), ast.Name(stride)):
                if isinstance(node.op, ast.Mult) and stride_by_name(stride)[1] == axis:
                    found.append(index)
    return sorted(set(found), key=lambda index: (-found.count(index), index))[:_FEW_NAMES]


# --- factors, rows and constants


def factor_added(at: Spot) -> Undone:
    """The value that is assigned, or a part of it, times a factor in scope; or times log2(e) or ln(2)."""
    value = at.value
    if value is None or has_strides(value) or any(map(_MASK.search, at.targets)):
        return
    for further, part in _parts(value):
        for factor in scales(at.scope):
            again = 1.0 if factor in names_in(value) else 0.0
            yield at.put(1.3 + further + again, part, "_it * _factor", _factor=factor)
        for factor in (_LOG2E, _LN2):
            yield at.put(3.0 + further, part, "_it * _factor", _factor=factor)


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    """A value and the parts of it that a factor may be of, with how much less likely each is."""
    is_bound = called(value) in ("maximum", "minimum")  # seldom of both sides
    yield further + 0.6 * is_bound, value
    match value:
        case ast.Call(ast.Attribute(inner, "to")) | ast.Call(ast.Attribute(attr="where"), [_, inner, _]):
            yield from _parts(inner, further + 0.1)
        case ast.Call(ast.Attribute(attr="exp" | "exp2" | "log" | "log2"), [inner, *_]):
            yield from _parts(inner, further + 0.1)
        case ast.Call(args=[first, second]) if is_bound:
            yield from _parts(first, further + 0.3)
            yield from _parts(second, further + 0.3)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            yield from _parts(left, further + 0.2)
            yield from _parts(right, further + 0.2)


def delta_taken(at: Spot) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    pointers = parameters(at.function) if calls_in(at.function, "program_id") else []
    rows = [name for name in at.scope if is_delta(name) and name not in pointers]
    for product in inside(at.value, ast.BinOp) if rows and at.value is not None else ():
        for side in (product.right, product.left) if isinstance(product.op, ast.Mult) else ():
            for row in rows if isinstance(side, ast.Name) or called(side) == "dot" else ():
                yield at.put(0.9, side, "_it - _row[:, None]", _row=row)
                yield at.put(1.2, side, "_it - _row[None, :]", _row=row)


def constant_changed(at: Spot) -> Undone:
    """A whole number one more or less; 0, 1 and -inf for one another; a factor of 1.0 by what has a name."""
    for node in inside(at.root, ast.Constant):
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool):
            for other in (value + 1, value - 1)[: 1 + (value > 0)]:
                yield at.put(2.5, node, "_other", _other=str(other))
        elif isinstance(value, float) and value in (0.0, 1.0):
            for rank, text in _factors(at) if value else ():
                yield at.put(rank, node, "_other", _other=text)
            yield at.put(2.0, node, "_other", _other="0.0" if value else "1.0")
            yield at.put(2.0, node, 'float("-inf")')


def _factors(at: Spot) -> Iterator[tuple[float, str]]:
    """(rank, text) of what a factor of 1 may have been: a scale, two of them, a row of the kernel."""
    known, text = scales(at.scope), at.file.text_of(at.function)
    for factor in known:
        yield 1.0, factor
    for first, second in combinations(known[:_FEW_ROWS], 2):
        yield 1.9, f"{first} * {second}"
    own = parameters(at.function)
    rows = [name for name in at.scope if name not in own and not _POSITIONS.search(name) and not _MASK.search(name)]
    for number, row in enumerate(rows[::-1][:_FEW_ROWS]):
        form = f"{row}[:, None]"
        yield 1.6 + (form not in text) * (0.4 + 0.1 * number), form


# --- masks


def test_added(at: Spot) -> Undone:
    """One more term in a mask, or in what decides over pairs."""
    nodes = [call.args[0] for call in at.calls("where") if call.args]
    nodes += [node.value for node in at.nodes if isinstance(node, ast.keyword) and node.arg == "mask"]
    is_mask = isinstance(at.value, ast.Compare) or any(map(_MASK.search, at.targets))
    if at.value is not None and (is_mask or (isinstance(at.value, ast.BinOp) and isinstance(at.value.op, ast.BitAnd))):
        nodes.append(at.value)
    for node in nodes:
        for rank, test in _tests(at):
            if test not in at.file.text_of(node):
                yield at.put(rank, node, "_it & _test", _test=test)


def mask_put_on(at: Spot) -> Undone:
    """A mask on an access that has none."""
    for call in at.calls(*FAMILIES["ACCESS"]):
        if not any(word.arg == "mask" for word in call.keywords):
            other, end = ", other=0.0" if called(call) == "load" else "", at.file.span(call)[1] - 1
            for rank, test in _tests(at):
                yield rank, (Edit(end, end, f", mask={test}{other}"),)


def guard_added(at: Spot) -> Undone:
    """`tl.where(rows >= keys, qk, float("-inf"))` for `qk`."""
    value = at.value
    if value is None or not isinstance(at.statement, ast.Assign) or not at.is_on_device:
        return
    is_score = any(map(_SCORES.search, at.targets))
    hidden = (_INFINITE, _ZERO) if is_score else (_ZERO, _INFINITE)
    # A value that is assigned to itself, or a mere number, is what is left of a guard.
    further = -1.0 if at.file.text_of(value) in (*at.targets, "0.0", "float(0.0)") else 0.0
    further += isinstance(value, ast.Compare) or bool(calls_in(at.statement, "where", "load"))
    for rank, test in _tests(at):
        for more, text in enumerate(hidden):
            yield at.put(rank + further + more, value, "tl.where(_test, _it, _hidden)", _test=test, _hidden=text)


def _tests(at: Spot) -> list[tuple[float, str]]:
    """(rank, test) of what may be lacking: what hides scores here, or the same names elsewhere; other comparisons of
    positions in the file; what is called a mask, along each axis; then two positions, as the function has them."""
    found = dict[str, float]()
    for number, (test, hidden, targets, function) in enumerate(_guards(at.file)):
        if "inf" in hidden and function is at.function:
            found.setdefault(test, 0.6 + 0.01 * number)
        # After the other sign: most lines have nothing to do with a guard.
        found.setdefault(test, 1.0 if targets & {*at.targets} else 2.2)
    found |= dict.fromkeys([test for test in _conditions(at.file) if test not in found][:_FEW_TESTS], 2.0)
    known = [(rank, test) for test, rank in found.items() if names_in(parsed(test)) <= {*at.scope, "tl", "float"}]
    names = [name for name in at.scope if _MASK.search(name) and name not in at.targets]
    names.sort(key=lambda name: name not in at.unread)
    for name in names[:_FEW_NAMES]:
        known += [(1.5, f"{name}[:, None]"), (1.5, f"{name}[None, :]"), (1.5, name)]
    return [*known, *((1.5, test) for test in _of_positions(at))]


@lru_cache(maxsize=4)
def _guards(file: KernelFile) -> list[tuple[str, str, set[str], ast.AST]]:
    """(test, what stands where it fails, the names assigned so, function) of each guard in a file."""
    found = list[tuple[str, str, set[str], ast.AST]]()
    for function in file.functions:
        for call in calls_in(function, "where"):
            if len(call.args) == 3:
                test, _, hidden = map(file.text_of, call.args)
                found.append((test, hidden, set(bound_in([file.statement(call)])), function))
    return found


@lru_cache(maxsize=4)
def _conditions(file: KernelFile) -> list[str]:
    """The comparisons of positions in a file, each once."""
    nodes = [node for function in file.functions for node in inside(function, ast.Compare)]
    return list(dict.fromkeys(file.text_of(node) for node in nodes if inside(node, ast.Subscript)))


def _of_positions(at: Spot) -> Iterator[str]:
    """Rows against keys, along either axis, also with where the tile begins."""
    starts = [name for loop in at.loops[:1] if isinstance(loop, ast.For) for name in bound_in([loop.target])]
    positions = [name for name in _positions(at.function) if not _MASK.search(name)]
    for row in list(filter(_ROWS.search, positions))[-_FEW_VECTORS:]:
        for key in list(filter(_KEYS.search, positions))[-_FEW_VECTORS:]:
            for here, there in ((f"{row}[:, None]", f"{key}[None, :]"), (f"{row}[None, :]", f"{key}[:, None]")):
                yield f"{here} >= {there}"
                for start in starts:
                    yield f"{here} >= ({start} + {there})"
                    yield f"({start} + {here}) >= {there}"


@lru_cache(maxsize=256)
def _positions(function: ast.FunctionDef) -> list[str]:
    """The vectors of positions: what is called so, or made of tl.arange, but of no quotient or the head's dims."""
    found = dict.fromkeys(name for name in parameters(function) if _POSITIONS.search(name))
    for node in sorted(inside(function, ast.Assign), key=place_of):
        names = names_in(node.value)
        is_vector = names & found.keys() or calls_in(node.value, "arange")
        is_quotient = any(isinstance(each, (ast.Subscript, ast.Div)) for each in ast.walk(node.value))
        is_other = is_quotient or calls_in(node.value, "load", "where") or any(map(_DIMS.search, names))
        if is_vector and not is_other:
            found |= dict.fromkeys(bound_in([node]))
    return list(found)


# --- statements


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
        is_quick = matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE
        if text.startswith(target) or (is_quick and matcher.ratio() > _ALIKE):
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
