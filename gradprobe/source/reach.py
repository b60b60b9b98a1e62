"""Reach: what runs can show of a function: its statements, both sides of branches and flags, the turns of loops."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .kernel_file import inside, names_in
from .text import PythonSource
from .triton_source import blocks, bound_in

STATEMENT, SIDE, TURNS, FLAG, CALLER = "statement", "side", "turns", "flag", "caller"
# A loop that had this many turns or more had several.
SEVERAL = 2
_IN_WORDS = {0: "no turn", 1: "one turn", SEVERAL: "several turns"}
# What only refuses: no right run comes there.
_REFUSING = ("static_assert", "device_assert", "device_print", "static_print", "print")
_LOOPS = (ast.For, ast.While)


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
        return {
            SIDE: f"line {self.line} where its condition is {'true' if self.value else 'false'}",
            TURNS: f"the loop of line {self.line} with {_IN_WORDS[self.value]}",
            FLAG: f"{self.name} = {bool(self.value)}",
            CALLER: self.name,
            STATEMENT: f"line {self.line}",
        }[self.kind]


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
        return {node.lineno: node for node in statements(self.function.body)}

    @cached_property
    def statements(self) -> Mapping[int, int]:
        """Each line of a statement, or of the head of one that holds others -> its first line."""
        return {line: first for first, node in self.nodes.items() for line in head_of(node)}

    @cached_property
    def branches(self) -> Mapping[int, range]:
        """The first line of each `if` -> the lines of its body."""
        return {line: _lines(node.body) for line, node in self.nodes.items() if isinstance(node, ast.If)}

    @cached_property
    def loops(self) -> Mapping[int, range]:
        """The first line of each loop -> the lines of its body."""
        return {line: _lines(node.body) for line, node in self.nodes.items() if isinstance(node, _LOOPS)}

    @cached_property
    def _arguments(self) -> dict[str, bool]:
        """The parameters, and whether each is a constant of the compiler."""
        spec = self.function.args
        return {each.arg: _is_constexpr(each) for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}

    @cached_property
    def flags(self) -> frozenset[str]:
        """The parameters that choose, plain or negated, between two expressions of one line."""
        tests = [getattr(node.test, "operand", node.test) for node in inside(self.function, ast.IfExp)]
        return frozenset({each.id for each in tests if isinstance(each, ast.Name)} & self._arguments.keys())

    @cached_property
    def goals(self) -> frozenset[Goal]:
        """All that runs are to reach."""
        at = self.function.lineno
        found = {Goal(CALLER, at, 0, name) for name in self.callers}
        found |= {Goal(FLAG, at, side, name) for name in self.flags for side in (0, 1)}
        for node in statements(self.function.body, refusing=False):
            found.add(Goal(STATEMENT, node.lineno))
            if isinstance(node, ast.If) and not _refuses(node.body) and not _refuses(node.orelse):
                found |= {Goal(SIDE, node.lineno, side) for side in (0, 1)}
            if isinstance(node, _LOOPS) and not self._is_constant(node):
                found |= {Goal(TURNS, node.lineno, turns) for turns in (0, 1, SEVERAL)}
        return frozenset(found)

    def _is_constant(self, loop: ast.For | ast.While) -> bool:
        """Whether a loop has the same turns in all runs: its range is of literals and constants of the compiler."""
        if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
            return False
        names = set().union(*map(names_in, loop.iter.args))
        return all(self._arguments.get(name) or name in ("tl", "range", "triton") for name in names)

    def unreached(self, reached: Collection[Goal]) -> list[Goal]:
        """What was not reached; of a side of a branch not its statements too."""
        left = sorted(self.goals - set(reached))
        hidden = {line for goal in left if goal.kind == SIDE for line in self._side(goal)}
        return [goal for goal in left if goal.kind in (FLAG, CALLER) or goal.line not in hidden]

    def tells(self, goal: Goal) -> bool:
        """Whether what an edit does may differ there: it changes, or feeds, what runs there alone, or calls it.

        What a compiler's constants leave out is another kernel: of that only what the edit changes. The statements of
        a loop without a turn are goals of their own.
        """
        if goal.kind in (CALLER, TURNS):
            return goal.kind == CALLER
        if goal.kind == FLAG:
            chosen = [node for node in inside(self.function, ast.IfExp) if goal.name in names_in(node.test)]
            return any(self.edited & {*lines_of(node)} for node in chosen)
        node = self.nodes[goal.line]
        lines = self._side(goal) if goal.kind == SIDE else head_of(node)
        if self.edited & {*lines, *head_of(node)}:
            return True
        if isinstance(node, ast.If) and goal.kind == SIDE and not self._varies(node.test):
            return False
        return any(self._is_fed(self.nodes[line]) for line in lines if line in self.nodes)

    def _side(self, goal: Goal) -> range:
        """The lines of a side of a branch."""
        node = self.nodes[goal.line]
        return _lines(node.body if goal.value else node.orelse) if isinstance(node, ast.If) else range(0)

    def _varies(self, test: ast.expr) -> bool:
        """Whether a condition is of more than the compiler's constants, or a threshold of one: a length may be one."""
        names = names_in(test)
        assigned = [each for each in self.nodes.values() if not _is_constexpr(each) and names & _assigned(each)]
        is_plain = any(not self._arguments.get(name, True) for name in names)
        varying = (ast.Call, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
        return is_plain or bool(assigned) or any(isinstance(node, varying) for node in ast.walk(test))

    def _is_fed(self, node: ast.stmt) -> bool:
        """Whether a statement reads what an edit changed: of one of a launch, or of a signature, all arguments."""
        return not self.edited <= set(_lines(self.function.body)) or bool(_evaluated(node) & self._fed)

    @cached_property
    def _fed(self) -> frozenset[str]:
        """The names whose values are made of what an edit changed, or chosen by it."""
        nodes, found = list(self.nodes.values()), set[str]()
        more = set(bound_in(node for node in nodes if self.edited & {*head_of(node)}))
        while more - found:
            found |= more
            more = set(bound_in(node for node in nodes if _evaluated(node) & found))
        return frozenset(found)


def reach_of(
    source: PythonSource, names: Collection[str], kernels: Collection[str], edited: Collection[int]
) -> list[Reach]:
    """The reach of the functions with some names.

    Args:
        edited: the lines that an edit changed.
        kernels: those that run on the device, of which the callers of another one are to run too.
    """
    found = []
    for function in (each for each in source.functions if each.name in names):
        callers = {each.name for each in source.functions if each.name in kernels and _calls(each, function.name)}
        found.append(Reach(function, tuple(sorted(callers)), frozenset(edited)))
    return found


def _calls(function: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(call.func, ast.Name) and call.func.id == name for call in inside(function, ast.Call))


def statements(body: Sequence[ast.stmt], *, refusing: bool = True) -> Iterator[ast.stmt]:
    """Every statement at any depth, without docstrings; `refusing`: whether with those that only refuse."""
    for statement in body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring and (refusing or not _refuses([statement])):
            yield statement
            for block in blocks(statement):
                yield from statements(block, refusing=refusing)


def _refuses(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end a run, or say something, and do no more."""
    for statement in body:
        match statement:
            case ast.Raise() | ast.Assert() | ast.Pass():
                continue
            case ast.Expr(ast.Call(ast.Attribute(attr=name) | ast.Name(id=name))) if name in _REFUSING:
                continue
            case ast.If(body=inner, orelse=[]) if _refuses(inner):
                continue
        return False
    return bool(body)


def _is_constexpr(node: ast.AST) -> bool:
    annotation = getattr(node, "annotation", None)
    return annotation is not None and "constexpr" in ast.unparse(annotation)


def _evaluated(node: ast.AST) -> set[str]:
    """The names that a statement itself reads: of one that holds others its condition, or what it goes over."""
    if isinstance(node, ast.stmt) and blocks(node):
        node = getattr(node, "test", None) or getattr(node, "iter", None) or ast.Pass()
    is_only_set = isinstance(node, (ast.Assign, ast.AnnAssign))
    return {each.id for each in inside(node, ast.Name) if not (is_only_set and isinstance(each.ctx, ast.Store))}


def _assigned(node: ast.stmt) -> set[str]:
    """The names that a statement itself assigns."""
    return set(bound_in([node.target] if isinstance(node, ast.For) else [] if blocks(node) else [node]))


def head_of(node: ast.stmt) -> range:
    """The lines of a statement; of one that holds others those before them."""
    body = getattr(node, "body", None)
    return range(node.lineno, max(body[0].lineno, node.lineno + 1)) if body else lines_of(node)


def lines_of(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, lines_of(body[-1]).stop) if body else range(0)
