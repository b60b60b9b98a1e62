"""Syntax trees, lines of source, and edits."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TypeVar


@dataclass(frozen=True)
class SourceLine:
    """A line, and the piece of it that is meant; all of it where `length` is 0."""

    file: str
    line: int  # from 1; 0 where unknown
    code: str
    column: int = 0  # in `code`, from 0
    length: int = 0
    function: str = ""

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, order=True)
class Edit:
    start: int
    end: int
    text: str

    def shifted(self, by: int) -> Edit:
        return Edit(self.start + by, self.end + by, self.text)


Edits = tuple[Edit, ...]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Insertions at one place in the order given. Raises ValueError where two edits overlap."""
    pieces, at = [], 0
    for edit in sorted(edits, key=attrgetter("start", "end")):
        if edit.start < at:
            raise ValueError(
                f"two edits overlap at character {edit.start}: {edit.text!r} is the second"
            )
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])


# --- syntax trees

N = TypeVar("N", bound=ast.AST)
# Functions of triton.language that tell the compiler of a value and leave it as it is.
HINTS = {"multiple_of", "max_contiguous", "max_constancy"}
_BLOCKS = ("body", "orelse", "finalbody")
_REFUSING = ("static_assert", "device_assert", "device_print", "static_print", "print")


def place_of(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def inside(node: ast.AST, *kinds: type[N]) -> list[N]:
    return [each for each in ast.walk(node) if isinstance(each, kinds)]


def last_name(node: ast.AST) -> str:
    """`jit` of triton.jit and of triton.jit(...), or ""."""
    match node.func if isinstance(node, ast.Call) else node:
        case ast.Attribute(attr=name) | ast.Name(name):
            return name
    return ""


def called(node: ast.AST) -> str:
    return last_name(node) if isinstance(node, ast.Call) else ""


def calls_in(node: ast.AST, *names: str) -> list[ast.Call]:
    return [call for call in inside(node, ast.Call) if last_name(call) in names]


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {word.arg or "": word.value for word in call.keywords}


def owner_of(node: ast.AST) -> ast.Name | None:
    match node:
        case ast.Call(ast.Attribute(ast.Name() as owner, "stride")):
            return owner
    return None


def names_in(node: ast.AST) -> set[str]:
    return {name.id for name in inside(node, ast.Name)}


@lru_cache(maxsize=8192)
def ordered_names(root: ast.AST, context: type[ast.expr_context]) -> list[ast.Name]:
    found = list[ast.Name]()
    for node in inside(root, ast.Name):
        if isinstance(node.ctx, context):
            found.append(node)
    return sorted(found, key=place_of)


@lru_cache(maxsize=4096)
def reads_in(root: ast.AST) -> set[str]:
    return {name.id for name in ordered_names(root, ast.Load)}


def bound_in(*roots: ast.AST) -> list[str]:
    bound = list[str]()
    for root in roots:
        bound += map(attrgetter("id"), ordered_names(root, ast.Store))
    return bound


def bound_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.For):
        return bound_in(statement.target)
    return [] if blocks(statement) else bound_in(statement)


def read_by(statement: ast.stmt) -> set[str]:
    root = head(statement)
    found = reads_in(root) if root is not None else set()
    return found.union(bound_by(statement)) if isinstance(statement, ast.AugAssign) else found


def head(statement: ast.stmt) -> ast.AST | None:
    """Of one that holds others its condition, or what it goes over."""
    if not blocks(statement):
        return statement
    return getattr(statement, "test", None) or getattr(statement, "iter", None)


def parameters(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in arguments_of(function)]


def arguments_of(function: ast.FunctionDef) -> list[ast.arg]:
    spec = function.args
    return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]


def targets_of(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    return [block for field in _BLOCKS if (block := getattr(node, field, None))]


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
            yield statement
            for block in blocks(statement):
                yield from statements(block)


def refuses(body: Sequence[ast.stmt]) -> bool:
    for statement in body:
        match statement:
            case ast.Raise() | ast.Assert() | ast.Pass():
                continue
            case ast.Expr(call) if called(call) in _REFUSING:
                continue
            case ast.If(body=inner, orelse=[]) if refuses(inner):
                continue
        return False
    return bool(body)


def first_line(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def head_of(node: ast.stmt) -> range:
    body = getattr(node, "body", None)
    return range(node.lineno, max(body[0].lineno, node.lineno + 1)) if body else lines_of(node)


def lines_of(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
