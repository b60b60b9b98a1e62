"""Masks: what they may lack, what is hidden by them, and the accesses that they guard."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from ..kernel_file import Change, KernelFile, calls_in, inside, names_in
from ..text import Edit
from ..triton_source import bound_in
from .patterns import FAMILIES, parsed
from .spots import Spot, Undone, place_of

# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)
# What masks are called, scores, positions of rows and of keys, and the size of a head.
_MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)
_SCORES = re.compile(r"qk|score|^s|att|logit", re.IGNORECASE)
_ROWS, _KEYS = re.compile(r"m|q|row|(^|_)i"), re.compile(r"n(?!t)|k|col|(^|_)j")
_DIMS = re.compile(r"D$|D_|DIM|DMODEL|HEAD", re.IGNORECASE)
_INFINITE, _ZERO = 'float("-inf")', "0.0"
# How many names of masks and tests of others are tried, and how many vectors of positions.
_FEW_NAMES, _FEW_TESTS, _FEW_VECTORS = 3, 8, 2


def class_of(file: KernelFile, node: ast.AST) -> str:
    """M3 for a bound of what there is, else M1."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return "M1"
    bound = node.comparators[0]
    is_position = isinstance(bound, ast.Subscript) or "offs" in file.text_of(bound)
    return "M1" if is_position or _SEEN.search(file.text_of(node)) else "M3"


def is_mask(at: Spot) -> bool:
    """Whether a statement gives a mask its value, by the name."""
    return any(map(_MASK.search, at.targets))


def condition_added(at: Spot) -> Undone:
    """One more term in a mask; first the test that hides the kernel's scores, where pairs are decided over."""
    pairs = [call.args[0] for call in at.calls("where") if call.args]
    masks = [node.value for node in at.nodes if isinstance(node, ast.keyword) and node.arg == "mask"]
    match at.value:
        case ast.Compare() as value if not _has_positions(value):
            pairs.append(value)
        case ast.Compare() | ast.BinOp(op=ast.BitAnd()) as value:
            masks.append(value)
        case ast.expr() as value if is_mask(at):
            masks.append(value)
    for node in (*pairs, *masks):
        hiding = _hiding(at) if node in pairs else []
        for rank, test in (*hiding, *_tests(at)):
            if test not in at.file.text_of(node):
                yield at.put(rank, node, "_it & _test", _test=test)


def guard_added(at: Spot) -> Undone:
    """`tl.where(rows >= keys, qk, float("-inf"))` for `qk`, with the test that another one has, or of two positions."""
    value = at.value
    if value is None or not isinstance(at.statement, ast.Assign) or not at.is_on_device:
        return
    is_score = any(map(_SCORES.search, at.targets))
    hidden, other = (_INFINITE, _ZERO) if is_score else (_ZERO, _INFINITE)
    tests = [(rank + 1.0, test) for rank, test in _tests(at)]
    if not isinstance(value, ast.Compare) and not calls_in(at.statement, "where", "load"):
        # A value that is assigned to itself, or a mere number, is what is left of a guard.
        sure = at.file.text_of(value) in (*at.targets, "0.0", "float(0.0)")
        likely = _guards_lost(at) if is_score else [*_hiding(at), *_guards_lost(at)]
        tests = [*((rank - sure, test) for rank, test in likely), *tests]
    for rank, test in tests:
        yield at.put(rank, value, "tl.where(_test, _it, _hidden)", _test=test, _hidden=hidden)
        yield at.put(rank + 1.0, value, "tl.where(_test, _it, _hidden)", _test=test, _hidden=other)


def mask_put_on(at: Spot) -> Undone:
    """A mask on an access that has none."""
    for call in at.calls(*FAMILIES["ACCESS"]):
        if not any(word.arg == "mask" for word in call.keywords):
            other, end = ", other=0.0" if call in at.calls("load") else "", at.file.span(call)[1] - 1
            for rank, test in _tests(at):
                yield rank, (Edit(end, end, f", mask={test}{other}"),)


def _has_positions(node: ast.AST) -> bool:
    is_named = any(name.startswith(("off", "o_", "m_")) for name in names_in(node))
    return is_named or bool(inside(node, ast.Subscript))


