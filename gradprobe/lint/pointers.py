"""The pointers of a Triton kernel, followed as far as its addresses need it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..source.evaluation import DEPTH, Evaluator
from ..source.triton_source import HINTS, Function
from .values import (
    NOTHING,
    AddressValue,
    Amount,
    LaunchConstant,
    Parts,
    Record,
    StrideFactor,
    Term,
    Value,
    held_by,
    joined,
    multiplied,
    opaque,
    terms_of,
)

# Calls whose value is that of their first argument.
_SAME = {"broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs"}
_SAME |= {"advance", *HINTS}
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
_SUMS = (ast.Add, ast.Sub)
_CONSTANT: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    ast.In: lambda a, b: a in b,
}


def read_kernel(function: Function, arguments: Mapping[str, Value]) -> Record:
    """What its pointers start from and are advanced by.

    Args:
        arguments: what each parameter is.
    """
    record = Record(function)
    _Pointers(function, arguments, record).run()
    return record


class _Pointers(Evaluator[Value]):
    """One function of a kernel. What its pointers do is noted in the kernel's record."""

    unknown = NOTHING
    counter = opaque(name="turn")
    turns = 2  # what one turn leaves to the next is seen in the second

    def __init__(
        self, function: Function, scope: Mapping[str, Value], record: Record, depth: int = DEPTH, prefix: str = ""
    ) -> None:
        super().__init__(function, scope, depth, prefix)
        self._record = record
        pointers = ((name, value) for name, value in scope.items() if isinstance(value, AddressValue))
        # What the kernel's pointers are called here.
        self._names = {base: name for name, value in pointers for base in value.bases}

    def inside(self, function: Function, scope: Mapping[str, Value]) -> _Pointers:
        return _Pointers(function, scope, self._record, self.depth - 1, f"{self.prefix}{function.name}.")

    def constant(self, value: Any) -> Value:
        return LaunchConstant(value)

    def default(self, node: ast.expr | None) -> Value:
        return LaunchConstant(node.value) if isinstance(node, ast.Constant) else NOTHING

    def truth(self, test: ast.expr) -> bool | None:
        value = self.visit(test)
        return bool(value.value) if isinstance(value, LaunchConstant) else None

    def assigned(self, variable: ast.Name, value: Value, source: ast.AST) -> Value:
        """A computed number without a stride goes by the variable's name; a variable under another name does not."""
        while isinstance(source, ast.Subscript) or (isinstance(source, ast.Call) and _is_cast(source.func)):
            source = source.value if isinstance(source, ast.Subscript) else source.func.value  # type: ignore[attr-defined]
        if isinstance(source, ast.Name):
            return value
        return held_by(value, self.prefix + variable.id, self.function.line_of(variable))

    def parts(self, value: Value, count: int) -> Sequence[Value]:
        return value.values if isinstance(value, Parts) and len(value.values) == count else [opaque(value)] * count

    def joined(self, name: str, values: Sequence[Value]) -> Value:
        is_number = all(isinstance(value, (LaunchConstant, Amount)) for value in values)
        if is_number and any(isinstance(value, LaunchConstant) for value in values) and len(set(map(repr, values))) > 1:
            return opaque(name=self.prefix + name)  # a constant that is another one, or none, on some of the ways
        return joined(values)

    def result(self, returned: Sequence[Value]) -> Value:
        return joined(returned) if returned else LaunchConstant(None)

    def lost(self, values: Sequence[Value]) -> Value:
        self._record.lose(*values)
        return opaque(*values)

    def generic_visit(self, node: ast.AST) -> Value:
        return opaque(*(self.visit(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)))

    def visit_Name(self, node: ast.Name) -> Value:
        value = self.scope.get(node.id)
        if value is None:
            found = self.function.first_scope.get(node.id)
            found = getattr(found, "value", found) if type(found).__name__ == "constexpr" else found
            return LaunchConstant(found) if isinstance(found, (int, float, str)) else NOTHING
        if isinstance(value, Amount) and any(term.factors for term in value.terms):
            return self._renamed_strides(value, node)
        return value

    def _renamed_strides(self, value: Amount, node: ast.Name) -> Amount:
        """Strides under this name: a parameter stands here too, and a variable is what holds them."""
        spot = self.function.line_of(node)
        terms = []
        for term in value.terms:
            factors = tuple(StrideFactor(each.parameter, (*each.spots, spot)) for each in term.factors)
            is_alone = len(value.terms) == 1 and not term.index and term.via is None
            terms.append(replace(term, factors=factors) if is_alone else replace(term, via=spot))
        return Amount(tuple(terms))

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        value = self.visit(node.value)
        return value if node.attr in ("T", "value") else opaque(value)

    def visit_Tuple(self, node: ast.Tuple) -> Value:
        return Parts(tuple(self.visit(part) for part in node.elts))

    visit_List = visit_Tuple  # type: ignore[assignment]

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        value = self.visit(node.value)
        if not isinstance(value, Parts):
            return value
        at, count = self.visit(node.slice), len(value.values)
        is_known = isinstance(at, LaunchConstant) and isinstance(at.value, int) and -count <= at.value < count
        return value.values[at.value] if is_known else joined(value.values)  # type: ignore[union-attr]

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        truth = self.truth(node.test)
        if truth is not None:
            return self.visit(node.body if truth else node.orelse)
        return joined([self.visit(node.body), self.visit(node.orelse)])

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        values = [self.visit(part) for part in node.values]
        known = [value.value for value in values if isinstance(value, LaunchConstant)]
        decides = any(known) if isinstance(node.op, ast.Or) else not all(known)
        if decides or len(known) == len(values):
            return LaunchConstant(decides if isinstance(node.op, ast.Or) else not decides)
        return opaque(*values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        if isinstance(value, LaunchConstant) and isinstance(node.op, (ast.Not, ast.USub)):
            return LaunchConstant(not value.value if isinstance(node.op, ast.Not) else -value.value)
        return value if isinstance(node.op, (ast.USub, ast.UAdd)) else opaque(value)

    def visit_Compare(self, node: ast.Compare) -> Value:
        values, op = [self.visit(each) for each in (node.left, *node.comparators)], node.ops[0]
        if len(node.ops) > 1:
            return opaque(*values)
        if (
            isinstance(values[0], AddressValue)
            and isinstance(values[1], LaunchConstant)
            and isinstance(op, (ast.Is, ast.IsNot))
        ):
            return LaunchConstant(isinstance(op, ast.IsNot))
        return _constant(values[0], values[1], op) or opaque(*values)

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        left, right, op = self.visit(node.left), self.visit(node.right), node.op
        if isinstance(left, AddressValue) != isinstance(right, AddressValue) and isinstance(op, _SUMS):
            pointer, other = (left, right) if isinstance(left, AddressValue) else (right, left)
            return self._advanced(pointer, terms_of(other), node)
        if (known := _constant(left, right, op)) is not None:
            return known
        if isinstance(op, ast.Mult):
            return multiplied(left, right)
        return Amount((*terms_of(left), *terms_of(right))) if isinstance(op, _SUMS) else opaque(left, right)

    def _advanced(self, pointer: Value, terms: tuple[Term, ...], node: ast.AST) -> AddressValue:
        assert isinstance(pointer, AddressValue)
        spot = self.function.line_of(node)
        for term in terms:
            self._record.advance(pointer, term, spot, self._names)
        return AddressValue(pointer.bases, tuple(dict.fromkeys((*pointer.terms, *terms))))

    def builtin(self, name: str, node: ast.Call, receiver: ast.expr | None) -> Value:
        words = {word.arg: self.visit(word.value) for word in node.keywords if word.arg}
        arguments = [each.value if isinstance(each, ast.Starred) else each for each in node.args]
        values = [self.visit(each) for each in ([receiver, *arguments] if receiver is not None else arguments)]
        if name in ("load", "store") or name.startswith("atomic_"):
            self._record.access(values[0] if values else words.get("pointer", NOTHING), self.function, node)
            return opaque(*values[1:])
        if name in _DESCRIBING:
            return self._described(values, words, node)
        if name == "where" and len(values) == 3:
            return joined(values[1:])
        if name in _SAME and values:
            return values[0]
        if name == "static_assert" or name.startswith("device_"):
            return NOTHING
        return self.lost([*values, *words.values()])

    def _described(self, values: list[Value], words: Mapping[str, Value], node: ast.Call) -> Value:
        """A block pointer: each of its strides times the offset along that axis."""
        given = dict(zip(("base", "shape", "strides", "offsets"), values, strict=False)) | dict(words)
        base, strides, offsets = (given.get(name, NOTHING) for name in ("base", "strides", "offsets"))
        if not isinstance(base, AddressValue) or not isinstance(strides, Parts):
            self._record.lose(base)
            return base
        along = offsets.values if isinstance(offsets, Parts) and "block" in str(node.func.__dict__) else ()
        padded = (*along, *[NOTHING] * len(strides.values))
        terms = [term for step, at in zip(strides.values, padded, strict=False) for term in multiplied(at, step).terms]
        return self._advanced(base, tuple(terms), node)


def _is_cast(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr == "to"


def _constant(left: Value, right: Value, op: ast.AST) -> LaunchConstant | None:
    """What an operation on constants gives; None where one is none, or it cannot be told."""
    if not isinstance(left, LaunchConstant) or not isinstance(right, LaunchConstant) or type(op) not in _CONSTANT:
        return None
    try:
        return LaunchConstant(_CONSTANT[type(op)](left.value, right.value))
    except (TypeError, ArithmeticError):
        return None
