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

_HOOK = "__gradprobe_told__"
_VALUES = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute, ast.UnaryOp)
# What is left as it is: its parts are no values of the function, or no place where a call may stand.
_WHOLE = (
    *(ast.Lambda, ast.JoinedStr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.pattern),
    ast.AsyncFunctionDef,
)
# An expression in a loop is looked at so often, and the last time.
_MOST, _LARGEST = 48, 1 << 20


@dataclass(frozen=True)
class Expression:
    """A piece of source that has a value: an expression, or a statement with that of a variable after it."""

    number: int
    line: int
    column: int
    """Of its first character in the line, from 0, in bytes of UTF-8."""
    end_line: int
    end_column: int
    function: str
    """In which it stands."""


@dataclass(frozen=True)
class Value:
    """What an expression, or a variable after a statement, held."""

    at: Expression
    array: Array
    dtype: str


@contextmanager
def watched(function: Callable[..., Any]) -> Iterator[Mapping[tuple[int, int], Value]]:
    """While open, calls of a function are watched, with those of all functions that its file defines.

    Their values are kept by expression and how often it was looked at, in the order in which they came. The functions
    stay the same objects: their code is exchanged, and put back.
    """
    values: dict[tuple[int, int], Value] = {}
    module, counts = _module_of(function), Counter[int]()
    if module is None:
        yield values
        return
    codes, expressions = _compiled(module.__file__ or "", text_of_file(function))

    def tell(number: int, value: Any) -> Any:
        array = _as_array(value)
        if array is not None and array.ndim and array.size <= _LARGEST:
            counts[number] += 1
            key = number, min(counts[number], _MOST)
            values.pop(key, None)  # the latest in the place of the one before it
            values[key] = Value(expressions[number], array.copy(), str(value.dtype).removeprefix("torch."))
        return value

    changed: list[tuple[FunctionType, CodeType]] = []
    vars(module)[_HOOK] = tell
    try:
        for plain in _functions(vars(module), module.__name__):
            code = codes.get((plain.__code__.co_name, plain.__code__.co_firstlineno))
            if code is not None and code.co_freevars == plain.__code__.co_freevars:
                changed.append((plain, plain.__code__))
                plain.__code__ = code
        yield values
    finally:
        for plain, code in changed:
            plain.__code__ = code
        del vars(module)[_HOOK]


def where_of(function: Callable[..., Any], file: str, at: Expression | None) -> Where | None:
    """The line of an expression in a function's file, with what it is underlined; None without one."""
    lines = text_of_file(function).splitlines()
    if at is None or not lines:
        return None
    text = lines[at.line - 1]
    start = len(text.encode()[: at.column].decode(errors="ignore"))
    end = len(text.encode()[: at.end_column].decode(errors="ignore")) if at.end_line == at.line else len(text)
    before = len(text) - len(text.lstrip())
    return Where(file, at.line, text.strip(), max(start - before, 0), end - start, at.function)


def text_of_file(function: Callable[..., Any]) -> str:
    """The text of a function's file; "" where it has no file of Python."""
    module = _module_of(function)
    return "" if module is None else Path(module.__file__ or "").read_text(encoding="utf-8")


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    """The module of a function; None where it has none, or no file of Python."""
    module = sys.modules.get(plain_function(function).__module__ or "")
    return module if module is not None and (getattr(module, "__file__", None) or "").endswith(".py") else None


def _as_array(value: Any) -> Array | None:
    """The floating numbers of a tensor or an array in float64; None of anything else."""
    if isinstance(value, torch.Tensor):
        is_plain = value.is_floating_point() and not value.is_meta and value.layout is torch.strided
        return value.detach().cpu().double().numpy() if is_plain else None
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

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        names, told = dict.fromkeys(_assigned(node)), list[ast.stmt]()
        super().generic_visit(node)
        for name in names:
            told.append(ast.copy_location(ast.Expr(self._call(ast.Name(name, ast.Load()), node)), node))
        return [node, *told]

    visit_Assign = visit_AugAssign = visit_AnnAssign = visit_Expr = _statement

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, _WHOLE):
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
        """Tells of an expression, or of a variable after a statement."""
        number = len(self.expressions)
        place = (at.lineno, at.col_offset, at.end_lineno or at.lineno, at.end_col_offset or 0)
        self.expressions.append(Expression(number, *place, self._inside[-1]))
        return ast.copy_location(ast.Call(ast.Name(_HOOK, ast.Load()), [ast.Constant(number), value], []), at)


def _assigned(node: Any) -> Iterator[str]:
    """The variables that a statement binds or may write into."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Assign):
        parts = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        parts = [node.target] if node.value is not None else []
    elif isinstance(node, (ast.Tuple, ast.List)):
        parts = node.elts
    elif isinstance(node, (ast.Subscript, ast.Attribute, ast.Starred)):
        parts = [node.value]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # x.masked_fill_(...), fill_diagonal(x, ...)
        parts = [*node.value.args, node.value.func]
    for part in parts:
        yield from _assigned(part)


@lru_cache(maxsize=4)
def _compiled(file: str, text: str) -> tuple[Mapping[tuple[str, int], CodeType], list[Expression]]:
    """The code of a file's functions that tell, by name and first line, and what it tells of."""
    teller, found = _Telling(), dict[tuple[str, int], CodeType]()
    waiting = [compile(ast.fix_missing_locations(teller.visit(ast.parse(text))), file, "exec", dont_inherit=True)]
    while waiting:
        inner = [code for code in waiting.pop().co_consts if isinstance(code, CodeType)]
        found |= {(code.co_name, code.co_firstlineno): code for code in inner}
        waiting += inner
    return found, teller.expressions


def _functions(scope: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    """The functions that a module defines itself, those of its classes and those inside decorators with them."""
    for value in list(scope.values()):
        found = getattr(value, "__func__", value)
        plain = inspect.unwrap(found) if callable(found) else None
        if isinstance(plain, FunctionType) and plain.__module__ == module:
            yield plain
        elif isinstance(plain, type) and plain.__module__ == module:
            yield from _functions(vars(plain), module)
