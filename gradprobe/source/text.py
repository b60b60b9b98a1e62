"""Source as text: a line and the piece that is meant, edits, and Python files with their syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

# What may stand between an operand and its operator: brackets that close, ends of lines, comments.
_BETWEEN = re.compile(r"(?:[\s)\]\\]|#[^\n]*\n)*")


@dataclass(frozen=True)
class SourceLine:
    """Where something stands. The whole line is meant where `length` is 0."""

    file: str
    line: int
    """From 1; 0 where it is not known."""
    code: str
    """The line, stripped."""
    column: int = 0
    """Of the piece in the stripped line, from 0."""
    length: int = 0
    """Of the piece, in characters."""
    function: str = ""
    """In which it stands."""

    @property
    def place(self) -> str:
        """`lazy.py:204`."""
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Edit:
    """Text in the place of a span of characters; an insertion where `start == end`."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with every edit made; insertions at one place stand in the order given.

    Raises:
        ValueError: two edits overlap.
    """
    pieces, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise ValueError(f"two edits overlap at character {edit.start}: {edit.text!r} is the second")
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])


@dataclass(frozen=True, eq=False)
class PythonSource:
    """A Python file as it was read. Places in it are offsets of characters."""

    file: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Raises SyntaxError where the text is no Python."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def calls_by_name(self) -> dict[str, list[ast.Call]]:
        """The calls of each function by its name, `f(...)`, and its launches, `f[grid](...)`."""
        found = dict[str, list[ast.Call]]()
        for node in ast.walk(self.tree):
            base = node.func if isinstance(node, ast.Call) else None
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(node, ast.Call) and isinstance(base, ast.Name):
                found.setdefault(base.id, []).append(node)
        return found

    @cached_property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """Every function of the file, nested ones and methods too."""
        return tuple(node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends."""
        first = self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return first, self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def offset(self, line: int, column: int) -> int:
        """A place that the syntax tree gives, which counts columns in bytes of UTF-8."""
        text = self.lines[line - 1]
        return self._starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def text_of(self, node: ast.AST) -> str:
        """A node as it is written."""
        return self.text[slice(*self.span(node))]

    def line_of(self, node: ast.AST, function: str) -> SourceLine:
        """The line where a node begins, with as much of the node as stands there."""
        number: int = node.lineno  # type: ignore[attr-defined]
        line, (start, end) = self.lines[number - 1], self.span(node)
        code = self._starts[number - 1] + len(line) - len(line.lstrip())
        length = min(end, code + len(line.strip())) - start
        return SourceLine(self.file, number, line.strip(), max(start - code, 0), length, function)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node lies in, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is part of, or itself."""
        return next(each for each in (node, *self.above(node)) if isinstance(each, ast.stmt))

    def replaced(self, node: ast.AST, text: str) -> Edit:
        """Another text in a node's place."""
        return Edit(*self.span(node), text)

    def operator(self, left: ast.AST, sign: str) -> Edit:
        """The sign of an operator behind its left operand, as an edit that leaves it."""
        between = _BETWEEN.match(self.text, self.span(left)[1])
        at = self.text.index(sign, between.end() if between else 0)
        return Edit(at, at + len(sign), sign)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.lines)]

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}


# Each text is parsed once, whoever reads it.
python_source = lru_cache(maxsize=128)(PythonSource)


def python_file(path: str) -> PythonSource:
    """A Python file; an empty one where it cannot be read, or is none."""
    try:
        source = python_source(path, Path(path).read_text(errors="replace") if path.endswith(".py") else "")
        source.tree  # noqa: B018 - it raises
    except (OSError, SyntaxError, ValueError):
        return python_source(path, "")
    return source
