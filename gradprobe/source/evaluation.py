"""A Triton function followed without being run: each of its values is one that stands for many."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from .triton_source import Function, blocks, heads, is_own, read_once, targets_of

V = TypeVar("V")
# How many calls deep functions are followed.
DEPTH = 6


class Evaluator(ast.NodeVisitor, Generic[V]):
    """Follows statements, branches, loops and calls. A subclass says what values are and what operations give."""

    unknown: V
    """The value whose meaning is not known."""
    counter: V
    """What the variable of a `for` holds."""
    turns = 1
    """How often the body of a loop is followed. Where it is more than once, the turns are joined."""

    def __init__(self, function: Function, scope: Mapping[str, V], depth: int = DEPTH, prefix: str = "") -> None:
        """
        Args:
            scope: what parameters, or variables, hold.
            prefix: stands before the names of the function's variables where its callers may have the same names.
        """
        self.function, self.scope, self.depth, self.prefix = function, dict(scope), depth, prefix
        self._returned: list[V] = []

    def constant(self, value: Any) -> V:
        """The value of a constant."""
        raise NotImplementedError

    def assigned(self, variable: ast.Name, value: V, source: ast.AST) -> V:
        """What a variable holds after a value is assigned to it."""
        raise NotImplementedError

    def parts(self, value: V, count: int) -> Sequence[V]:
        """The values of a tuple that is unpacked into so many variables."""
        raise NotImplementedError

    def joined(self, name: str, values: Sequence[V]) -> V:
        """What a variable holds where several ways meet, of its values on those that assign it."""
        raise NotImplementedError

    def result(self, returned: Sequence[V]) -> V:
        """What a function gives, from the values at each of its returns."""
        raise NotImplementedError

    def builtin(self, name: str, node: ast.Call, receiver: ast.expr | None) -> V:
        """What a call of anything but the user's own Triton functions gives.

        Args:
            receiver: whose method it is; None for a function.
        """
        raise NotImplementedError

    def lost(self, values: Sequence[V]) -> V:
        """What a function gives that cannot be followed, from what it is passed."""
        return self.unknown

    def truth(self, test: ast.expr) -> bool | None:
        """Whether a condition holds; None where it may or may not."""
        return None

    def default(self, node: ast.expr | None) -> V:
        """What a parameter holds that is passed nothing."""
        return self.constant(node.value) if isinstance(node, ast.Constant) else self.unknown

    def inside(self, function: Function, scope: Mapping[str, V]) -> Evaluator[V]:
        """The evaluator of a function that is called."""
        return type(self)(function, scope, self.depth - 1, f"{self.prefix}{function.name}.")

    def run(self) -> V:
        """Follows the function to its end; what it returns."""
        self._block(self.function.tree.body)
        return self.result(self._returned)

    def arguments(self, function: Function, call: ast.Call) -> dict[str, V]:
        """What a call passes to a function, by parameter."""
        given = dict(zip(function.parameters, map(self.visit, call.args), strict=False))
        return given | {word.arg: self.visit(word.value) for word in call.keywords if word.arg}

    def visit(self, node: ast.AST) -> V:
        found: V = super().visit(node)
        return found

    def visit_Constant(self, node: ast.Constant) -> V:
        return self.constant(node.value)

    def visit_Call(self, node: ast.Call) -> V:
        called = self.function.called(node)
        if is_own(called):
            return self._called(called, node)
        is_method = isinstance(node.func, ast.Attribute) and called is None
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return self.builtin(name, node, node.func.value if is_method else None)  # type: ignore[attr-defined]

    def _called(self, jit: Any, node: ast.Call) -> V:
        try:
            function = read_once(jit)
        except (OSError, SyntaxError):
            return self.lost([self.visit(each) for each in (*node.args, *(word.value for word in node.keywords))])
        given = self.arguments(function, node)
        if not self.depth:
            return self.lost(list(given.values()))
        left = {name: self.default(function.defaults.get(name)) for name in function.parameters if name not in given}
        return self.inside(function, given | left).run()

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follows statements; whether no way leads behind them."""
        return any(self._statement(statement) for statement in statements)

    def _statement(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            return self._branch(statement)
        if blocks(statement):
            self._loop(statement)
        elif isinstance(statement, ast.Return):
            self._returned.append(self.visit(statement.value) if statement.value else self.constant(None))
            return True
        elif isinstance(statement, ast.Expr):
            self.visit(statement.value)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assignment(statement)
        return False

    def _assignment(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        value: ast.expr | None = statement.value
        if isinstance(statement, ast.AugAssign):
            before = ast.copy_location(ast.Name(getattr(statement.target, "id", ""), ast.Load()), statement.target)
            value = ast.copy_location(ast.BinOp(before, statement.op, statement.value), statement)
        for target in targets_of(statement):
            if value is not None and statement.value is not None:
                self._assign(target, self.visit(value), statement.value)

    def _assign(self, target: ast.AST, value: V, source: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.scope[target.id] = self.assigned(target, value, source)
        elif isinstance(target, (ast.Tuple, ast.List)):
            count = len(target.elts)
            sources = source.elts if isinstance(source, (ast.Tuple, ast.List)) else [source] * count
            for part, each, origin in zip(target.elts, self.parts(value, count), sources, strict=False):
                self._assign(part, each, origin)

    def _branch(self, statement: ast.If) -> bool:
        truth = self.truth(statement.test)
        if truth is not None:
            return self._block(statement.body if truth else statement.orelse)
        before, ways, ends = self.scope, [], []
        for block in (statement.body, statement.orelse):
            self.scope = dict(before)
            ends.append(self._block(block))
            ways.append(self.scope)
        self._join([way for way, is_end in zip(ways, ends, strict=True) if not is_end] or ways)
        return all(ends)

    def _loop(self, statement: ast.stmt) -> None:
        """A loop, or another statement that holds blocks."""
        is_loop = isinstance(statement, (ast.For, ast.While))
        if isinstance(statement, ast.For):
            self.visit(statement.iter)
        for _ in range(self.turns if is_loop else 1):
            before = dict(self.scope)
            for head in heads(statement):
                self._assign(head, self.counter if is_loop else self.unknown, getattr(statement, "iter", head))
            if isinstance(statement, ast.While):
                self.visit(statement.test)
            for block in blocks(statement):
                self._block(block)
            if is_loop and self.turns > 1:
                self._join([before, self.scope])

    def _join(self, ways: Sequence[Mapping[str, V]]) -> None:
        names = dict.fromkeys(name for way in ways for name in way)
        self.scope = {name: self.joined(name, [way[name] for way in ways if name in way]) for name in names}
