"""A Triton function as its author wrote it: text, syntax tree, variables, and the Triton functions that it calls."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from .kernel_file import inside, parameters
from .text import PythonSource, SourceLine, python_source

# Functions of triton.language that tell the compiler of a value and leave it as it is.
HINTS = {"multiple_of", "max_contiguous", "max_constancy"}


@dataclass(frozen=True, eq=False)
class Function:
    """A function under @triton.jit, read from its file."""

    plain: Any
    """The Python function under Triton's object."""
    source: PythonSource
    """The file that it stands in."""
    tree: ast.FunctionDef
    """Of that file's syntax tree, without the decorators."""

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def name(self) -> str:
        return str(self.plain.__name__)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(parameters(self.tree))

    @cached_property
    def assignments(self) -> list[tuple[str, ast.Assign | ast.AugAssign]]:
        """Every variable that is assigned by itself and not as a part of a tuple, with the statement that does it."""
        found = list[tuple[str, ast.Assign | ast.AugAssign]]()
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                found += [(each.id, node) for each in targets_of(node) if isinstance(each, ast.Name)]
        return found

    @cached_property
    def _scope(self) -> dict[str, Any]:
        """What it finds outside itself when this is first asked for, by name."""
        found = dict(self.plain.__globals__)
        for name, cell in zip(self.plain.__code__.co_freevars, self.plain.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                found[name] = cell.cell_contents
        own = (*self.parameters, *bound_in(self.tree.body))
        return {name: value for name, value in found.items() if name not in own}

    def line_of(self, node: ast.AST) -> SourceLine:
        """The line where a node of its tree begins, with as much of the node as stands there."""
        return self.source.line_of(node, self.name)

    @cached_property
    def calls(self) -> list[Any]:
        """The Triton functions that it calls and that are not Triton's own."""
        return [jit for node in inside(self.tree, ast.Call) if is_own(jit := self.called(node))]

    def called(self, call: ast.Call) -> Any:
        """What a call calls; None for a method of one of the function's own variables."""
        names, root = list[str](), call.func
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        value = self._scope.get(root.id) if isinstance(root, ast.Name) else None
        for name in reversed(names):
            value = getattr(value, name, None)
        return value


def read_function(jit: Any) -> Function:
    """Reads the source of a Triton function, or of the Python function under it, once.

    Raises:
        OSError, SyntaxError: there is no source, or no `def` in it.
    """
    return _read(getattr(jit, "fn", jit))


@lru_cache(maxsize=512)
def _read(plain: Any) -> Function:
    lines, _ = inspect.findsource(plain)
    file = inspect.getsourcefile(plain) or plain.__code__.co_filename
    source = python_source(str(Path(file).resolve()), "".join(lines))
    for node in source.functions:
        # The first line of a function's code is that of its first decorator.
        if plain.__code__.co_firstlineno == min([node.lineno, *(each.lineno for each in node.decorator_list)]):
            tree = copy.copy(node)
            tree.decorator_list = []
            return Function(plain, source, tree)
    raise SyntaxError(f"{plain.__name__} is not a function")


def call_tree(jit: Any) -> list[Function]:
    """A kernel and every Triton function below it, nearest first, each once."""
    found = [read_function(jit)]
    for function in found:  # which grows meanwhile
        for called in function.calls:
            if (below := read_function(called)) not in found:
                found.append(below)
    return found


def is_jit(value: Any) -> bool:
    """Whether it is a Triton function, compiled or interpreted."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return isinstance(value, (JITFunction, InterpretedFunction))


def kernel_below(value: Any) -> Any:
    """The Triton function below what tunes it or fills in its constants; None for anything else."""
    for _ in range(4):
        if is_jit(value) or not type(value).__module__.startswith("triton.runtime"):
            break
        value = getattr(value, "fn", None)
    return value if is_jit(value) else None


def functions_of(scope: Mapping[str, Any], file: str) -> list[Function]:
    """The Triton functions that are defined in a file, of those that a module's names mean."""
    found = dict[Function, None]()
    for value in list(scope.values()):
        with contextlib.suppress(OSError, SyntaxError, TypeError):
            jit = kernel_below(value)
            if jit is not None and (function := read_function(jit)).file == file:
                found[function] = None
    return sorted(found, key=lambda function: function.tree.lineno)


def is_own(value: Any) -> bool:
    """Whether it is a Triton function, and none of Triton's library."""
    return is_jit(value) and not value.fn.__module__.startswith("triton.")


def targets_of(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    """What an assignment assigns to."""
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def bound_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements assign, at any depth, in the order of the text."""
    for node in nodes:
        yield from _bound_in(node)


@lru_cache(maxsize=4096)
def _bound_in(root: ast.AST) -> tuple[str, ...]:
    found = [node for node in inside(root, ast.Name) if isinstance(node.ctx, ast.Store)]
    return tuple(node.id for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)))


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of statements that a statement holds: none where it is a simple one."""
    return [block for field in ("body", "orelse", "finalbody") if (block := getattr(statement, field, None))]
