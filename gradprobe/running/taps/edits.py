"""Insertions into the text of a function, which leave every line where it was but for what follows a block."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass

from .functions import Function, blocks


@dataclass(frozen=True)
class Edit:
    """Text put in the place of a stretch of one line; an insertion where `start == end`."""

    line: int
    start: int
    """In bytes, as syntax trees count."""
    end: int
    text: str


def edited(function: Function, edits: list[Edit]) -> str:
    """The function's text with every edit made; those at one place in the order given."""
    lines = [bytearray(line) for line in function.lines]
    order = sorted(range(len(edits)), key=lambda i: (edits[i].line, edits[i].start, i), reverse=True)
    for edit in (edits[i] for i in order):
        lines[edit.line - 1][edit.start : edit.end] = edit.text.encode()
    return b"".join(lines).decode()


def behind(function: Function, statement: ast.stmt, text: str) -> Edit:
    """Another statement behind one: on its line, or on a new one behind a statement that holds blocks."""
    line, column = _end(statement)
    if not blocks(statement):
        return Edit(line, column, column, f"; {text}")
    own = function.lines[statement.lineno - 1]
    indent = own[: len(own) - len(own.lstrip())].decode()
    column = len(function.lines[line - 1].rstrip(b"\r\n"))
    return Edit(line, column, column, f"\n{indent}{text}")


def more_arguments(function: Function, call: ast.Call, names: list[str]) -> Edit:
    """Arguments passed by their own names at the end of a call."""
    line, column = _end(call)
    return _into_brackets(function, (line, column - 1), ", ".join(f"{name}={name}" for name in names))


def more_parameters(function: Function, names: list[str]) -> Edit:
    """Parameters at the end of the function's own, None unless given: those before may have defaults."""
    depth = 0
    for token in _tokens(function):
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        if token.type == tokenize.OP and token.string == ")" and depth == 0:
            place = (token.start[0], _bytes(function, token.start))
            return _into_brackets(function, place, ", ".join(f"{name}=None" for name in names))
    raise SyntaxError(f"{function.name} has no list of parameters")


def other_name(call: ast.Call, name: str) -> list[Edit]:
    """Another name for what is called, however many lines the old one spans."""
    node = call.func
    line, column = _end(node)
    if line != node.lineno:
        raise SyntaxError("a name over several lines")
    return [Edit(line, node.col_offset, column, name)]


def _into_brackets(function: Function, closing: tuple[int, int], text: str) -> Edit:
    """Behind the last word before a closing bracket, with a comma if one is needed."""
    last = None
    for token in _tokens(function):
        if (token.start[0], _bytes(function, token.start)) >= closing:
            break
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            last = token
    if last is None:
        raise SyntaxError(f"{function.name} has no brackets")
    column = _bytes(function, last.end)
    return Edit(last.end[0], column, column, text if last.string in ("(", ",") else f", {text}")


def _tokens(function: Function) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(b"".join(function.lines).decode()).readline))


def _bytes(function: Function, place: tuple[int, int]) -> int:
    """A column in characters as one in bytes."""
    line, column = place
    return len(function.lines[line - 1].decode()[:column].encode())


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
