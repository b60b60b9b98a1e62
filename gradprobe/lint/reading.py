"""Reading: a kernel's pointers, followed through its statements and the functions that it calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..runtime.taps.functions import Function, blocks
from .expressions import Evaluator
from .values import Amount, Known, Parts, Pointer, Record, Value, held_by, joined, opaque

# How deep functions are followed that call functions.
_DEPTH = 6
Scope = dict[str, Value]


def read_kernel(function: Function, arguments: Mapping[str, Value]) -> Record:
    """What its pointers start from and are advanced by.

    Args:
        arguments: what each parameter is.
    """
    record = Record(function)
    names = {base: name for name, value in arguments.items() if isinstance(value, Pointer) for base in value.bases}
    _Frame(function, dict(arguments), record, names, _DEPTH, "").run()
    return record


@dataclass
class _Frame:
    """One function as it is followed."""

    function: Function
    scope: Scope
    record: Record
    names: Mapping[str, str]
    """What the kernel's pointers are called in it."""
    depth: int
    prefix: str
    """Before the names of its own variables; "" in the kernel itself."""
    returned: list[Value] = field(default_factory=list)

    def run(self) -> Value:
        """Follows the statements; what it returns."""
        self._block(self.function.tree.body)
        return joined(self.returned) if self.returned else Known(None)

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follows statements; whether they certainly end in a return."""
        return any(self._statement(statement) for statement in statements)

    def _statement(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Return):
            self.returned.append(self._value(statement.value) if statement.value is not None else Known(None))
            return True
        if isinstance(statement, ast.If):
            return self._branch(statement)
        if isinstance(statement, (ast.For, ast.While)):
            self._loop(statement)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._assign(target, self._value(statement.value), statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, self._value(statement.value), statement.value)
        elif isinstance(statement, ast.AugAssign):
            self._augment(statement)
        elif isinstance(statement, ast.Expr):
            self._value(statement.value)
        else:
            for block in blocks(statement):
                self._block(block)
        return False

    def _value(self, node: ast.expr) -> Value:
        return self._evaluator().visit(node)

    def _evaluator(self) -> Evaluator:
        return Evaluator(self.function, self.scope, self.record, self.names, self._inside)

    def _branch(self, statement: ast.If) -> bool:
        test = self._value(statement.test)
        if isinstance(test, Known):
            return self._block(statement.body if test.value else statement.orelse)
        before, ends, scopes = dict(self.scope), [], []
        for block in (statement.body, statement.orelse):
            self.scope.clear()
            self.scope.update(before)
            ends.append(self._block(block))
            scopes.append(dict(self.scope))
        left = [scope for scope, ended in zip(scopes, ends, strict=True) if not ended]
        self._become(left or scopes)
        return all(ends)

    def _loop(self, statement: ast.For | ast.While) -> None:
        """Its body twice: what one turn leaves to the next is seen in the second."""
        if isinstance(statement, ast.For):
            self._value(statement.iter)
        for _ in range(2):
            before = dict(self.scope)
            if isinstance(statement, ast.For):
                self._assign(statement.target, opaque(name="turn"), statement.iter)
            else:
                self._value(statement.test)
            self._block(statement.body)
            self._become([before, dict(self.scope)])

    def _become(self, scopes: Sequence[Scope]) -> None:
        names = dict.fromkeys(name for scope in scopes for name in scope)
        merged = {name: joined(scope.get(name) for scope in scopes) for name in names}
        self.scope.clear()
        self.scope.update(
            {
                name: opaque(name=self.prefix + name) if _disagree(name, scopes) else value
                for name, value in merged.items()
            }
        )

    def _assign(self, target: ast.expr, value: Value, source: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.scope[target.id] = held_by(
                value, self.prefix + target.id, self.function.line_of(target), is_alias=_is_alias(source)
            )
        elif isinstance(target, (ast.Tuple, ast.List)):
            whole = isinstance(value, Parts) and len(value.values) == len(target.elts)
            values = value.values if whole and isinstance(value, Parts) else [opaque(value)] * len(target.elts)
            sources = source.elts if isinstance(source, (ast.Tuple, ast.List)) else [source] * len(target.elts)
            for part, each, origin in zip(target.elts, values, sources, strict=False):
                self._assign(part, each, origin)

    def _augment(self, statement: ast.AugAssign) -> None:
        value = self._evaluator().augmented(statement)
        self._assign(statement.target, value, statement.value)

    def _inside(self, function: Function, given: Mapping[str, Value]) -> Value:
        """What a function returns, followed with what is passed to it."""
        if not self.depth:
            self.record.lose(*given.values())
            return opaque(*given.values())
        names = {base: name for name, value in given.items() if isinstance(value, Pointer) for base in value.bases}
        prefix = f"{self.prefix}{function.name}."
        return _Frame(function, dict(given), self.record, names, self.depth - 1, prefix).run()


def _is_alias(node: ast.expr) -> bool:
    """Whether an expression is a variable, turned or cast as may be."""
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to"
    ):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined]
    return isinstance(node, ast.Name)


def _disagree(name: str, scopes: Sequence[Scope]) -> bool:
    """Whether a constant is another one, or none, in some of the scopes."""
    values = [scope[name] for scope in scopes if name in scope]
    is_number = all(isinstance(value, (Known, Amount)) for value in values)
    return is_number and any(isinstance(value, Known) for value in values) and len(set(map(repr, values))) > 1


Inside = Callable[[Function, Mapping[str, Value]], Value]
