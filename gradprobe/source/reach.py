"""Reach: what runs can show of a function: its statements, both sides of branches and flags, the turns of loops."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .operators.addresses import parameters
from .text import PythonSource
from .triton_source import blocks

STATEMENT, SIDE, TURNS, FLAG, CALLER = "statement", "side", "turns", "flag", "caller"
# A loop that had this many turns or more had several.
SEVERAL = 2
_IN_WORDS = {0: "no turn", 1: "one turn", SEVERAL: "several turns"}
# What only refuses: no right run comes there.
_REFUSING = ("static_assert", "device_assert", "device_print", "static_print", "print")


@dataclass(frozen=True, order=True)
class Goal:
    """One thing that runs may reach."""

    kind: str
    """STATEMENT, SIDE, TURNS, FLAG or CALLER."""
    line: int
    """Of a statement, a branch, a loop; of a flag and a caller that of the function."""
    value: int = 0
    """Which side, 0 or 1; how many turns, at most SEVERAL."""
    name: str = ""
    """Of a flag or a function."""

    @property
    def words(self) -> str:
        """As what was not run."""
        if self.kind == SIDE:
            return f"line {self.line} where its condition is {'true' if self.value else 'false'}"
        if self.kind == TURNS:
            return f"the loop of line {self.line} with {_IN_WORDS[self.value]}"
        if self.kind == FLAG:
            return f"{self.name} = {bool(self.value)}"
        return self.name if self.kind == CALLER else f"line {self.line}"


@dataclass(frozen=True)
class Reach:
    """One function of a file, as far as a trace of its lines tells what it did."""

    function: ast.FunctionDef
    callers: tuple[str, ...] = ()
    """The functions of the file that call it."""
    edited: frozenset[int] = frozenset()
    """The lines that an edit changed."""

    @cached_property
    def statements(self) -> Mapping[int, int]:
        """Each line of a statement, or of the head of one that holds others -> its first line."""
        found: dict[int, int] = {}
        for node in _statements(self.function.body):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            found |= dict.fromkeys(range(node.lineno, max(last, node.lineno) + 1), node.lineno)
        return found

    @cached_property
    def branches(self) -> Mapping[int, range]:
        """The first line of each `if` -> the lines of its body."""
        return {node.lineno: _lines(node.body) for node in _statements(self.function.body) if isinstance(node, ast.If)}

    @cached_property
    def loops(self) -> Mapping[int, range]:
        """The first line of each loop -> the lines of its body."""
        kinds = (ast.For, ast.While)
        return {node.lineno: _lines(node.body) for node in _statements(self.function.body) if isinstance(node, kinds)}

    @cached_property
    def flags(self) -> frozenset[str]:
        """The parameters that choose between two expressions of one line."""
        tests = [node.test for node in ast.walk(self.function) if isinstance(node, ast.IfExp)]
        named = {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}
        plain = {test.id for test in tests if isinstance(test, ast.Name)}
        negated = {test.operand.id for test in tests if _is_negated(test)}  # type: ignore[attr-defined]
        return frozenset(named & (plain | negated) & set(parameters(self.function)))

    @cached_property
    def goals(self) -> frozenset[Goal]:
        """All that runs are to reach."""
        return frozenset(self._goals())

    def _goals(self) -> Iterator[Goal]:
        at = self.function.lineno
        yield from (Goal(CALLER, at, 0, name) for name in self.callers)
        yield from (Goal(FLAG, at, side, name) for name in self.flags for side in (0, 1))
        for node in _statements(self.function.body, refusing=False):
            yield Goal(STATEMENT, node.lineno)
            if isinstance(node, ast.If) and not _refuses(node.body) and not _refuses(node.orelse):
                sides = (1,) if self._only_adds(node) else (0, 1)
                yield from (Goal(SIDE, node.lineno, side) for side in sides)
            if isinstance(node, (ast.For, ast.While)) and not _is_constant(node, self.function):
                yield from (Goal(TURNS, node.lineno, turns) for turns in (1, SEVERAL))

    def _only_adds(self, branch: ast.If) -> bool:
        """Whether a compiler's constant leaves out statements, none of them an edit's, and runs no others instead."""
        names = {node.id for node in ast.walk(branch.test) if isinstance(node, ast.Name)}
        constants = {each.arg for each in _arguments(self.function) if _is_constexpr(each)}
        return not branch.orelse and names <= constants and not self.edited & set(_lines(branch.body))

    def left(self, reached: Collection[Goal]) -> list[str]:
        """What was not reached, in words; of a side of a branch not its statements too."""
        left = sorted(self.goals - set(reached))
        sides = {goal.line: goal.value for goal in left if goal.kind == SIDE}
        hidden = {line for at, side in sides.items() for line in self._of_side(at, side)}
        return [goal.words for goal in left if goal.kind in (FLAG, CALLER) or goal.line not in hidden]

    def _of_side(self, at: int, side: int) -> range:
        node = next(each for each in _statements(self.function.body) if each.lineno == at and isinstance(each, ast.If))
        return _lines(node.body if side else node.orelse)


def reach_of(
    source: PythonSource, names: Collection[str], kernels: Collection[str], edited: Collection[int]
) -> list[Reach]:
    """The reach of the functions with some names.

    Args:
        edited: the lines that an edit changed.
        kernels: those that run on the device, of which the callers of another one are to run too.
    """
    calls, lines = {each.name: _called(each) for each in source.functions}, frozenset(edited)
    return [
        Reach(each, tuple(name for name in sorted(calls) if each.name in calls[name] and name in kernels), lines)
        for each in source.functions
        if each.name in names
    ]


def _called(function: ast.FunctionDef) -> set[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {node.id for node in calls if isinstance(node, ast.Name)}


def _statements(body: Sequence[ast.stmt], *, refusing: bool = True) -> Iterator[ast.stmt]:
    """Every statement at any depth, without docstrings; `refusing`: whether with those that only refuse."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not refusing and _refuses([statement]):
            continue
        yield statement
        for block in blocks(statement):
            yield from _statements(block, refusing=refusing)


def _refuses(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end a run, or say something, and do no more."""
    return bool(body) and all(isinstance(one, (ast.Raise, ast.Assert, ast.Pass)) or _says(one) for one in body)


def _says(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _REFUSING
        case ast.If(body=body, orelse=[]):
            return _refuses(body)
    return False


def _is_negated(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Name)


def _is_constant(loop: ast.For | ast.While, function: ast.FunctionDef) -> bool:
    """Whether a loop has the same turns in all runs: its range is of literals and constants of the compiler."""
    if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
        return False
    arguments = {each.arg for each in _arguments(function) if _is_constexpr(each)}
    names = {node.id for one in loop.iter.args for node in ast.walk(one) if isinstance(node, ast.Name)}
    return all(name in arguments or name in ("tl", "range", "triton") for name in names)


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _is_constexpr(argument: ast.arg) -> bool:
    return argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1) if body else range(0)
