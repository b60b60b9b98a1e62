"""A file of kernels: its functions, those that run on the device, and one change of its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
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
        """Those under @triton.jit, called or not, which run on the device."""
        jits = [each for each in self.reached if "jit" in map(_last_name, each.decorator_list)]
        return tuple(jits)

    @cached_property
    def hosts(self) -> tuple[ast.FunctionDef, ...]:
        """The others, which allocate and launch."""
        return tuple(function for function in self.reached if function not in self.kernels)

    def inside_kernels(self, kind: type[N]) -> Iterator[N]:
        """The nodes of a type in the bodies of the kernels."""
        for kernel in self.kernels:
            for statement in kernel.body:
                yield from inside(statement, kind)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls, in the bodies of the kernels, of what has one of some names."""
        return (call for call in self.inside_kernels(ast.Call) if called(call) in names)

    def renamed(self, call: ast.Call, name: str) -> Edit:
        """Another function called, of the same module or object."""
        return self.replaced(call.func, self.text_of(call.func).removesuffix(called(call)) + name)


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
    return file.calls_by_name.get(name, [])


def by_parameter(call: ast.Call, names: list[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a call passes, each with its parameter: `q.stride()` of `*q.stride()` with the first stride that it fills.

    It fills all that stand together and are called after one tensor. Behind any other starred argument nobody knows
    which parameter one is for, unless it is passed by its name.
    """
    words = {word_of(name) for name in names}
    owners, at = [stride_of(name, words)[0] for name in names], 0
    for argument in call.args:
        if at >= len(names):
            break
        if not isinstance(argument, ast.Starred):
            yield names[at], argument
        elif called(argument.value) == "stride" and owners[at]:
            yield names[at], argument.value
            while owners[at + 1 : at + 2] == owners[at : at + 1]:
                at += 1
        else:
            break
        at += 1
    for word in call.keywords:
        yield word.arg or "", word.value


def arguments_of(call: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr | ast.keyword]:
    """What a call passes by parameter; nothing by place where some of that is starred."""
    is_starred = any(isinstance(each, ast.Starred) for each in call.args)
    by_place = zip(parameters(function), () if is_starred else call.args, strict=False)
    return dict(by_place) | {word.arg: word for word in call.keywords if word.arg}


def _reached(tree: ast.Module, function: str | None) -> Iterator[ast.FunctionDef]:
    """The functions that a function uses by their names, and those that they use; of a class all methods."""
    top = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found = {function} if function in top else {*top}
    waiting = [*found] if function in top else []
    while waiting:
        for statement in top[waiting.pop()].body:
            used = names_in(statement) | {node.attr for node in inside(statement, ast.Attribute)}
            waiting += used & top.keys() - found
            found |= used & top.keys()
    for name, node in top.items():
        yield from inside(node, ast.FunctionDef) if name in found else ()


@dataclass(frozen=True)
class Change:
    """A change of a file."""

    fault_class: str
    node: ast.AST
    """Inside the function that is changed."""
    edits: tuple[Edit, ...]
