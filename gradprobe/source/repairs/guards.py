"""Guards: a `tl.where` put around a value again, with the test that another one has, or one of two positions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from ..kernel_file import KernelFile, called
from ..triton_source import bound_in
from .spots import Spot

Guarded = Iterator[tuple[float, str]]
"""(rank, what stands for the value)."""
_HIDDEN = ('float("-inf")', "0.0")
# How the field names what is hidden with -inf, positions of rows and of keys, and the size of a head.
_SCORES = re.compile(r"qk|score|^s|att|logit", re.IGNORECASE)
_ROWS, _KEYS = re.compile(r"m|q|row|(^|_)i"), re.compile(r"n(?!t)|k|col|(^|_)j")
_DIMS = re.compile(r"D$|D_|DIM|DMODEL|HEAD", re.IGNORECASE)
_FEW = 2


def guarded(file: KernelFile, spot: Spot, value: ast.expr, scope: list[str]) -> Guarded:
    """`tl.where(rows >= keys, qk, float("-inf"))` for `qk`; none of what has one, is a test or is loaded."""
    if isinstance(value, ast.Compare) or any(called(node) in ("where", "load") for node in ast.walk(spot.statement)):
        return
    words, targets = file.text_of(value), set(bound_in([spot.statement]))
    # A value that is assigned to itself, or a mere number, is what is left of a guard.
    is_left = isinstance(value, ast.Name) and value.id in targets
    sure = -1.0 if is_left or file.text_of(value) in ("0.0", "float(0.0)") else 0.0
    known = {*scope, "tl", "float"}
    for test, hidden, of in _others(file):
        if _names(test) <= known:
            # After the other sign: what is left of a guard says so, and most lines have nothing to do with one.
            yield sure + (1.0 if of & targets else 2.2), f"tl.where({test}, {words}, {hidden})"
    is_score = any(_SCORES.search(name) for name in targets)
    for rank, test in () if is_score else hiding(file, spot.function):
        yield sure + rank, f"tl.where({test}, {words}, 0.0)"
    likely, other = _HIDDEN if is_score else _HIDDEN[::-1]
    for test in _tests(file, spot):
        yield sure + 1.5, f"tl.where({test}, {words}, {likely})"
        yield sure + 2.5, f"tl.where({test}, {words}, {other})"


@lru_cache(maxsize=64)
def _others(file: KernelFile) -> list[tuple[str, str, frozenset[str]]]:
    """The guards of a file: the test, what stands where it fails, and the names that it is assigned to."""
    calls = [node for node in ast.walk(file.tree) if isinstance(node, ast.Call) and called(node) == "where"]
    guards = [each for each in calls if len(each.args) == 3]
    found = [(file.text_of(each.args[0]), file.text_of(each.args[2]), file.statement(each)) for each in guards]
    return list(dict.fromkeys((test, hidden, frozenset(bound_in([of]))) for test, hidden, of in found))


@lru_cache(maxsize=256)
def hiding(file: KernelFile, function: ast.FunctionDef) -> tuple[tuple[float, str], ...]:
    """(rank, test) of those of a function that hide keys from rows: where they fail scores are -inf."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and called(node) == "where"]
    hidden = [each for each in calls if len(each.args) == 3 and "inf" in file.text_of(each.args[2])]
    tests = dict.fromkeys(file.text_of(each.args[0]) for each in hidden)
    return tuple((0.6 + 0.2 * number, test) for number, test in enumerate(tests))


def _names(words: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(words.strip(), mode="eval")) if isinstance(node, ast.Name)}


def _tests(file: KernelFile, spot: Spot) -> Iterator[str]:
    """Rows against keys, as the function has them beside one another: of the tile, and with where the tile begins."""
    loops = [each for each in file.above(spot.statement) if isinstance(each, ast.For)]
    starts = [each.target.id for each in loops[:1] if isinstance(each.target, ast.Name)]
    rows, keys = ([name for name in _vectors(spot.function) if kind.search(name)] for kind in (_ROWS, _KEYS))
    for row, key in product(rows[-_FEW:], keys[-_FEW:]):
        down, across = ("[:, None]", "[None, :]")
        if f"{row}{across}" in file.text_of(spot.function) and f"{row}{down}" not in file.text_of(spot.function):
            down, across = across, down
        yield f"{row}{down} >= {key}{across}"
        for start in starts:
            if start not in _made_of(spot.function, key):
                yield f"{row}{down} >= ({start} + {key}{across})"
            if start not in _made_of(spot.function, row):
                yield f"({start} + {row}{down}) >= {key}{across}"


@lru_cache(maxsize=256)
def _vectors(function: ast.FunctionDef) -> tuple[str, ...]:
    """The vectors of positions: what is made of tl.arange, or of one that is, but of no quotient or the head's dims."""
    found: dict[str, None] = {}
    assigned = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    for each in sorted(assigned, key=lambda each: each.lineno):
        inside = list(ast.walk(each.value))
        has_tile = any(
            isinstance(node, (ast.Subscript, ast.Div)) or called(node) in ("load", "where") for node in inside
        )
        names = {node.id for node in inside if isinstance(node, ast.Name)}
        made = any(called(node) == "arange" for node in inside) or names & found.keys()
        if made and not has_tile and not any(_DIMS.search(name) for name in names):
            found |= dict.fromkeys(bound_in([each]))
    return tuple(found)


@lru_cache(maxsize=256)
def _made_of(function: ast.FunctionDef, name: str) -> set[str]:
    """The names that a vector is made of, at its assignments."""
    values = [each for each in ast.walk(function) if isinstance(each, ast.Assign) and name in bound_in([each])]
    return {node.id for each in values for node in ast.walk(each.value) if isinstance(node, ast.Name)}
