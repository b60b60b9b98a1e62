"""Siblings: statements of the same file that say nearly the same, and what they say otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache

from ..kernel_file import KernelFile, names_in
from ..text import Edit
from ..triton_source import bound_in
from .patterns import TOKEN
from .spots import Edits, Spot, Undone

# How much of two statements must be the same for one to be a source of edits of the other.
_ALIKE = 0.7
_FEW = 5
# What every function knows besides its scope.
_EVERYWHERE = {"tl", "float", "min", "max", "range", "torch", "triton", "math"}
_Piece = tuple[str, int, int]
"""A token, and where it begins and ends in the statement's text."""


def of_siblings(at: Spot) -> Undone:
    """The spot's statement, as a sibling has it where they differ; and statements that a sibling has besides it."""
    if not at.is_whole:
        return
    scope = {*at.scope, *_EVERYWHERE}
    own, (start, _) = at.file.text_of(at.statement), at.file.span(at.statement)
    alike = _alike(at.file, own)
    for ratio, other in alike:
        yield from ((1.5 - ratio, edits) for edits in _differences(own, other, start, scope))
    for text in _lacking(at, scope):
        if text not in {other for _, other in alike}:  # these are taken apart above
            yield 1.4, (at.file.replaced(at.statement, text),)
        yield at.put_behind(1.5, at.statement, text)


@lru_cache(maxsize=256)
def _simple(file: KernelFile, function: ast.FunctionDef) -> dict[str, ast.stmt]:
    """The statements of a function that hold no others, by their text."""
    kinds = (ast.Assign, ast.AugAssign, ast.Expr)
    return {file.text_of(node): node for node in ast.walk(function) if isinstance(node, kinds)}


@lru_cache(maxsize=1024)
def _alike(file: KernelFile, own: str) -> list[tuple[float, str]]:
    """(how much is the same, text) of the statements that are most alike."""
    found = []
    for text in {text for function in file.functions for text in _simple(file, function)} - {own}:
        matcher = _matcher(own, text)
        if matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE and matcher.ratio() > _ALIKE:
            found.append((matcher.ratio(), text))
    return sorted(found, reverse=True)[:_FEW]


def _matcher(own: str, other: str) -> SequenceMatcher[str]:
    here, there = ([text for text, _, _ in _tokens(each)] for each in (own, other))
    return SequenceMatcher(None, here, there, autojunk=False)


@lru_cache(maxsize=4096)
def _tokens(text: str) -> list[_Piece]:
    return [(token[0], *token.span()) for token in TOKEN.finditer(text) if token[0].strip()]


def _differences(own: str, other: str, start: int, scope: set[str]) -> Iterator[Edits]:
    """Each piece that differs, as the other has it; then all of them."""
    here, there, edits = _tokens(own), _tokens(other), list[Edit]()
    for kind, a, b, c, d in _matcher(own, other).get_opcodes():
        if kind == "equal" or a == 0:  # what it assigns stays
            continue
        first = here[a][1] if a < len(here) else here[-1][2]
        last = here[b - 1][2] if b > a else first
        if kind == "delete" and own[last:].startswith(" "):  # with the blank on one of its sides
            last = here[b][1]
        elif kind == "delete" and own[last:].startswith((")", "]", ",", "[", ".")):
            first = here[a - 1][2]
        text = other[there[c][1] : there[d - 1][2]] if d > c else ""
        is_comma = {own[first:last].strip(), text} == {"", ","}  # before a closing bracket: it says nothing
        if not is_comma and {name for name, _, _ in there[c:d] if name.isidentifier()} <= scope:
            edits.append(Edit(start + first, start + last, _spaced(own, first, text) if b == a else text))
    yield from ((edit,) for edit in edits)
    if 1 < len(edits) <= 3:
        yield tuple(edits)


def _spaced(own: str, at: int, text: str) -> str:
    """A text as it is put in at a place: with a blank on each side on which there is neither one nor a bracket."""
    before = "" if own[:at].endswith((" ", "(", "[", "\n")) else " "
    is_closed = text.endswith(("(", "[")) or own[at:].startswith((" ", ",", ")", "]"))
    return f"{before}{text}{'' if is_closed else ' '}"


def _lacking(at: Spot, scope: set[str]) -> list[str]:
    """Statements that another function has of the same variables and this one lacks."""
    here, variables, found = _simple(at.file, at.function), set(at.targets), dict[str, None]()
    for function in at.file.functions:
        for text, each in _simple(at.file, function).items():
            is_known = text in here or "\n" in text or not names_in(each) <= scope
            if variables & set(bound_in([each])) and not is_known:
                found[text] = None
    return list(found)[:_FEW]
