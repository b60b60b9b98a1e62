"""Rows of a table of faults as they are written, one below the other.

A row is its word and its sentence, and below them the formulas that it makes otherwise. `if` begins a group of rows and
says where they may be. Until the next one `fix` is the edit; `wrong` what they make wrong by themselves; `each` has a
row for each of some words that stand in its holes (of several holes, a blank in a word is ~), and `times` for each of
these with each of further words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple


class FormulaRow(NamedTuple):
    """A row as it is written."""

    fault: str
    summary: str
    formulas: list[str]
    needs: str
    fix: str
    wrong: str
    each: Sequence[Mapping[str, str]]
    """What stands in its holes."""


@cache
def rows_of(text: str) -> list[FormulaRow]:
    """The rows of a text."""
    given, found = dict[str, Any](), list[FormulaRow]()
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "if":
            given = {"needs": rest, "fix": "", "wrong": "", "each": [{}]}
        elif word == "each":
            given["each"] = _holes_in(rest)
        elif word == "times":
            given["each"] = [some | more for some, more in product(given["each"], _holes_in(rest))]
        elif word in given:
            given[word] = rest
        elif word:
            fault, summary = line.split(" | ")
            found.append(FormulaRow(fault, summary, [], **given))
        else:
            found[-1].formulas.append(rest.strip())
    return found


def _holes_in(text: str) -> list[dict[str, str]]:
    holes, words = text.split(" = ")
    found = list[dict[str, str]]()
    for each in words.split(", "):
        spaced = [word.replace("~", " ") for word in each.split()] if " " in holes else [each]
        found.append(dict(zip(holes.split(), spaced, strict=True)))
    return found


def filled(text: str, words: Mapping[str, Any]) -> str:
    """A text with words in its holes."""
    for hole, word in words.items():
        text = text.replace(f"{{{hole}}}", str(word))
    return text
