"""Triton functions as their authors wrote them."""

import ast
import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from .kernel_file import KernelFile, kernel_file
from .syntax import SourceLine, bound_in, first_line, inside, parameters


@dataclass(frozen=True, eq=False)
class Function:
    # The Python function under Triton's object.
    plain: Any
    source: KernelFile
    tree: ast.FunctionDef

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def name(self) -> str:
        return self.tree.name

    @cached_property
    def parameters(self) -> list[str]:
        return parameters(self.tree)

    @cached_property
    def _scope(self) -> dict[str, Any]:
        found, cells = dict(self.plain.__globals__), self.plain.__closure__ or ()
        for name, cell in zip(self.plain.__code__.co_freevars, cells, strict=True):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                found[name] = cell.cell_contents
        for own in (*self.parameters, *bound_in(*self.tree.body)):
            found.pop(own, None)
        return found

    def line_of(self, node: ast.AST) -> SourceLine:
        return self.source.line_of(node, self.name)

    @property
    def calls(self) -> list[Any]:
        return list(filter(is_own, map(self.called, inside(self.tree, ast.Call))))

    def called(self, call: ast.Call) -> Any:
        """None for a method of its own variables."""
        names, root = list[str](), call.func
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        value = self._scope.get(root.id) if isinstance(root, ast.Name) else None
        for name in reversed(names):
            value = getattr(value, name, None)
        return value


def read_function(jit: Any) -> Function:
    """Raises OSError, SyntaxError where there is no source, or no `def` in it."""
    return _read(getattr(jit, "fn", jit))


@lru_cache(maxsize=512)
def _read(plain: Any) -> Function:
    lines, _ = inspect.findsource(plain)
    file = inspect.getsourcefile(plain) or plain.__code__.co_filename
    source = kernel_file(str(Path(file).resolve()), "".join(lines))
    for node in source.functions:
        if plain.__code__.co_firstlineno == first_line(node):
            return Function(plain, source, node)
    raise SyntaxError(f"{plain.__name__} is not a function")


def is_jit(value: Any) -> bool:
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return isinstance(value, (JITFunction, InterpretedFunction))


def is_own(value: Any) -> bool:
    return is_jit(value) and not value.fn.__module__.startswith("triton.")


def kernel_below(value: Any) -> Any:
    for _ in range(4):
        if is_jit(value) or not type(value).__module__.startswith("triton.runtime"):
            break
        value = getattr(value, "fn", None)
    return value if is_jit(value) else None


def functions_of(scope: Mapping[str, Any], file: str) -> list[Function]:
    found = dict[Function, None]()
    for value in list(scope.values()):
        with contextlib.suppress(OSError, SyntaxError, TypeError):
            jit = kernel_below(value)
            if jit is not None and (function := read_function(jit)).file == file:
                found[function] = None
    return sorted(found, key=lambda function: function.tree.lineno)
