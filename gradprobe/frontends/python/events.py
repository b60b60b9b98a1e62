"""What the expressions and variables of a Python file hold in one call, in the order in which they come."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ...inputs.memory import Array
from ...model.report import Where
from . import plain_function

Told = Callable[["Expression", Any], None]
_HOOK = "__gradprobe_told__"
_VALUES = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute, ast.UnaryOp)
# What is left as it is: its parts are no values of the function, or no place where a call may stand.
_WHOLE = (ast.Lambda, ast.JoinedStr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.pattern)
# An expression in a loop is looked at so often, and the last time.
_MOST, _LARGEST = 48, 1 << 20


@dataclass(frozen=True)
class Expression:
    """A piece of source that has a value."""

    number: int
    line: int
    column: int
    """Of its first character in the line, from 0, in bytes of UTF-8."""
    end_line: int
    end_column: int
    function: str
    """In which it stands."""
    name: str = ""
    """Of a variable after a statement; "" of what stands in an expression."""


@dataclass(frozen=True)
class Value:
    """What an expression, or a variable after a statement, held."""

    at: Expression
    array: Array
    dtype: str


@contextmanager
def watched(function: Callable[..., Any]) -> Iterator[Mapping[tuple[int, int], Value]]:
    """While open, a call of the function is watched, with the functions of its file that it calls.

    Its values are kept by expression and how often it was looked at, in the order in which they came.
    """
    values: dict[tuple[int, int], Value] = {}
    counts: Counter[int] = Counter()

    def record(at: Expression, value: Any) -> None:
        array = _as_array(value)
        if array is None or array.ndim == 0 or array.size > _LARGEST:
            return
        counts[at.number] += 1
        key = at.number, min(counts[at.number], _MOST)
        values.pop(key, None)  # the latest in the place of the one before it
        values[key] = Value(at, array.copy(), str(value.dtype).removeprefix("torch."))

    module = module_of(function)
    if module is None:
        yield values
        return
    with telling(module, text_of_file(function), record):
        yield values


def where_of(function: Callable[..., Any], file: str, at: Expression | None) -> Where | None:
    """The line of an expression in a function's file, with what it is underlined; None without one."""
    lines = text_of_file(function).splitlines()
    if at is None or not lines:
        return None
    line = lines[at.line - 1].encode()
    start = len(line[: at.column].decode(errors="ignore"))
    end = len(line[: at.end_column if at.end_line == at.line else None].decode(errors="ignore"))
    text = line.decode()
    before = len(text) - len(text.lstrip())
    return Where(file, at.line, text.strip(), max(start - before, 0), end - start, at.function)


def module_of(function: Callable[..., Any]) -> ModuleType | None:
    """The module of a function; None where it has none, or no file of Python."""
    module = sys.modules.get(plain_function(function).__module__ or "")
    return module if module is not None and (getattr(module, "__file__", None) or "").endswith(".py") else None


def text_of_file(function: Callable[..., Any]) -> str:
    """The text of a function's file; "" where it has no file of Python."""
    module = module_of(function)
    return "" if module is None else Path(module.__file__ or "").read_text(encoding="utf-8")


