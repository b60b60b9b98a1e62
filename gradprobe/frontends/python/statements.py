"""Statements around a line of Python."""

import ast
import functools
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

from ...source.kernel_file import python_file
from ...source.syntax import called, inside, targets_of
from .. import Statements

# Statements of a helper that makes a mask up to which all are told.
_FEW = 8
# How many steps back a grid is followed in one function.
_STEPS = 3
_ASSIGNMENTS = (ast.Assign, ast.AugAssign)
_all: Any = functools.lru_cache(maxsize=4096)(inside)
_line_of = attrgetter("lineno")


class _Line:
    def __init__(self, file: str, number: int) -> None:
        self.number = number
        self.function: ast.AST = python_file(file).tree
        for function in self.around(ast.FunctionDef):
            self.function = function
        self.names = _names(*self.around(ast.Name))

    def around(self, *kinds: Any) -> list[Any]:
        every = _all(self.function, *kinds)
        return [node for node in every if node.lineno <= self.number <= (node.end_lineno or 0)]

    def assigned(self, names: set[str], until: int | None = None) -> list[Any]:
        last, every = self.number if until is None else until, _all(self.function, *_ASSIGNMENTS)
        found = [each for each in every if each.lineno <= last]
        found = [each for each in found if names & _names(*targets_of(each))]
        return sorted(found, key=_line_of, reverse=True)


class PythonStatements(Statements):
    def masks(self, line: int, *, of_accesses: bool = True) -> Iterator[int]:
        here, masks = _Line(self.file, line), list[ast.AST]()
        for call in here.around(ast.Call):
            masks += call.args[:1] if called(call) == "where" else []
            masks += [word.value for word in call.keywords if word.arg == "mask" and of_accesses]
        for made in here.assigned(_names(*masks)):
            yield made.lineno
            for call in _all(made.value, ast.Call):
                yield from self._short_body(called(call))
            for term in here.assigned(_names(made.value), made.lineno - 1):
                if isinstance(term.value, (ast.Compare, ast.BoolOp)):
                    yield term.lineno

    def _short_body(self, name: str) -> Iterator[int]:
        for function in python_file(self.file).functions:
            kinds = (*_ASSIGNMENTS, ast.Return)
            body = [node for node in function.body if isinstance(node, kinds)]
            if function.name == name and len(body) <= _FEW:
                yield from map(_line_of, reversed(body))

    def address(self, line: int) -> list[int]:
        here = _Line(self.file, line)
        made = [node for node in here.assigned(here.names) if "stride" in " ".join(_names(node))]
        indices = here.assigned(_names(*made))
        indices = [node for node in indices if _all(node, ast.FloorDiv, ast.Mod)]
        return _others(line, made + indices)

    def aliases(self, line: int) -> list[int]:
        here = _Line(self.file, line)
        made = here.assigned(here.names)
        return _others(line, [node for node in made if isinstance(node.value, ast.Name)])

    def grids(self, kernel: str) -> Iterator[int]:
        for call in python_file(self.file).calls_of(kernel):
            if not isinstance(call.func, ast.Subscript):  # `f[grid](...)`
                continue
            here, names = _Line(self.file, call.lineno), _names(call.func)
            found = {call.lineno: None}
            for _ in range(_STEPS):
                made = here.assigned(names)
                names = _names(*(node.value for node in made))
                for node in made:
                    is_part = isinstance(node.value, ast.Subscript)
                    value = node.value.value if is_part else node.value
                    if getattr(value, "attr", "") != "shape":
                        found[node.lineno] = None
            yield from found

    def launches_with(self, line: int) -> Iterator[int]:
        here = _Line(self.file, line)
        parts = list[ast.AST]()
        for node in here.around(*_ASSIGNMENTS):
            parts += targets_of(node)
        for call in _all(here.function, ast.Call):
            is_launch = isinstance(call.func, ast.Subscript) and call.lineno > line
            if is_launch and _names(*parts) & _names(*call.args):
                yield call.lineno

    def function_at(self, line: int) -> str:
        return getattr(_Line(self.file, line).function, "name", "")

    def loops(self, line: int) -> list[int]:
        here, found = _Line(self.file, line), list[int]()
        used = {line, *map(_line_of, here.assigned(here.names))}
        for loop in _all(here.function, ast.For):
            if not used.isdisjoint(range(loop.lineno + 1, loop.end_lineno + 1)):
                found.append(loop.lineno)
        return sorted(found, reverse=True)

    def ends(self, line: int) -> Iterator[int]:
        here = _Line(self.file, line)
        around = [loop for loop in here.around(ast.For) if loop.lineno < line]
        for loop in around[-1:]:
            limits = loop.iter.args[:2] if isinstance(loop.iter, ast.Call) else []
            yield from map(_line_of, here.assigned(_names(*limits), loop.lineno))
            yield loop.lineno


def _others(line: int, nodes: Iterable[ast.AST]) -> list[int]:
    return [at for at in dict.fromkeys(map(_line_of, nodes)) if at != line]


def _names(*trees: ast.AST) -> set[str]:
    names = set[str]()
    for tree in trees:
        names.update(map(attrgetter("id"), _all(tree, ast.Name)))
    return names
