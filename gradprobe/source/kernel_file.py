"""A Python file: its tree, its nodes' places, its device functions."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from .parameter_names import stride_of, word_of
from .syntax import Edit, SourceLine, called, inside, keywords, last_name, names_in


@dataclass(frozen=True, eq=False)
class KernelFile:
    """Places in it are offsets of characters."""

    file: str
    text: str
    # Whose kernels are meant; None, or one of another file, for all.
    function: str | None = None

    @property
    def path(self) -> Path:
        return Path(self.file)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        return inside(self.tree, ast.FunctionDef)

    @cached_property
    def reached(self) -> list[ast.FunctionDef]:
        """Directly or not; of a class all methods."""
        top, functions = dict[str, ast.FunctionDef | ast.ClassDef](), list[ast.FunctionDef]()
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                top[node.name] = node
        waiting = [self.function] if self.function in top else []
        found = {*waiting} or {*top}
        while waiting:
            for statement in top[waiting.pop()].body:
                used = set(map(last_name, inside(statement, ast.Name, ast.Attribute)))
                waiting += used & top.keys() - found
                found |= used
        for name in filter(found.__contains__, top):
            functions += inside(top[name], ast.FunctionDef)
        return functions

    @cached_property
    def kernels(self) -> list[ast.FunctionDef]:
        return [each for each in self.reached if "jit" in map(last_name, each.decorator_list)]

    @property
    def hosts(self) -> list[ast.FunctionDef]:
        return [each for each in self.reached if each not in self.kernels]

    def calls_of(self, name: str) -> list[ast.Call]:
        """`f(...)`, and launches, `f[grid](...)`."""
        return self._calls.get(name, [])

    def callers_of(self, name: str) -> Iterator[tuple[ast.Call, ast.FunctionDef]]:
        for call in self.calls_of(name):
            host = next(self.above(call, ast.FunctionDef), None)
            if host is not None and host.name != name:
                yield call, host

    @cached_property
    def in_grids(self) -> set[ast.AST]:
        """Every node of what launches are given as their number of programs."""
        slices, found = list[ast.AST](), set[ast.AST]()
        for call in inside(self.tree, ast.Call):
            if isinstance(call.func, ast.Subscript):
                slices.append(call.func.slice)
        named = set[str]().union(*map(names_in, slices))
        for made in inside(self.tree, ast.Assign):
            if last_name(made.targets[0]) in named:
                slices.append(made.value)
        return found.union(*map(ast.walk, slices))

    def span(self, node: ast.AST) -> tuple[int, int]:
        first = self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return first, self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def offset(self, line: int, column: int) -> int:
        """Of a syntax tree's column, which counts bytes of UTF-8."""
        text = self.lines[line - 1]
        column = column if text.isascii() else len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def text_of(self, node: ast.AST) -> str:
        return self.text[slice(*self.span(node))]

    def line_of(self, node: ast.AST, function: str) -> SourceLine:
        number: int = node.lineno  # type: ignore[attr-defined]
        line, (start, end) = self.lines[number - 1], self.span(node)
        code = self._starts[number - 1] + len(line) - len(line.lstrip())
        length = min(end, code + len(line.strip())) - start
        return SourceLine(
            self.file, number, line.strip(), max(start - code, 0), length, function
        )

    def above(self, node: ast.AST, *kinds: type[ast.AST]) -> Iterator[Any]:
        while node in self._parents:
            node = self._parents[node]
            if not kinds or isinstance(node, kinds):
                yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        return next(each for each in (node, *self.above(node)) if isinstance(each, ast.stmt))

    def replaced(self, node: ast.AST, text: str) -> Edit:
        return Edit(*self.span(node), text)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.lines)]

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        found = dict[ast.AST, ast.AST]()
        for node in ast.walk(self.tree):
            found |= dict.fromkeys(ast.iter_child_nodes(node), node)
        return found

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found = dict[str, list[ast.Call]]()
        for call in inside(self.tree, ast.Call):
            match call.func:
                case ast.Name(name) | ast.Subscript(ast.Name(name) | ast.Attribute(attr=name)):
                    found.setdefault(name, []).append(call)
        return found


# Each text is parsed once, whoever reads it.
kernel_file = lru_cache(maxsize=128)(KernelFile)


def python_file(path: str) -> KernelFile:
    try:
        text = Path(path).read_text(errors="replace") if path.endswith(".py") else ""
        source = kernel_file(path, text)
        source.tree  # noqa: B018 - it raises
    except (OSError, SyntaxError, ValueError):
        return kernel_file(path, "")
    return source


def by_parameter(call: ast.Call, names: list[str]) -> Iterator[tuple[str, ast.expr]]:
    """`*q.stride()` with the first of its strides; nothing behind any other starred argument."""
    words, left = set(map(word_of, names)), list(names)
    for argument in call.args if names else ():
        name, value = left.pop(0), argument
        if isinstance(argument, ast.Starred):
            value, (owner, _) = argument.value, stride_of(name, words)
            if called(value) != "stride" or not owner:
                break
            while left and stride_of(left[0], words)[0] == owner:
                left.pop(0)
        yield name, value
        if not left:
            break
    yield from keywords(call).items()


@dataclass(frozen=True)
class Change:
    fault_class: str
    node: ast.AST
    edits: tuple[Edit, ...]
