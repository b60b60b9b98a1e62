"""Rows of a table of faults as they are written, one below the other.

A row is its word and its sentence, and below them the formulas that it makes otherwise; {} is the name on the left, and
`or` begins another row with these and more. `if` begins a group and says where its rows may be. Until the next one
`fix` is the edit; `wrong` what is wrong by itself; `each` has a row for each of some words in its holes (of several
holes, a blank in a word is ~), and `times` for each of these with each of further words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from ..model.intermediates import title

_HOLES = ("m", "n", "size", "tile", "member", "dtype")
Words = Mapping[str, Any]


class FormulaRow(NamedTuple):
    """A row; a run fills the holes that it has left."""

    fault: str
    summary: str
    fix: str
    formulas: tuple[tuple[str, str], ...]
    """What is made otherwise, and how."""
    needs: str
    wrong: str
    factor: str
    """By which something is off, as a formula."""
    holes: tuple[str, ...]
    """Those that sizes and dtypes fill."""


@cache
def rows_of(text: str) -> list[FormulaRow]:
    """The rows of a text."""
    group, found = dict[str, Any](), list[tuple[list[str], dict[str, Any]]]()
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "if":
            group = {"needs": rest, "fix": "", "wrong": "", "each": [{}]}
        elif word == "each":
            group = {**group, "each": [*_words_of(rest)]}
        elif word == "times":
            group = {
                **group,
                "each": [some | more for some, more in product(group["each"], _words_of(rest))],
            }
        elif word in group:
            group = {**group, word: rest}
        elif word == "or":
            found.append(([*found[-1][0]], group))
        elif word:
            found.append(([line], group))
        else:
            found[-1][0].append(rest.strip())
    return [_row(lines, words, of) for lines, of in found for words in of["each"]]


def _words_of(text: str) -> Iterator[Words]:
    holes, words = text.split(" = ")
    for each in words.split(", "):
        spaced = [word.replace("~", " ") for word in each.split()] if " " in holes else [each]
        yield dict(zip(holes.split(), spaced, strict=True))


def _row(lines: list[str], words: Words, group: Words) -> FormulaRow:
    titles, formulas = {hole: title(word) for hole, word in words.items()}, list[tuple[str, str]]()
    for line in lines[1:]:
        names, formula = filled(line, words).split(" = ", 1)
        formulas += [(name, formula.replace("{}", name)) for name in names.split(", ")]
    fault, summary = lines[0].split(" | ")
    texts = filled(fault, words), filled(summary, titles), filled(group["fix"], titles)
    holes = tuple(hole for hole in _HOLES if f"{{{hole}}}" in f"{summary} {formulas}")
    needs, factor = filled(group["needs"], words), words.get("factor", "1")
    return FormulaRow(*texts, tuple(formulas), needs, group["wrong"], factor, holes)


def filled(text: str, words: Words) -> str:
    """A text with words in its holes."""
    for hole, word in words.items():
        text = text.replace(f"{{{hole}}}", str(word))
    return text