def _as_array(value: Any) -> Array | None:
    """The floating numbers of a tensor or an array in float64; None of anything else."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or value.is_meta or value.layout is not torch.strided:
            return None
        return value.detach().cpu().double().numpy()
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None


# --- Functions that tell


class _Telling(ast.NodeTransformer):
    """Wraps each expression in a call that hands its value on, and lets each statement tell what it assigned."""

    def __init__(self) -> None:
        self.expressions: list[Expression] = []
        self._inside: list[str] = []

    def visit_Module(self, node: Any) -> ast.AST:
        """Outside functions nothing is told."""
        node.body = [self.visit(one) if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else one for one in node.body]
        return node  # type: ignore[no-any-return]

    visit_ClassDef = visit_Module

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._inside.append(node.name)
        body = ast.Module(node.body, [])
        super().generic_visit(body)
        node.body = body.body
        self._inside.pop()
        return node

    def _assignment(self, node: ast.stmt) -> list[ast.stmt]:
        names = list(_assigned(node))
        super().generic_visit(node)
        return [node, *(ast.copy_location(ast.Expr(self._call(name, node)), node) for name in names)]

    visit_Assign = visit_AugAssign = visit_AnnAssign = visit_Expr = _assignment

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (*_WHOLE, ast.AsyncFunctionDef)):
            return node
        if isinstance(node, ast.Call):  # what is called has no value of interest, but its owner has
            if isinstance(node.func, ast.Attribute):
                node.func.value = self.visit(node.func.value)
            node.args = [self.visit(one) for one in node.args]
            node.keywords = [self.visit(one) for one in node.keywords]
        else:
            super().generic_visit(node)
        is_value = isinstance(node, _VALUES) and isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))
        return self._call(node, node) if is_value else node  # type: ignore[arg-type]

    def _call(self, value: ast.expr, at: Any) -> ast.expr:
        """Tells of an expression, or of a variable after the statement that it stands for."""
        name = value.id if isinstance(value, ast.Name) else ""
        place = (at.lineno, at.col_offset, at.end_lineno or at.lineno, at.end_col_offset or 0)
        self.expressions.append(Expression(len(self.expressions), *place, self._inside[-1], name))
        number = ast.Constant(len(self.expressions) - 1)
        return ast.copy_location(ast.Call(ast.Name(_HOOK, ast.Load()), [number, value], []), at)


def _assigned(node: ast.stmt) -> Iterator[ast.Name]:
    """The variables that a statement binds or may write into."""
    if isinstance(node, ast.Expr):  # x.masked_fill_(...), np.fill_diagonal(x, ...)
        call = node.value
        parts: list[ast.expr] = [*call.args, call.func] if isinstance(call, ast.Call) else []
    elif isinstance(node, ast.AnnAssign) and node.value is None:
        parts = []
    else:
        parts = list(node.targets) if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
    seen = set()
    while parts:
        part = parts.pop(0)
        if isinstance(part, (ast.Tuple, ast.List)):
            parts = [*part.elts, *parts]
        elif isinstance(part, (ast.Subscript, ast.Attribute, ast.Starred)):
            parts = [part.value, *parts]
        elif isinstance(part, ast.Name) and part.id not in seen:
            seen.add(part.id)
            yield ast.Name(part.id, ast.Load())


@lru_cache(maxsize=4)
def _compiled(file: str, text: str) -> tuple[dict[tuple[str, int], CodeType], list[Expression]]:
    """The code of each function that tells, by name and first line, and what it tells of."""
    teller = _Telling()
    tree = ast.fix_missing_locations(teller.visit(ast.parse(text)))
    codes = _codes(compile(tree, file, "exec", dont_inherit=True))
    return {(code.co_name, code.co_firstlineno): code for code in codes}, teller.expressions


@contextmanager
def telling(module: ModuleType, text: str, told: Told) -> Iterator[None]:
    """While open, each function that a module's file defines tells `told` the values of its expressions.

    The functions stay the same objects: their code is exchanged, and put back.

    Args:
        text: the text of the module's file, as it was loaded.
    """
    codes, expressions = _compiled(module.__file__ or "", text)
    changed: list[tuple[FunctionType, CodeType]] = []

    def hook(number: int, value: Any) -> Any:
        told(expressions[number], value)
        return value

    vars(module)[_HOOK] = hook
    try:
        for function in _functions(vars(module), module.__name__):
            code = codes.get((function.__code__.co_name, function.__code__.co_firstlineno))
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                changed.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in changed:
            function.__code__ = code
        del vars(module)[_HOOK]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _functions(scope: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    """The functions that a module defines itself, those of its classes and those inside decorators with them."""
    for value in list(scope.values()):
        found = getattr(value, "__func__", value)
        plain = inspect.unwrap(found) if callable(found) else None
        if isinstance(plain, FunctionType) and plain.__module__ == module:
            yield plain
        elif isinstance(plain, type) and plain.__module__ == module:
            yield from _functions(vars(plain), module)
