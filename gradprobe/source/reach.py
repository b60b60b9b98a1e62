"""Reach: what runs can show of a function: its statements, both sides of branches and flags, the turns of loops."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .text import PythonSource
from .triton_source import blocks, bound_in

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
    def in_words(self) -> str:
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
    def nodes(self) -> Mapping[int, ast.stmt]:
        """The statements by their first lines."""
        return {node.lineno: node for node in _statements(self.function.body)}

    @cached_property
    def statements(self) -> Mapping[int, int]:
        """Each line of a statement, or of the head of one that holds others -> its first line."""
        return {line: first for first, node in self.nodes.items() for line in _head(node)}

    @cached_property
    def branches(self) -> Mapping[int, range]:
        """The first line of each `if` -> the lines of its body."""
        return {line: _lines(node.body) for line, node in self.nodes.items() if isinstance(node, ast.If)}

    @cached_property
    def loops(self) -> Mapping[int, range]:
        """The first line of each loop -> the lines of its body."""
        return {line: _lines(node.body) for line, node in self.nodes.items() if isinstance(node, (ast.For, ast.While))}

    @cached_property
    def flags(self) -> frozenset[str]:
        """The parameters that choose, plain or negated, between two expressions of one line."""
        tests = [node.test for node in ast.walk(self.function) if isinstance(node, ast.IfExp)]
        chosen = [getattr(test, "operand", test) for test in tests]
        named = {each.id for each in chosen if isinstance(each, ast.Name)}
        return frozenset(named & {each.arg for each in _arguments(self.function)})

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
                yield from (Goal(SIDE, node.lineno, side) for side in (0, 1))
            if isinstance(node, (ast.For, ast.While)) and not _is_constant(node, self.function):
                yield from (Goal(TURNS, node.lineno, turns) for turns in (0, 1, SEVERAL))

    def unreached(self, reached: Collection[Goal]) -> list[Goal]:
        """What was not reached; of a side of a branch not its statements too."""
        left = sorted(self.goals - set(reached))
        hidden = {line for goal in left if goal.kind == SIDE for line in self._inside(goal)}
        return [goal for goal in left if goal.kind in (FLAG, CALLER) or goal.line not in hidden]

    def tells(self, goal: Goal) -> bool:
        """Whether what an edit does may differ there: it changes, or feeds, what runs there alone, or calls it.

        What a compiler's constants leave out is another kernel: of that only what the edit changes.
        """
        if goal.kind in (CALLER, FLAG):
            return goal.kind == CALLER or bool(self.edited & self._choosing(goal.name))
        node = self.nodes[goal.line]
        if goal.kind == TURNS:
            return False  # The statements of a loop without a turn are goals of their own.
        inside = self._inside(goal) if goal.kind == SIDE else _head(node)
        if self.edited & {*inside, *_head(node)}:
            return True
        is_left_out = isinstance(node, ast.If) and goal.kind == SIDE and not self._varies(node.test)
        return not is_left_out and any(self._is_fed(self.nodes[line]) for line in inside if line in self.nodes)

    def _inside(self, goal: Goal) -> range:
        """The lines of a side of a branch."""
        node = self.nodes[goal.line]
        return _lines(node.body if goal.value else node.orelse) if isinstance(node, ast.If) else range(0)

    def _choosing(self, flag: str) -> set[int]:
        """The lines on which a flag chooses between two expressions."""
        nodes = [node for node in ast.walk(self.function) if isinstance(node, ast.IfExp) and flag in _read(node.test)]
        return {line for node in nodes for line in _span(node)}

    def _varies(self, test: ast.expr) -> bool:
        """Whether a condition is of more than the compiler's constants, or a threshold of one: a length may be one."""
        arguments = {each.arg for each in _arguments(self.function) if not _is_constexpr(each)}
        plain = {name for node in self.nodes.values() if not _is_constexpr(node) for name in _assigned(node)}
        varying = (ast.Call, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
        return bool(_read(test) & (arguments | plain)) or any(isinstance(node, varying) for node in ast.walk(test))

    def _is_fed(self, node: ast.stmt) -> bool:
        """Whether a statement reads what an edit changed: of one of a launch, or of a signature, all arguments."""
        return not self.edited <= set(_lines(self.function.body)) or bool(_evaluated(node) & self._fed)

    @cached_property
    def _fed(self) -> frozenset[str]:
        """The names whose values are made of what an edit changed, or chosen by it."""
        nodes = self.nodes.values()
        fed = [node for node in nodes if self.edited & {*_head(node)}]
        found: set[str] = set()
        while more := {name for node in fed for each in (node, *_within(node)) for name in _assigned(each)} - found:
            found |= more
            fed = [node for node in nodes if _evaluated(node) & more]
        return frozenset(found)


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


def _is_constant(loop: ast.For | ast.While, function: ast.FunctionDef) -> bool:
    """Whether a loop has the same turns in all runs: its range is of literals and constants of the compiler."""
    if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
        return False
    arguments = {each.arg for each in _arguments(function) if _is_constexpr(each)}
    names = {node.id for one in loop.iter.args for node in ast.walk(one) if isinstance(node, ast.Name)}
    return all(name in arguments or name in ("tl", "range", "triton") for name in names)


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _is_constexpr(node: ast.AST) -> bool:
    annotation = getattr(node, "annotation", None)
    return annotation is not None and "constexpr" in ast.unparse(annotation)


def _read(node: ast.AST) -> set[str]:
    """The names that stand in an expression or a statement, without those that it only assigns."""
    is_only_set = isinstance(node, (ast.Assign, ast.AnnAssign))
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if not (is_only_set and isinstance(each.ctx, ast.Store))}


def _evaluated(node: ast.stmt) -> set[str]:
    """The names that a statement itself reads: of one that holds others its condition, or what it goes over."""
    parts = [getattr(node, "test", None), getattr(node, "iter", None)] if blocks(node) else [node]
    return {name for part in parts if part is not None for name in _read(part)}


def _within(node: ast.stmt) -> list[ast.stmt]:
    """The statements that one holds, at any depth."""
    return [each for block in blocks(node) for each in _statements(block)]


def _assigned(node: ast.stmt) -> set[str]:
    """The names that a statement itself assigns."""
    return set(bound_in([node.target] if isinstance(node, ast.For) else [] if blocks(node) else [node]))


def _head(node: ast.stmt) -> range:
    """The lines of a statement; of one that holds others those before them."""
    body = getattr(node, "body", None)
    return range(node.lineno, max(body[0].lineno, node.lineno + 1)) if body else _span(node)


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1) if body else range(0)
