"""What the pointers of a kernel start from and are advanced by; of a Triton kernel, as its syntax tells it.

Only addresses matter here. A number is a sum of products of strides and of variables, and nothing of it is computed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..source.evaluation import DEPTH, Evaluator
from ..source.text import SourceLine
from ..source.triton_source import HINTS, Function

# Products of sums are multiplied out as far as this many terms.
_MOST = 24


@dataclass(frozen=True)
class StrideFactor:
    """A stride's parameter of the kernel, where it stands in a product."""

    parameter: str
    """"stride_qh", or "strides[1]" of a tuple."""
    spots: tuple[SourceLine, ...] = ()
    """From the kernel's own text inwards: where it is passed, and where it is multiplied."""


@dataclass(frozen=True)
class Term:
    """One product in a sum."""

    factors: tuple[StrideFactor, ...] = ()
    index: frozenset[str] = frozenset()
    """The variables that it is a product of besides, each by the name under which it was computed."""
    via: SourceLine | None = None
    """The variable that held it, where it was added to the pointer by that."""


@dataclass(frozen=True)
class Amount:
    """A number, or a block of numbers: a sum of products."""

    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class AddressValue:
    """An address that starts from one of some parameters."""

    bases: frozenset[str]


@dataclass(frozen=True)
class LaunchConstant:
    """A constant of this launch."""

    value: Any


Value = Amount | AddressValue | LaunchConstant | tuple["Value", ...]
NOTHING = Amount()


@dataclass(frozen=True)
class Advance:
    """One product that is added to a pointer."""

    base: str
    """The parameter that it starts from."""
    term: Term
    spot: SourceLine
    """Of the whole pointer expression."""
    local: str
    """What the pointer is called in the function where that stands."""


@dataclass
class Record:
    """What the pointers of a kernel do."""

    advances: dict[Advance, None] = field(default_factory=dict)
    accesses: dict[str, SourceLine] = field(default_factory=dict)
    """The first load or store of each pointer, by the parameter that it starts from."""
    expressions: set[SourceLine] = field(default_factory=set)
    """Every pointer expression that was read."""
    lost: set[str] = field(default_factory=set)
    """The parameters of pointers that could not be followed everywhere."""
    functions: dict[str, Sequence[str]] = field(default_factory=dict)
    """The parameters of the kernel and of what it calls."""


def opaque(*values: Value, name: str = "") -> Amount:
    """A number of which no more is known than what it was computed from; under a name, that alone."""
    return Amount((Term(index=frozenset({name}) if name else _names_in(values)),))


def stride_value(parameter: str) -> Amount:
    """A parameter that is a stride."""
    return Amount((Term((StrideFactor(parameter),)),))


def read_kernel(function: Function, arguments: Mapping[str, Value]) -> Record:
    """What its pointers start from and are advanced by.

    Args:
        arguments: what each parameter is.
    """
    record = Record()
    _Pointers(function, arguments, record).run()
    return record


