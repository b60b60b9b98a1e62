"""What runs can show of a function: statements, branches, flags, turns of loops."""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, filterfalse

from .kernel_file import KernelFile
from .syntax import (
    arguments_of,
    bound_by,
    bound_in,
    head_of,
    inside,
    last_name,
    lines_of,
    names_in,
    read_by,
    refuses,
    statements,
)

STATEMENT, SIDE, TURNS, FLAG, CALLER = "statement", "side", "turns", "flag", "caller"
# A loop that had this many turns or more had several.
SEVERAL = 2
_TURNS = ("no turn", "one turn", "several turns")
_LOOPS = (ast.For, ast.While)
# What in a condition of constants may be a threshold of a length.
_VARYING = (ast.Call, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True, order=True)
class Goal:
    kind: str
    line: int  # of a flag and a caller the function's
    value: int = 0  # which side, 0 or 1; how many turns
    name: str = ""

    @property
    def in_words(self) -> str:
        return {
            SIDE: f"line {self.line} where its condition is {'true' if self.value else 'false'}",
            TURNS: f"the loop of line {self.line} with {_TURNS[self.value]}",
            FLAG: f"{self.name} = {bool(self.value)}",
            CALLER: self.name,
            STATEMENT: f"line {self.line}",
        }[self.kind]


@dataclass(frozen=True)
class Reach:
    function: ast.FunctionDef
    callers: tuple[str, ...] = ()
    edited: frozenset[int] = frozenset()

    @cached_property
    def nodes(self) -> dict[int, ast.stmt]:
        return {node.lineno: node for node in statements(self.function.body)}

    @cached_property
    def statements(self) -> dict[int, int]:
        found = dict[int, int]()
        for first, node in self.nodes.items():
            found |= dict.fromkeys(head_of(node), first)
        return found

    @cached_property
    def branches(self) -> dict[int, range]:
        return self._bodies(ast.If)

    @cached_property
    def loops(self) -> dict[int, range]:
        return self._bodies(*_LOOPS)

    def _bodies(self, *kinds: type[ast.If | ast.For | ast.While]) -> dict[int, range]:
        return {node.lineno: _lines(node.body) for node in inside(self.function, *kinds)}

    @cached_property
    def _arguments(self) -> dict[str, bool]:
        return {each.arg: _is_constexpr(each) for each in arguments_of(self.function)}

    @cached_property
    def flags(self) -> dict[str, set[int]]:
        """By argument, the lines of what it chooses."""
        found = dict[str, set[int]]()
        for node in inside(self.function, ast.IfExp):
            name = last_name(getattr(node.test, "operand", node.test))
            if name in self._arguments:
                found.setdefault(name, set()).update(lines_of(node))
        return found

    @cached_property
    def goals(self) -> set[Goal]:
        at = self.function.lineno
        found = {Goal(CALLER, at, 0, name) for name in self.callers}
        for name in self.flags:
            found |= {Goal(FLAG, at, 0, name), Goal(FLAG, at, 1, name)}
        for node in self.nodes.values():
            if refuses([node]):
                continue
            found.add(Goal(STATEMENT, node.lineno))
            if isinstance(node, ast.If) and not refuses(node.body) and not refuses(node.orelse):
                found |= {Goal(SIDE, node.lineno, 0), Goal(SIDE, node.lineno, 1)}
            if isinstance(node, _LOOPS) and not self._is_constant(node):
                found.update(Goal(TURNS, node.lineno, turns) for turns in range(SEVERAL + 1))
        return found

    def _is_constant(self, loop: ast.For | ast.While) -> bool:
        if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
            return False
        names = set[str]().union(*map(names_in, loop.iter.args)) - {"tl", "range", "triton"}
        return all(map(self._arguments.get, names))

    def unreached(self, reached: Collection[Goal]) -> list[Goal]:
        """Of a side of a branch not its statements too."""
        left, hidden = sorted(self.goals - set(reached)), set[int]()
        for goal in left:
            hidden.update(self._side(goal) if goal.kind == SIDE else ())
        return [goal for goal in left if goal.kind in (FLAG, CALLER) or goal.line not in hidden]

    def tells(self, goal: Goal) -> bool:
        """Whether the edit changes, or feeds, what runs there alone, or calls it."""
        if goal.kind in (CALLER, TURNS):
            return goal.kind == CALLER
        if goal.kind == FLAG:
            return not self.edited.isdisjoint(self.flags[goal.name])
        statement = self.nodes[goal.line]
        lines = self._side(goal) if goal.kind == SIDE else head_of(statement)
        if self.edited & {*lines, *head_of(statement)}:
            return True
        is_constant = isinstance(statement, ast.If) and not self._varies(statement.test)
        if goal.kind == SIDE and is_constant:
            return False
        is_outside = not self.edited <= {*_lines(self.function.body)}
        inner = [*map(self.nodes.__getitem__, filter(self.nodes.__contains__, lines))]
        return any(is_outside or read_by(node) & self._fed for node in inner)

    def _side(self, goal: Goal) -> range:
        node = self.nodes[goal.line]
        block = "body" if goal.value else "orelse"
        return _lines(getattr(node, block)) if isinstance(node, ast.If) else range(0)

    def _varies(self, test: ast.expr) -> bool:
        names = names_in(test)
        if inside(test, *_VARYING) or not all(self._arguments.get(name, True) for name in names):
            return True
        bound = map(bound_by, filterfalse(_is_constexpr, self.nodes.values()))
        return not names.isdisjoint(chain.from_iterable(bound))

    @cached_property
    def _fed(self) -> set[str]:
        found, before = set[str](), None
        while found != before:
            before = set(found)
            for node in self.nodes.values():
                if self.edited & {*head_of(node)} or read_by(node) & found:
                    found.update(bound_in(node))
        return found


def reach_of(
    source: KernelFile, names: Collection[str], kernels: Collection[str], edited: Collection[int]
) -> list[Reach]:
    """Callers among the kernels are to run too; `edited`: lines."""
    found = list[Reach]()
    for function in source.functions:
        if function.name in names:
            callers = {host.name for _, host in source.callers_of(function.name)} & {*kernels}
            found.append(Reach(function, tuple(sorted(callers)), frozenset(edited)))
    return found


def _is_constexpr(node: ast.AST) -> bool:
    annotation = getattr(node, "annotation", None)
    return annotation is not None and "constexpr" in ast.unparse(annotation)


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, lines_of(body[-1]).stop) if body else range(0)
