"""Expressions of a kernel, evaluated as far as addresses need it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..runtime.taps.functions import Function, is_jit, read_once
from .values import (
    NOTHING,
    Amount,
    Factor,
    Known,
    Parts,
    Pointer,
    Record,
    Term,
    Value,
    joined,
    multiplied,
    opaque,
    terms_of,
)

# Calls whose value is that of their first argument.
_SAME = {"broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs"}
_SAME |= {"advance", "multiple_of", "max_contiguous", "max_constancy"}
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
_SUMS = (ast.Add, ast.Sub)
_CONSTANT: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    ast.In: lambda a, b: a in b,
}


class Evaluator(ast.NodeVisitor):
    """The value of an expression in one function."""

    def __init__(
        self,
        function: Function,
        scope: Mapping[str, Value],
        record: Record,
        names: Mapping[str, str],
        inside: Callable[[Function, Mapping[str, Value]], Value],
    ) -> None:
        """
        Args:
            scope: what variables hold.
            names: what the kernel's pointers are called here.
            inside: follows a function that is called.
        """
        self.function, self.scope, self.record, self.names, self._inside = function, scope, record, names, inside

    def augmented(self, statement: ast.AugAssign) -> Value:
        """What `x += y` leaves in x."""
        target = statement.target
        before: Value = NOTHING
        if isinstance(target, ast.Name):
            before = self.visit(ast.copy_location(ast.Name(target.id, ast.Load()), target))
        return self._operation(before, self.visit(statement.value), statement.op, statement)

    def visit(self, node: ast.AST) -> Value:
        found: Value = super().visit(node)
        return found

    def generic_visit(self, node: ast.AST) -> Value:
        return opaque(*(self.visit(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)))

    def visit_Constant(self, node: ast.Constant) -> Value:
        return Known(node.value)

    def visit_Name(self, node: ast.Name) -> Value:
        value = self.scope.get(node.id)
        if value is None:
            return self._outside(self.function.first_scope.get(node.id))
        if isinstance(value, Amount) and any(term.factors for term in value.terms):
            return self._seen(value, node)
        return value

    def _seen(self, value: Amount, node: ast.Name) -> Amount:
        """Strides under this name: a parameter stands here too, and a variable is what holds them."""
        spot = self.function.line_of(node)
        terms = []
        for term in value.terms:
            factors = tuple(Factor(each.parameter, (*each.spots, spot)) for each in term.factors)
            is_alone = len(value.terms) == 1 and not term.index and term.via is None
            terms.append(replace(term, factors=factors) if is_alone else replace(term, via=spot))
        return Amount(tuple(terms))

    def _outside(self, found: Any) -> Value:
        found = getattr(found, "value", found) if type(found).__name__ == "constexpr" else found
        return Known(found) if isinstance(found, (int, float, str)) else NOTHING

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        value = self.visit(node.value)
        return value if node.attr in ("T", "value") else opaque(value)

    def visit_Tuple(self, node: ast.Tuple) -> Value:
        return Parts(tuple(self.visit(part) for part in node.elts))

    visit_List = visit_Tuple  # type: ignore[assignment]

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        value = self.visit(node.value)
        if isinstance(value, Parts):
            at = self.visit(node.slice)
            if (
                isinstance(at, Known)
                and isinstance(at.value, int)
                and -len(value.values) <= at.value < len(value.values)
            ):
                return value.values[at.value]
            return joined(value.values)
        return value

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        test = self.visit(node.test)
        if isinstance(test, Known):
            return self.visit(node.body if test.value else node.orelse)
        return joined([self.visit(node.body), self.visit(node.orelse)])

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        values = [self.visit(part) for part in node.values]
        known = [value.value for value in values if isinstance(value, Known)]
        decides = any(known) if isinstance(node.op, ast.Or) else not all(known)
        if decides or len(known) == len(values):
            return Known(decides if isinstance(node.op, ast.Or) else not decides)
        return opaque(*values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        if isinstance(value, Known) and isinstance(node.op, (ast.Not, ast.USub)):
            return Known(not value.value if isinstance(node.op, ast.Not) else -value.value)
        return value if isinstance(node.op, (ast.USub, ast.UAdd)) else opaque(value)

    def visit_Compare(self, node: ast.Compare) -> Value:
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        if len(node.ops) > 1:
            return opaque(left, right, *(self.visit(each) for each in node.comparators[1:]))
        if isinstance(left, Pointer) and isinstance(right, Known) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return Known(isinstance(node.ops[0], ast.IsNot))
        return _constant(left, right, node.ops[0]) or opaque(left, right)

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        return self._operation(self.visit(node.left), self.visit(node.right), node.op, node)

    def _operation(self, left: Value, right: Value, op: ast.operator, node: ast.AST) -> Value:
        if isinstance(left, Pointer) != isinstance(right, Pointer) and isinstance(op, _SUMS):
            pointer, other = (left, right) if isinstance(left, Pointer) else (right, left)
            assert isinstance(pointer, Pointer)
            return self._advanced(pointer, terms_of(other), node)
        if (known := _constant(left, right, op)) is not None:
            return known
        if isinstance(op, ast.Mult):
            return multiplied(left, right)
        return Amount((*terms_of(left), *terms_of(right))) if isinstance(op, _SUMS) else opaque(left, right)

    def _advanced(self, pointer: Pointer, terms: tuple[Term, ...], node: ast.AST) -> Pointer:
        spot = self.function.line_of(node)
        for term in terms:
            self.record.advance(pointer, term, spot, dict(self.names))
        return Pointer(pointer.bases, tuple(dict.fromkeys((*pointer.terms, *terms))))

    def visit_Call(self, node: ast.Call) -> Value:
        called = self.function.called(node, self.function.first_scope)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if is_jit(called) and not called.fn.__module__.startswith("triton."):
            return self._function(node, called)
        words = {word.arg: self.visit(word.value) for word in node.keywords if word.arg}
        values = [
            self.visit(argument.value if isinstance(argument, ast.Starred) else argument) for argument in node.args
        ]
        if isinstance(node.func, ast.Attribute) and called is None:
            values.insert(0, self.visit(node.func.value))
        return self._builtin(name, values, words, node)

    def _builtin(self, name: str, values: list[Value], words: Mapping[str, Value], node: ast.Call) -> Value:
        if name in ("load", "store") or name.startswith("atomic_"):
            first = values[0] if values else words.get("pointer", NOTHING)
            self.record.access(first, self.function, node)
            return opaque(*values[1:])
        if name in _DESCRIBING:
            return self._described(values, words, node)
        if name == "where" and len(values) == 3:
            return joined(values[1:])
        if name in _SAME and values:
            return values[0]
        if name == "static_assert" or name.startswith("device_"):
            return NOTHING
        self.record.lose(*values, *words.values())
        return opaque(*values, *words.values())

    def _described(self, values: list[Value], words: Mapping[str, Value], node: ast.Call) -> Value:
        """A block pointer: each of its strides times the offset along that axis."""
        given = dict(zip(("base", "shape", "strides", "offsets"), values, strict=False)) | dict(words)
        base, strides, offsets = (given.get(name, NOTHING) for name in ("base", "strides", "offsets"))
        if not isinstance(base, Pointer) or not isinstance(strides, Parts):
            self.record.lose(base)
            return base
        along = offsets.values if isinstance(offsets, Parts) and "block" in str(node.func.__dict__) else ()
        padded = (*along, *[NOTHING] * len(strides.values))
        terms = [term for step, at in zip(strides.values, padded, strict=False) for term in multiplied(at, step).terms]
        return self._advanced(base, tuple(terms), node)

    def _function(self, node: ast.Call, called: Any) -> Value:
        try:
            function = read_once(called)
        except (OSError, SyntaxError):
            values = [self.visit(argument) for argument in node.args]
            self.record.lose(*values)
            return opaque(*values)
        values = [self.visit(argument) for argument in node.args]
        given: dict[str, Value] = _defaults(function)
        given |= dict(zip(function.parameters, values, strict=False))
        given |= {word.arg: self.visit(word.value) for word in node.keywords if word.arg}
        return self._inside(function, {name: given.get(name, NOTHING) for name in function.parameters})


def _defaults(function: Function) -> dict[str, Value]:
    spec = function.tree.args
    names = [node.arg for node in (*spec.posonlyargs, *spec.args)]
    pairs = list(zip(reversed(names), reversed(spec.defaults), strict=False))
    return {name: Known(node.value) for name, node in pairs if isinstance(node, ast.Constant)}


def _constant(left: Value, right: Value, op: ast.AST) -> Known | None:
    """What an operation on constants gives; None where one is none, or it cannot be told."""
    if not isinstance(left, Known) or not isinstance(right, Known) or type(op) not in _CONSTANT:
        return None
    try:
        return Known(_CONSTANT[type(op)](left.value, right.value))
    except (TypeError, ArithmeticError):
        return None
