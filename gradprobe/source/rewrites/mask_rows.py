"""Masks: what they may lack, what is hidden by them, and the accesses that they guard."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from ..kernel_file import Change, KernelFile, calls_in, inside, names_in
from ..text import Edit
from ..triton_source import bound_in
from .patterns import FAMILIES, parsed
from .spots import Spot, Undone, place_of

# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)
# What masks are called.
_MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)
# How the field names what is hidden with -inf, positions of rows and of keys, and the size of a head.
_SCORES = re.compile(r"qk|score|^s|att|logit", re.IGNORECASE)
_ROWS, _KEYS = re.compile(r"m|q|row|(^|_)i"), re.compile(r"n(?!t)|k|col|(^|_)j")
_DIMS = re.compile(r"D$|D_|DIM|DMODEL|HEAD", re.IGNORECASE)
_HIDDEN = ('float("-inf")', "0.0")
_AXES = ("[:, None]", "[None, :]")
# How many vectors of positions, names of masks and terms of others are tried.
_FEW_VECTORS, _FEW_NAMES, _FEW_TERMS = 2, 3, 8
Guard = tuple[str, str, frozenset[str]]
"""A test, what stands where it fails, and the names that are assigned."""


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
    tests = [call.args[0] for call in at.calls("where") if call.args]
    masks = [node.value for node in at.nodes if isinstance(node, ast.keyword) and node.arg == "mask"]
    match at.value:
        case ast.Compare() as value if not _has_positions(value):
            tests.append(value)
        case ast.Compare() | ast.BinOp(op=ast.BitAnd()) as value:
            masks.append(value)
        case ast.expr() as value if is_mask(at):
            masks.append(value)
    terms = [(1.5, term) for term in _terms(at)]
    for node in (*tests, *masks):
        for rank, term in [*(_hiding(at) if node in tests else ()), *terms]:
            if term not in at.file.text_of(node):
                yield at.put(rank, node, "_it & _term", _term=term)


def _has_positions(node: ast.AST) -> bool:
    is_named = any(name.startswith(("off", "o_", "m_")) for name in names_in(node))
    return is_named or bool(inside(node, ast.Subscript))


def _terms(at: Spot) -> list[str]:
    """What a mask may lack: what the function calls a mask, along each axis, then what the file compares elsewhere.

    Of names those first that nothing reads, then those that have the most words of the statement.
    """
    names = [name for name in at.scope if _MASK.search(name) and name not in at.targets]
    here = {word for name in at.reads for word in name.lower().split("_")}
    names.sort(key=lambda name: (name not in at.unread, -len(here & set(name.lower().split("_")))))
    named = [f"{name}{axis}" for name in names[:_FEW_NAMES] for axis in (*_AXES, "")]
    return [*named, *(test for test in _conditions(at.file) if _is_known(at, test))][: len(named) + _FEW_TERMS]


def _is_known(at: Spot, test: str) -> bool:
    """Whether the function knows each name of a test."""
    return names_in(parsed(test)) <= {*at.scope, "tl", "float"}


@lru_cache(maxsize=64)
def _conditions(file: KernelFile) -> list[str]:
    """The comparisons of positions in a file, each once."""
    nodes = [node for function in file.functions for node in inside(function, ast.Compare)]
    return list(dict.fromkeys(file.text_of(node) for node in nodes if _has_positions(node)))


def guard_added(at: Spot) -> Undone:
    """`tl.where(rows >= keys, qk, float("-inf"))` for `qk`, with the test that another one has, or of two positions."""
    value = at.value
    if value is None or not isinstance(at.statement, ast.Assign) or not at.is_on_device:
        return
    guards = [(2.5, test, hidden) for test in _terms(at) for hidden in _HIDDEN]
    if not isinstance(value, ast.Compare) and not calls_in(at.statement, "where", "load"):
        # A value that is assigned to itself, or a mere number, is what is left of a guard.
        sure = at.file.text_of(value) in (*at.targets, "0.0", "float(0.0)")
        guards += [(rank - sure, test, hidden) for rank, test, hidden in _likely_guards(at)]
    for rank, test, hidden in guards:
        yield at.put(rank, value, "tl.where(_test, _it, _hidden)", _test=test, _hidden=hidden)


def _likely_guards(at: Spot) -> Iterator[tuple[float, str, str]]:
    """(rank, test, what stands where it fails) of the guards that a value may have lost."""
    targets = set(at.targets)
    for test, hidden, of in _guards(at.file, at.file.tree):
        if _is_known(at, test):
            # After the other sign: what is left of a guard says so, and most lines have nothing to do with one.
            yield 1.0 if of & targets else 2.2, test, hidden
    is_score = any(map(_SCORES.search, targets))
    if not is_score:
        yield from ((rank, test, "0.0") for rank, test in _hiding(at))
    for test in _rows_and_keys(at):
        yield 1.5, test, _HIDDEN[not is_score]
        yield 2.5, test, _HIDDEN[is_score]


@lru_cache(maxsize=256)
def _guards(file: KernelFile, within: ast.AST) -> list[Guard]:
    """The guards in a file or a function, each once."""
    found: dict[Guard, None] = {}
    for call in calls_in(within, "where"):
        if len(call.args) == 3:
            test, _, hidden = map(file.text_of, call.args)
            found[test, hidden, frozenset(bound_in([file.statement(call)]))] = None
    return list(found)


def _hiding(at: Spot) -> list[tuple[float, str]]:
    """(rank, test) of the guards of a function that hide keys from rows: where they fail scores are -inf."""
    tests = dict.fromkeys(test for test, hidden, _ in _guards(at.file, at.function) if "inf" in hidden)
    return [(0.6 + 0.2 * number, test) for number, test in enumerate(tests)]


def _rows_and_keys(at: Spot) -> Iterator[str]:
    """Rows against keys, as the function has them beside one another, also with where the tile begins."""
    targets = [each.target for each in at.loops[:1] if isinstance(each, ast.For)]
    starts = [target.id for target in targets if isinstance(target, ast.Name)]
    positions, text = _positions(at.function), at.file.text_of(at.function)
    rows, keys = ([name for name in positions if kind.search(name)][-_FEW_VECTORS:] for kind in (_ROWS, _KEYS))
    for row, key in product(rows, keys):
        is_turned = f"{row}{_AXES[1]}" in text and f"{row}{_AXES[0]}" not in text
        here, there = row + _AXES[is_turned], key + _AXES[not is_turned]
        yield f"{here} >= {there}"
        for start in starts:
            yield f"{here} >= ({start} + {there})"
            yield f"({start} + {here}) >= {there}"


@lru_cache(maxsize=256)
def _positions(function: ast.FunctionDef) -> list[str]:
    """The vectors of positions: what is made of tl.arange, or of one that is, but of no quotient or the head's dims."""
    found: dict[str, None] = {}
    for node in sorted(inside(function, ast.Assign), key=place_of):
        value, names = node.value, names_in(node.value)
        is_quotient = any(isinstance(each, (ast.Subscript, ast.Div)) for each in ast.walk(value))
        is_vector = names & found.keys() or calls_in(value, "arange")
        if is_vector and not (is_quotient or calls_in(value, "load", "where")) and not any(map(_DIMS.search, names)):
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


def mask_put_on(at: Spot) -> Undone:
    """A mask on an access that has none."""
    for call in at.calls(*FAMILIES["ACCESS"]):
        if not any(word.arg == "mask" for word in call.keywords):
            other, end = ", other=0.0" if call in at.calls("load") else "", at.file.span(call)[1] - 1
            yield from ((1.5, (Edit(end, end, f", mask={term}{other}"),)) for term in _terms(at))
