"""Listings: the functions in which lines stand, as text; what a report keeps of the source that it accuses."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..model.report import Listing, Where

# Lines of one listing, and above and below a line where its function is longer or cannot be told.
MOST, AROUND = 400, 12


def listings_of(wheres: Iterable[Where]) -> tuple[Listing, ...]:
    """The functions that hold these lines, each once. Nothing of a file that cannot be read or reads otherwise now."""
    lines: dict[str, list[Where]] = {}
    for where in wheres:
        lines.setdefault(where.file, []).append(where)
    return tuple(dict.fromkeys(listing for file, those in lines.items() for listing in _of_file(file, those)))


def _of_file(file: str, wheres: list[Where]) -> Iterator[Listing]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    lines, functions = text.splitlines(), _functions(text)
    for where in wheres:
        if not 0 < where.line <= len(lines) or lines[where.line - 1].strip() != where.code:
            continue
        around = max(1, where.line - AROUND), min(len(lines), where.line + AROUND)
        held = (each for each in functions if each[0] <= where.line <= each[1] and each[1] - each[0] < MOST)
        first, last = next(held, around)
        yield Listing(file, first, tuple(line.rstrip() for line in lines[first - 1 : last]))


def _functions(text: str) -> list[tuple[int, int]]:
    """The first and last lines of the functions of a Python file; none of any other."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    first = ((min([one.lineno for one in node.decorator_list] + [node.lineno]), node) for node in found)
    return [(line, node.end_lineno or node.lineno) for line, node in first]
