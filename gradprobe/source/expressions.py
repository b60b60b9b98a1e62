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
_ASSIGNS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)


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

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._inside.append(node.name)
        node.body = [told for statement in node.body for told in self._statement(statement)]
        self._inside.pop()
        return node

    def visit_Module(self, node: ast.Module) -> ast.Module:
        node.body = [self.visit(one) if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else one for one in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = [self.visit(one) if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else one for one in node.body]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def _statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)):
            yield self.visit(node)
            return
        names = list(_assigned(node)) if isinstance(node, _ASSIGNS) else []
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                setattr(node, field, [told for one in inner for told in self._statement(one)])
        for handler in getattr(node, "handlers", []):
            handler.body = [told for one in handler.body for told in self._statement(one)]
        for field, value in list(ast.iter_fields(node)):
            if isinstance(value, ast.expr):
                setattr(node, field, self.visit(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                setattr(node, field, [self.visit(one) for one in value])
            elif isinstance(value, list) and value and isinstance(value[0], ast.withitem):
                for item in value:
                    item.context_expr = self.visit(item.context_expr)
        yield node
        yield from (
            ast.copy_location(ast.Expr(self._call(name, ast.copy_location(name, node))), node) for name in names
        )

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Lambda, ast.JoinedStr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return node
        if isinstance(node, ast.Call):  # what is called has no value of interest, but its owner has
            if isinstance(node.func, ast.Attribute):
                node.func.value = self.visit(node.func.value)
            node.args = [self.visit(one) for one in node.args]
            for keyword in node.keywords:
                keyword.value = self.visit(keyword.value)
        else:
            super().generic_visit(node)
        loads = isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))
        return self._call(node, node) if isinstance(node, _VALUES) and loads else node

    def _call(self, value: ast.expr, at: ast.AST) -> ast.expr:
        """Tells of an expression, or of a variable after the statement that it stands for."""
        name = value.id if isinstance(value, ast.Name) else ""
        place = (at.lineno, at.col_offset, at.end_lineno or at.lineno, at.end_col_offset or 0)  # type: ignore[attr-defined]
        self.expressions.append(Expression(len(self.expressions), *place, self._inside[-1], name))
        number = ast.copy_location(ast.Constant(len(self.expressions) - 1), at)
        hook = ast.copy_location(ast.Name(_HOOK, ast.Load()), at)
        return ast.copy_location(ast.Call(hook, [number, value], []), at)


def _assigned(node: ast.stmt) -> Iterator[ast.Name]:
    """The variables that a statement binds or may write into."""
    if isinstance(node, ast.Expr):  # x.masked_fill_(...), np.fill_diagonal(x, ...)
        call = node.value
        parts: list[ast.expr] = [*call.args, call.func] if isinstance(call, ast.Call) else []
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
    codes = {
        (code.co_name, code.co_firstlineno): code for code in _codes(compile(tree, file, "exec", dont_inherit=True))
    }
    return codes, teller.expressions


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
        plain = (
            inspect.unwrap(getattr(value, "__func__", value)) if callable(value) or hasattr(value, "__func__") else None
        )
        if isinstance(plain, FunctionType) and plain.__module__ == module:
            yield plain
        elif isinstance(plain, type) and plain.__module__ == module:
            yield from _functions(vars(plain), module)