def _tests(at: Spot) -> list[tuple[float, str]]:
    """(rank, test) of what a mask may lack: what is called one, along each axis, then what the file compares elsewhere.

    Of names those first that nothing reads, then those that have the most words of the statement.
    """
    here = {word for name in at.reads for word in name.lower().split("_")}

    def unlikely(name: str) -> tuple[bool, int]:
        return name not in at.unread, -len(here & set(name.lower().split("_")))

    names = [name for name in at.scope if _MASK.search(name) and name not in at.targets]
    found = list[str]()
    for name in sorted(names, key=unlikely)[:_FEW_NAMES]:
        found += [f"{name}[:, None]", f"{name}[None, :]", name]
    known = [test for test in _conditions(at.file) if _is_known(at, test)]
    return [(1.5, test) for test in (*found, *known[:_FEW_TESTS])]


def _is_known(at: Spot, test: str) -> bool:
    """Whether the function knows each name of a test."""
    return names_in(parsed(test)) <= {*at.scope, "tl", "float"}


@lru_cache(maxsize=64)
def _conditions(file: KernelFile) -> list[str]:
    """The comparisons of positions in a file, each once."""
    nodes = [node for function in file.functions for node in inside(function, ast.Compare)]
    return list(dict.fromkeys(file.text_of(node) for node in nodes if _has_positions(node)))


@lru_cache(maxsize=256)
def _guards(file: KernelFile, within: ast.AST) -> dict[tuple[str, str], set[str]]:
    """The test of each guard in a file or a function, with what stands where it fails -> the names assigned so."""
    found: dict[tuple[str, str], set[str]] = {}
    for call in calls_in(within, "where"):
        if len(call.args) == 3:
            test, _, hidden = map(file.text_of, call.args)
            found.setdefault((test, hidden), set()).update(bound_in([file.statement(call)]))
    return found


def _hiding(at: Spot) -> list[tuple[float, str]]:
    """(rank, test) of the guards of a function that hide keys from rows: where they fail scores are -inf."""
    tests = dict.fromkeys(test for test, hidden in _guards(at.file, at.function) if "inf" in hidden)
    return [(0.6 + 0.2 * number, test) for number, test in enumerate(tests)]


def _guards_lost(at: Spot) -> Iterator[tuple[float, str]]:
    """(rank, test) of the guards that the same names have elsewhere, then of others, and of two positions."""
    for (test, _), targets in _guards(at.file, at.file.tree).items():
        if _is_known(at, test):
            # After the other sign: most lines have nothing to do with a guard.
            yield 2.2 if targets.isdisjoint(at.targets) else 1.0, test
    for test in _rows_and_keys(at):
        yield 1.5, test


def _rows_and_keys(at: Spot) -> Iterator[str]:
    """Rows against keys, as the function has them beside one another, also with where the tile begins."""
    starts = [name for loop in at.loops[:1] if isinstance(loop, ast.For) for name in bound_in([loop.target])]
    positions, text = _positions(at.function), at.file.text_of(at.function)
    for row in list(filter(_ROWS.search, positions))[-_FEW_VECTORS:]:
        for key in list(filter(_KEYS.search, positions))[-_FEW_VECTORS:]:
            here, there = f"{row}[:, None]", f"{key}[None, :]"
            if here not in text and f"{row}[None, :]" in text:
                here, there = f"{row}[None, :]", f"{key}[:, None]"
            yield f"{here} >= {there}"
            for start in starts:
                yield f"{here} >= ({start} + {there})"
                yield f"({start} + {here}) >= {there}"


@lru_cache(maxsize=256)
def _positions(function: ast.FunctionDef) -> list[str]:
    """The vectors of positions: what is made of tl.arange, or of one that is, but of no quotient or the head's dims."""
    found: dict[str, None] = {}
    for node in sorted(inside(function, ast.Assign), key=place_of):
        names = names_in(node.value)
        is_vector = names & found.keys() or calls_in(node.value, "arange")
        is_quotient = any(isinstance(each, (ast.Subscript, ast.Div)) for each in ast.walk(node.value))
        is_other = is_quotient or calls_in(node.value, "load", "where") or any(map(_DIMS.search, names))
        if is_vector and not is_other:
            found |= dict.fromkeys(bound_in([node]))
    return list(found)


def mask_dropped(file: KernelFile) -> Iterator[Change]:
    """An access without its `mask=`, and without `other=`, which means nothing alone."""
    for node in file.calls(*FAMILIES["ACCESS"]):
        words = [word for word in node.keywords if word.arg in ("mask", "other")]
        if any(word.arg == "mask" for word in words):
            yield Change("M3", node, tuple(_without(file, node, word) for word in words))


def _without(file: KernelFile, call: ast.Call, word: ast.keyword) -> Edit:
    """A keyword taken away, with the comma before it."""
    start, end = file.span(word)
    before = [other for other in (*call.args, *call.keywords) if file.span(other)[0] < start]
    return Edit(file.operator(max(before, key=file.span), ",").start, end, "")
