"""A file of kernels: its functions, those that run on the device, and one change of its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from .parameter_names import stride_of, word_of
from .text import Edit, PythonSource

N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True, eq=False)
class KernelFile(PythonSource):
    """A file that faults are planted in."""

    function: str | None = None
    """Whose kernels are meant; None, or one that the file does not define itself, for all."""

    @property
    def path(self) -> Path:
        return Path(self.file)

    @cached_property
    def reached(self) -> tuple[ast.FunctionDef, ...]:
        """Those of its functions that the one meant reaches."""
        return tuple(_reached(self.tree, self.function))

    @cached_property
    def kernels(self) -> tuple[ast.FunctionDef, ...]:
        """Those under @triton.jit, which run on the device."""
        return tuple(function for function in self.reached if _is_kernel(function))

    def inside_kernels(self, kind: type[N]) -> Iterator[N]:
        """The nodes of a type in the bodies of the kernels."""
        for statement in (statement for kernel in self.kernels for statement in kernel.body):
            yield from inside(statement, kind)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls, in the bodies of the kernels, of what has one of some names."""
        return (call for call in self.inside_kernels(ast.Call) if called(call) in names)

    @cached_property
    def hosts(self) -> tuple[ast.FunctionDef, ...]:
        """The others, which allocate and launch."""
        return tuple(function for function in self.reached if function not in self.kernels)

    def renamed(self, call: ast.Call, name: str) -> Edit:
        """Another function called, of the same module or object."""
        return self.replaced(call.func, self.text_of(call.func).removesuffix(called(call)) + name)


def _is_kernel(function: ast.FunctionDef) -> bool:
    """Whether one of its decorators is `jit`, called or not."""
    return any(_last_name(decorator) == "jit" for decorator in function.decorator_list)


def _last_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST) -> str:
    """The last name of what a call calls: "load" for tl.load(...); "" for what is no call."""
    return _last_name(node) if isinstance(node, ast.Call) else ""


def inside(node: ast.AST, kind: type[N]) -> list[N]:
    """The nodes of a type in one, at any depth, itself among them."""
    return [each for each in ast.walk(node) if isinstance(each, kind)]


def names_in(node: ast.AST) -> set[str]:
    """The names that stand in a node, read or bound."""
    return {name.id for name in inside(node, ast.Name)}


def calls_in(node: ast.AST, *names: str) -> list[ast.Call]:
    """The calls in a node of what has one of some names."""
    return [call for call in inside(node, ast.Call) if called(call) in names]


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of all that a function takes by position or by name."""
    spec = function.args
    return [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]


def calls_of(file: PythonSource, name: str) -> list[ast.Call]:
    """The calls of a function by its name, `f(...)`, and its launches, `f[grid](...)`."""
    return _calls_by_name(file).get(name, [])


def by_parameter(call: ast.Call, names: list[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a call passes, each with its parameter: `q.stride()` of `*q.stride()` with the first stride that it fills.

    It fills all that stand together and are called after one tensor. Behind any other starred argument nobody knows
    which parameter one is for, unless it is passed by its name.
    """
    words, at = {word_of(name) for name in names}, 0
    for argument in call.args[: len(names)]:
        if at == len(names):
            break
        owner = stride_of(names[at], words)[0]
        if not isinstance(argument, ast.Starred):
            yield names[at], argument
        elif called(argument.value) == "stride" and owner:
            yield names[at], argument.value
            while at + 1 < len(names) and stride_of(names[at + 1], words)[0] == owner:
                at += 1
        else:
            break
        at += 1
    yield from ((word.arg or "", word.value) for word in call.keywords)


def arguments_of(call: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr | ast.keyword]:
    """What a call passes by parameter; nothing by place where some of that is starred."""
    is_starred = any(isinstance(each, ast.Starred) for each in call.args)
    by_place = zip(parameters(function), () if is_starred else call.args, strict=False)
    return dict(by_place) | {word.arg: word for word in call.keywords if word.arg}


@lru_cache(maxsize=64)
def _calls_by_name(file: PythonSource) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call):
            base = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if isinstance(base, ast.Name):
                found.setdefault(base.id, []).append(node)
    return found


def _reached(tree: ast.Module, function: str | None) -> Iterator[ast.FunctionDef]:
    """The functions that a function uses by their names, and those that they use; of a class all methods."""
    top = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found = set(top) if function not in top else {function}
    waiting = sorted(found) if function in top else []
    while waiting:
        inner = [node for statement in top[waiting.pop()].body for node in ast.walk(statement)]
        names = {node.id for node in inner if isinstance(node, ast.Name)}
        names |= {node.attr for node in inner if isinstance(node, ast.Attribute)}
        used = names & top.keys() - found
        found |= used
        waiting += used
    for name in (name for name in top if name in found):
        yield from (node for node in ast.walk(top[name]) if isinstance(node, ast.FunctionDef))


@dataclass(frozen=True)
class Change:
    """A change of a file."""

    fault_class: str
    node: ast.AST
    """Inside the function that is changed."""
    edits: tuple[Edit, ...]
