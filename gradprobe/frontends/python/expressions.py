"""Functions of a Python file that tell the value of each of their expressions, and of variables after a statement."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

Told = Callable[["Expression", Any], None]
_HOOK = "__gradprobe_told__"
_VALUES = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute, ast.UnaryOp)
# What is left as it is: its parts are no values of the function, or no place where a call may stand.
_WHOLE = (ast.Lambda, ast.JoinedStr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.pattern)


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
