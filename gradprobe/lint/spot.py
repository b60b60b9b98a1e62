"""Spot: a piece of one line of source."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..running.taps.functions import Function
from .source import file_of


@dataclass(frozen=True)
class Spot:
    """Where something stands."""

    file: str
    line: int
    column: int
    """In the stripped line, from 0."""
    length: int
    code: str
    """The line, stripped."""
    function: str
    """In which it stands."""

    @property
    def place(self) -> str:
        """`lazy.py:204`."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        """What stands there."""
        return self.code[self.column : self.column + self.length]


def spot_in(function: Function, node: ast.AST) -> Spot:
    """Where a node of a Triton function's syntax tree begins, and how far it goes on that line."""
    return spot_at(file_of(function), function.lines, node, function.line - 1, function.name)


def spot_at(file: str, lines: Sequence[bytes], node: ast.AST, before: int, function: str) -> Spot:
    """The same where the tree is that of some lines of a file.

    Args:
        before: how many lines of the file stand before them.
    """
    row, start = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    line = lines[row - 1]
    end = getattr(node, "end_col_offset", start) if getattr(node, "end_lineno", row) == row else len(line.rstrip())
    indent = len(line) - len(line.lstrip())
    column = len(line[indent:start].decode()) if start > indent else 0
    length = len(line[start:end].decode())
    return Spot(file, before + row, column, length, line.decode().strip(), function)
