"""Siblings: statements of the same file that say nearly the same, and what they say otherwise."""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..kernel_file import KernelFile
from ..text import Edit
from ..triton_source import bound_in
from .alike import in_scope
from .spots import Spot

# How much of two statements must be the same for one to be a source of edits of the other.
_ALIKE = 0.7
_FEW = 5


@dataclass(frozen=True)
class _Piece:
    """A token, with its place in the statement's text."""

    text: str
    start: int
    end: int


def of_siblings(file: KernelFile, spot: Spot) -> Iterator[tuple[float, tuple[Edit, ...]]]:
    """The spot's statement, as a sibling has it where they differ; and statements that a sibling has besides it."""
    if spot.roots != (spot.statement,):
        return
    scope = {*in_scope(file, spot.function), "tl", "float", "min", "max", "range", "torch", "triton", "math"}
    own, (start, _) = file.text_of(spot.statement), file.span(spot.statement)
    alike = _alike(file, spot, own)
    for ratio, other in alike:
        for edits in _differences(own, other, start, scope):
            yield 1.5 - ratio, edits
    for text in _lacking(file, spot, scope):
        if text not in {other for _, other in alike}:  # these are taken apart above
            yield 1.4, (file.replaced(spot.statement, text),)
        yield 1.5, (_behind(file, spot, text),)


@lru_cache(maxsize=256)
def _simple(file: KernelFile, function: ast.FunctionDef) -> dict[str, ast.stmt]:
    """The statements of a function that hold no others, by their text."""
    kinds = (ast.Assign, ast.AugAssign, ast.Expr)
    return {file.text_of(node): node for node in ast.walk(function) if isinstance(node, kinds)}


def _alike(file: KernelFile, spot: Spot, own: str) -> list[tuple[float, str]]:
    texts = {text for function in file.functions for text in _simple(file, function)} - {own}
    close = [text for text in texts if 0.5 < len(text) / max(len(own), 1) < 2]
    found = [(_ratio(own, text), text) for text in sorted(close)]
    return sorted((each for each in found if each[0] > _ALIKE), reverse=True)[:_FEW]


def _ratio(one: str, other: str) -> float:
    """How much two statements have in common; 0 where that is little."""
    here, there = ([piece.text for piece in _tokens(text)] for text in (one, other))
    matcher = difflib.SequenceMatcher(None, here, there, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE else 0.0


def _differences(own: str, other: str, start: int, scope: set[str]) -> Iterator[tuple[Edit, ...]]:
    """Each piece that differs, as the other has it; then all of them."""
    here, there = _tokens(own), _tokens(other)
    matcher = difflib.SequenceMatcher(None, [one.text for one in here], [one.text for one in there], autojunk=False)
    edits = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal" or not here or not there or a == 0:  # what it assigns stays
            continue
        first = here[a].start if a < len(here) else here[-1].end
        last = here[b - 1].end if b > a else first
        if kind == "delete" and own[last:].startswith(" "):  # with the blank on one of its sides
            last = here[b].start
        elif kind == "delete" and own[last:].startswith((")", "]", ",", "[", ".")):
            first = here[a - 1].end
        text = other[there[c].start : there[d - 1].end] if d > c else ""
        if {own[first:last].strip(), text} == {"", ","}:  # before a closing bracket: it says nothing
            continue
        names = {one.text for one in there[c:d] if one.text.isidentifier()}
        if names <= scope:
            edits.append(Edit(start + first, start + last, _spaced(own, first, text) if b == a else text))
    yield from ((edit,) for edit in edits)
    if 1 < len(edits) <= 3:
        yield tuple(edits)


def _spaced(own: str, at: int, text: str) -> str:
    """A text as it is put in at a place: with a blank on each side on which there is neither one nor a bracket."""
    before = "" if own[:at].endswith((" ", "(", "[", "\n")) else " "
    is_closed = text.endswith(("(", "[")) or own[at:].startswith((" ", ",", ")", "]"))
    return f"{before}{text}{'' if is_closed else ' '}"


@lru_cache(maxsize=4096)
def _tokens(text: str) -> list[_Piece]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    try:
        found = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError):
        return []
    return [
        _Piece(one.string, starts[one.start[0] - 1] + one.start[1], starts[one.end[0] - 1] + one.end[1])
        for one in found
        if one.string.strip()
    ]


def _lacking(file: KernelFile, spot: Spot, scope: set[str]) -> list[str]:
    """Statements that another function has of the same variables and this one lacks."""
    here, variables = _simple(file, spot.function), set(bound_in([spot.statement]))
    others = [function for function in file.functions if function is not spot.function]
    lacking = dict.fromkeys(
        text
        for function in others
        for text, each in _simple(file, function).items()
        if variables & set(bound_in([each])) and text not in here and "\n" not in text and _names(each) <= scope
    )
    return list(lacking)[:_FEW]


def _behind(file: KernelFile, spot: Spot, text: str) -> Edit:
    end = file.span(spot.statement)[1]
    return Edit(end, end, f"\n{' ' * spot.statement.col_offset}{text}")


def _names(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