# Calls whose value is that of their first argument.
_SAME = {"broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs"}
_SAME |= {"advance", *HINTS}
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
# What expressions may be made of that are computed where all their names are constants of the launch.
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp)
_PARTS = (*_COMPUTED, ast.Name, ast.Constant, ast.Tuple, ast.List)


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
        record.functions[function.name] = function.parameters
        pointers = ((name, value) for name, value in scope.items() if isinstance(value, AddressValue))
        # What the kernel's pointers are called here.
        self._names = {base: name for name, value in pointers for base in value.bases}

    def inside(self, function: Function, scope: Mapping[str, Value]) -> _Pointers:
        return _Pointers(function, scope, self._record, self.depth - 1, f"{self.prefix}{function.name}.")

    def constant(self, value: Any) -> Value:
        return LaunchConstant(value)

    def truth(self, test: ast.expr) -> bool | None:
        value = self.visit(test)
        return bool(value.value) if isinstance(value, LaunchConstant) else None

    def assigned(self, variable: ast.Name, value: Value, source: ast.AST) -> Value:
        """A computed number without a stride goes by the variable's name; a variable under another name does not."""
        while isinstance(source, ast.Subscript) or (isinstance(source, ast.Call) and _is_cast(source.func)):
            source = source.value if isinstance(source, ast.Subscript) else source.func.value  # type: ignore[attr-defined]
        if isinstance(source, ast.Name) or not isinstance(value, Amount):
            return value
        if not any(term.factors for term in value.terms):
            return opaque(name=self.prefix + variable.id)
        spot = self.function.line_of(variable)
        return Amount(tuple(replace(term, via=spot) if term.factors else term for term in value.terms))

    def parts(self, value: Value, count: int) -> Sequence[Value]:
        return value if isinstance(value, tuple) and len(value) == count else [opaque(value)] * count

    def joined(self, name: str, values: Sequence[Value]) -> Value:
        is_number = all(isinstance(value, (LaunchConstant, Amount)) for value in values)
        if is_number and any(isinstance(value, LaunchConstant) for value in values) and len(set(map(repr, values))) > 1:
            return opaque(name=self.prefix + name)  # a constant that is another one, or none, on some of the ways
        return _either(values)

    def result(self, returned: Sequence[Value]) -> Value:
        return _either(returned) if returned else LaunchConstant(None)

    def lost(self, values: Sequence[Value]) -> Value:
        self._lose(values)
        return opaque(*values)

    def _lose(self, values: Iterable[Value]) -> None:
        """Notes that pointers went where they are not followed."""
        for value in values:
            if isinstance(value, AddressValue):
                self._record.lost |= value.bases
            elif isinstance(value, tuple):
                self._lose(value)

    def visit(self, node: ast.AST) -> Value:
        known = self._computed(node) if isinstance(node, _COMPUTED) else None
        return super().visit(node) if known is None else known

    def _computed(self, node: ast.expr) -> LaunchConstant | None:
        """What an expression gives that is made of constants; of an address, whether it is None."""
        nodes = list(ast.walk(node))
        held = {each.id: self.visit_Name(each) for each in nodes if isinstance(each, ast.Name)}
        known = {name: value.value for name, value in held.items() if isinstance(value, LaunchConstant)}
        known |= {name: value for name, value in held.items() if isinstance(value, AddressValue)}
        if len(known) < len(held) or any(isinstance(each, ast.expr) and not isinstance(each, _PARTS) for each in nodes):
            return None
        try:
            found = eval(compile(ast.Expression(node), self.function.file, "eval"), {"__builtins__": {}}, known)
        except (TypeError, ValueError, ArithmeticError):
            return None
        return None if isinstance(found, AddressValue) else LaunchConstant(found)

    def generic_visit(self, node: ast.AST) -> Value:
        return opaque(*(self.visit(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)))

    def visit_Name(self, node: ast.Name) -> Value:
        value = self.scope.get(node.id)
        if value is None:
            found = self.function.scope.get(node.id)
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
        return tuple(self.visit(part) for part in node.elts)

    visit_List = visit_Tuple  # type: ignore[assignment]

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        value = self.visit(node.value)
        if not isinstance(value, tuple):
            return value
        at = self.visit(node.slice)
        number = at.value if isinstance(at, LaunchConstant) and isinstance(at.value, int) else len(value)
        return value[number] if -len(value) <= number < len(value) else _either(value)

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        truth = self.truth(node.test)
        if truth is not None:
            return self.visit(node.body if truth else node.orelse)
        return _either([self.visit(node.body), self.visit(node.orelse)])

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        values, is_or = [self.visit(part) for part in node.values], isinstance(node.op, ast.Or)
        known = [bool(value.value) for value in values if isinstance(value, LaunchConstant)]
        if is_or in known:
            return LaunchConstant(is_or)
        return LaunchConstant(not is_or) if len(known) == len(values) else opaque(*values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        return value if isinstance(node.op, (ast.USub, ast.UAdd)) else opaque(value)

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        left, right, is_sum = self.visit(node.left), self.visit(node.right), isinstance(node.op, (ast.Add, ast.Sub))
        if isinstance(left, AddressValue) and is_sum and not isinstance(right, AddressValue):
            return self._advanced(left, _terms_of(right), node)
        if isinstance(right, AddressValue) and is_sum and not isinstance(left, AddressValue):
            return self._advanced(right, _terms_of(left), node)
        if isinstance(node.op, ast.Mult):
            return _product(left, right)
        return Amount((*_terms_of(left), *_terms_of(right))) if is_sum else opaque(left, right)

    def _advanced(self, pointer: AddressValue, terms: Iterable[Term], node: ast.AST) -> Value:
        """The pointer behind a sum. Which of several it is, a branch decides that is not known."""
        spot, bases = self.function.line_of(node), pointer.bases
        for term in terms:
            self._record.expressions.add(spot)
            if len(bases) > 1:
                self._record.lost |= bases
                continue
            for base in bases:
                self._record.advances[Advance(base, term, spot, self._names.get(base, base))] = None
        return pointer

    def builtin(self, name: str, node: ast.Call, receiver: ast.expr | None) -> Value:
        words = {word.arg: self.visit(word.value) for word in node.keywords if word.arg}
        arguments = [each.value if isinstance(each, ast.Starred) else each for each in node.args]
        values = [self.visit(each) for each in ([receiver, *arguments] if receiver is not None else arguments)]
        if name in ("load", "store") or name.startswith("atomic_"):
            self._access(values[0] if values else words.get("pointer", NOTHING), node)
            return opaque(*values[1:])
        if name in _DESCRIBING:
            return self._described(values, words, node)
        if name == "where" and len(values) == 3:
            return _either(values[1:])
        if name in _SAME and values:
            return values[0]
        if name == "static_assert" or name.startswith("device_"):
            return NOTHING
        return self.lost([*values, *words.values()])

    def _access(self, pointer: Value, node: ast.AST) -> None:
        """Notes a load or a store."""
        if isinstance(pointer, AddressValue):
            spot = self.function.line_of(node)
            self._record.expressions.add(spot)
            for base in pointer.bases:
                self._record.accesses.setdefault(base, spot)

    def _described(self, values: list[Value], words: Mapping[str, Value], node: ast.Call) -> Value:
        """A block pointer: each of its strides times the offset along that axis."""
        given = dict(zip(("base", "shape", "strides", "offsets"), values, strict=False)) | dict(words)
        base, strides, offsets = (given.get(name, NOTHING) for name in ("base", "strides", "offsets"))
        if not isinstance(base, AddressValue) or not isinstance(strides, tuple):
            self._lose([base])
            return base
        along = offsets if isinstance(offsets, tuple) and "block" in str(node.func.__dict__) else ()
        pairs = zip(strides, (*along, *[NOTHING] * len(strides)), strict=False)
        return self._advanced(base, (term for step, at in pairs for term in _product(at, step).terms), node)


def _is_cast(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr == "to"


def _terms_of(value: Value) -> tuple[Term, ...]:
    """The products that a value adds to a pointer."""
    if isinstance(value, Amount):
        return value.terms
    return () if isinstance(value, LaunchConstant) else (Term(index=_names_in([value])),)


def _product(left: Value, right: Value) -> Amount:
    if LaunchConstant(0) in (left, right):
        return NOTHING
    first, second = (_terms_of(value) or (Term(),) for value in (left, right))
    if len(first) * len(second) > _MOST:
        return opaque(left, right)
    return Amount(tuple(Term(a.factors + b.factors, a.index | b.index, a.via or b.via) for a in first for b in second))


def _either(values: Iterable[Value]) -> Value:
    """What a variable may be behind several branches."""
    found = list(dict.fromkeys(values))
    if len(found) == 1:
        return found[0]
    bases = [value.bases for value in found if isinstance(value, AddressValue)]
    if bases:
        return AddressValue(frozenset().union(*bases))
    tuples = [value for value in found if isinstance(value, tuple)]
    if tuples and len(tuples) == len(found) and len(set(map(len, tuples))) == 1:
        return tuple(map(_either, zip(*tuples, strict=True)))
    # Of several sums with strides in them nobody knows here which one goes with which pointer.
    return opaque(*found)


def _names_in(values: Iterable[Value]) -> frozenset[str]:
    """The pointers, strides and variables that values are made of."""
    found = set[str]()
    for value in values:
        if isinstance(value, tuple):
            found |= _names_in(value)
        elif isinstance(value, AddressValue):
            found |= value.bases
        elif isinstance(value, Amount):
            for term in value.terms:
                found.update(term.index, (factor.parameter for factor in term.factors))
    return frozenset(found)
