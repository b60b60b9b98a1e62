"""Patches of how a kernel's text is rewritten: a compiler finds names, and counts loops, where Python does not.

A function of triton.language under a name of the user's (`exp = tl.exp`), what a closure holds, and the variable of a
loop, which has a dtype.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

from .libdevice import libdevice_modules
from .shipped import shipped_language

# What a launch replaces besides builtins, and what is replaced for good.
_REPLACED = ("range", "static_range", "reduce", "associative_scan")
_LIBDEVICE = {module.__name__ for module in libdevice_modules()}


def find_names() -> None:
    """Patches the interpreter so that a kernel finds functions of the language by its own names, and its closure's."""
    rewrite = shipped.FunctionRewriter._compile_and_exec

    def compile_and_exec(self: Any, tree: ast.AST) -> Any:
        made = rewrite(self, tree)
        return with_names(made, self.fn)

    shipped.FunctionRewriter._compile_and_exec = compile_and_exec


def with_names(made: FunctionType, function: FunctionType) -> FunctionType:
    """A rewritten function; where it needs them, with names that are looked up as the compiler does."""
    names = set(made.__code__.co_names)
    is_alias = any(id(function.__globals__.get(name)) in _places() for name in names)
    if not (function.__closure__ or is_alias):
        return made
    scope = _Names(function)
    named = FunctionType(made.__code__, scope, made.__name__, made.__defaults__, made.__closure__)
    named.__annotations__, named.__kwdefaults__ = made.__annotations__, made.__kwdefaults__
    return named


class _Names(dict[str, Any]):
    """The globals of a function, with what its closure holds. It holds nothing itself: each is looked up anew."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__()
        self._globals = function.__globals__
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def values(self) -> Any:
        """Those of the function's file, where the interpreter looks for the language."""
        return self._globals.values()

    def __missing__(self, name: str) -> Any:
        value = self._cells[name].cell_contents if name in self._cells else self._globals[name]
        place = _places().get(id(value))
        return value if place is None else getattr(*place)


@functools.cache
def _places() -> dict[int, tuple[Any, str]]:
    """By the ids of the functions of triton.language: where it is that the interpreter replaces them."""
    modules = [tl, tl.core, tl.math, *libdevice_modules()]
    found = [(id(value), (module, name)) for module in modules for name, value in _functions(module)]
    return dict(reversed(found))


def _functions(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in shipped_language()[module].items():
        is_of_device = callable(value) and getattr(value, "__module__", "") == module.__name__ in _LIBDEVICE
        if is_of_device or tl.core.is_builtin(value) or name in _REPLACED:
            yield name, value


def give_loops_dtypes() -> None:
    """Patches the interpreter so that the variable of a loop is a tensor where a kernel asks for more than a number."""
    shipped.FunctionRewriter.ast_transformer = _Loops()


class _Loops(shipped.ASTTransformer):  # type: ignore[misc]
    """Rewrites loops, and else what the interpreter rewrites."""

    def visit_For(self, node: ast.For) -> ast.For:
        """Converts the variable at the start of each turn, as an assignment converts what it assigns."""
        self.generic_visit(node)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if name and _is_range(node.iter) and any(_asks_more(each, name) for each in node.body):
            assigned = ast.parse(f"{name} = interpreter_semantic.to_tensor({name}, False)").body
            node.body = [*assigned, *node.body]
        return node


def _is_range(node: ast.expr) -> bool:
    """Whether it is `range(...)` or `tl.range(...)`, which give tensors; `static_range` gives constants."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", "")) == "range"


def _asks_more(body: ast.AST, name: str) -> bool:
    """Whether an attribute is read of the variable or of a sum of it, or a function of the user's is given it."""
    holders = [each.value for each in ast.walk(body) if isinstance(each, ast.Attribute)]
    calls = [each for each in ast.walk(body) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
    given = [arg for call in calls for arg in (*call.args, *(one.value for one in call.keywords))]
    return any(isinstance(each, ast.Name) and each.id == name for one in (*holders, *given) for each in ast.walk(one))
