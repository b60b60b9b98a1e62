"""What the pointers of a Triton kernel start from and are advanced by, as its syntax tells it.

Only addresses matter here. A number is a sum of products of strides and of variables, and nothing of it is computed.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .text import SourceLine
from .triton_source import HINTS, Function, bound_in, is_own, read_once, targets_of

# How many calls deep functions are followed.
_DEPTH = 6
# Products of sums are multiplied out as far as this many terms.
_MOST = 24
# Calls whose value is that of their first argument.
_SAME = {"broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs"}
_SAME |= {"advance", *HINTS}
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
_UNKNOWN = object()


@dataclass(frozen=True)
class Term:
    """One product in a sum: of a stride, or of none, and of variables."""

    stride: str = ""
    """The kernel's parameter."""
    trail: tuple[SourceLine, ...] = ()
    """Every name under which the stride was read: first the parameter, then what it was passed as, or what held it."""
    index: frozenset[str] = frozenset()
    """The variables, each by the name under which it was computed."""
    base: str = ""
    """The parameter of the pointer that is advanced by it."""
    spot: SourceLine | None = None
    """Of the whole pointer expression."""


@dataclass(frozen=True)
class Quantity:
    """A number, a block of numbers, or a pointer."""

    terms: tuple[Term, ...] = ()
    """Of a number: the products whose sum it is."""
    bases: frozenset[str] = frozenset()
    """Of a pointer: the parameters of which it starts from one."""
    constant: Any = _UNKNOWN
    """What branches may depend on; of a tensor, that it is there."""

    @property
    def has_stride(self) -> bool:
        return any(term.stride for term in self.terms)

    @property
    def is_variable(self) -> bool:
        return len(self.terms) == 1 and len(self.terms[0].index) == 1


_NOTHING = Quantity()


def pointer(parameter: str) -> Quantity:
    """A parameter that is a pointer."""
    return Quantity(bases=frozenset({parameter}), constant=object())


def stride(parameter: str) -> Quantity:
    """A parameter that is a stride."""
    return Quantity((Term(parameter),))


def variable(name: str, constant: Any = _UNKNOWN) -> Quantity:
    """A number of which no more is known than its name, and perhaps its value."""
    return Quantity((Term(index=frozenset({name})),), constant=constant)


@dataclass(frozen=True)
class PointerAccess:
    """A load, a store or an atomic."""

    base: str
    """The parameter that its pointer starts from."""
    operation: str
    """The function's name: "atomic_add"."""
    spot: SourceLine


@dataclass
class Record:
    """What the pointers of a kernel do."""

    advances: dict[Term, None] = field(default_factory=dict)
    accesses: dict[PointerAccess, None] = field(default_factory=dict)
    expressions: set[SourceLine] = field(default_factory=set)
    """Every pointer expression that was read."""
    lost: set[str] = field(default_factory=set)
    """The parameters of pointers that could not be followed everywhere."""


def read_kernel(function: Function, arguments: dict[str, Quantity]) -> Record:
    """What the pointers of a kernel do where its parameters are these."""
    record = Record()
    _PointerReader(function, arguments, record).follow()
    return record


@dataclass
class _PointerReader:
    """One function of a kernel, followed from its first statement. What pointers do is noted in the record."""

    function: Function
    scope: dict[str, Quantity]
    """What its parameters are, and then its variables."""
    record: Record
    depth: int = _DEPTH
    prefix: str = ""
    """Stands before the names of variables where the callers may have the same names."""
    returned: list[Quantity] = field(default_factory=list)

    def follow(self) -> Quantity:
        """What the function returns."""
        self._block(self.function.tree.body)
        return _either(self.returned)

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follows statements; whether no way leads behind them."""
        return any(self._statement(statement) for statement in statements)

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.If():
                return self._branch(node)
            case ast.For() | ast.While():
                self._loop(node)
            case ast.With():
                return self._block(node.body)
            case ast.Return():
                self.returned.append(self._value(node.value))
                return True
            case ast.AugAssign(target=ast.Name(id=name)):
                before = self.scope.get(name, _NOTHING)
                self._assign(node.target, self._operation(before, node.op, self._value(node.value), node))
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in targets_of(node):
                    self._assign_from(target, value)
            case ast.Expr():
                self._value(node.value)
        return False

    def _branch(self, node: ast.If) -> bool:
        truth = self._constant(node.test)
        if truth is not _UNKNOWN:
            return self._block(node.body if truth else node.orelse)
        before, after, ended = self.scope, list[dict[str, Quantity]](), list[dict[str, Quantity]]()
        for block in (node.body, node.orelse):
            self.scope = dict(before)
            is_end = self._block(block)
            (ended if is_end else after).append(self.scope)
        ways = after or ended
        names = dict.fromkeys(name for way in ways for name in way)
        self.scope = {name: _either([way[name] for way in ways if name in way]) for name in names}
        return not after

    def _loop(self, node: ast.For | ast.While) -> None:
        self._value(node.iter if isinstance(node, ast.For) else node.test)
        for _ in range(2):  # what one turn leaves to the next is seen in the second
            for name in bound_in([node]):
                self.scope[name] = replace(self.scope.get(name, _NOTHING), constant=_UNKNOWN)
            if isinstance(node, ast.For):
                self._assign(node.target, variable("turn"))
            self._block(node.body)

    def _assign_from(self, target: ast.expr, source: ast.expr) -> None:
        """Assigns what an expression is; of a tuple each part by itself."""
        parts = source.elts if isinstance(source, ast.Tuple) else []
        if isinstance(target, ast.Tuple) and len(target.elts) == len(parts):
            values = [self._passed(part) for part in parts]
            for element, value in zip(target.elts, values, strict=True):
                self._assign(element, value)
        else:
            self._assign(target, self._passed(source))

    def _assign(self, target: ast.expr, value: Quantity) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._assign(element, self._lost([value]))
        elif isinstance(target, ast.Name):
            # A computed number without a stride goes by the variable's name; a variable under another name does not.
            is_kept = value.bases or value.has_stride or value.is_variable
            self.scope[target.id] = value if is_kept else variable(self.prefix + target.id, value.constant)

    def _constant(self, node: ast.expr) -> Any:
        """What an expression is that is made of constants alone; _UNKNOWN of any other."""
        values = {each.id: self._constant_named(each.id) for each in ast.walk(node) if isinstance(each, ast.Name)}
        if not any(value is _UNKNOWN for value in values.values()):
            with contextlib.suppress(Exception):
                code = compile(ast.Expression(node), self.function.file, "eval")
                return eval(code, {"__builtins__": {}}, values)
        return _UNKNOWN

    def _constant_named(self, name: str) -> Any:
        """The value of a variable, or of a constant of the module."""
        if name in self.function.variables:
            return self.scope.get(name, _NOTHING).constant
        value = self.function.scope.get(name)
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        return value if isinstance(value, (int, float, str)) else _UNKNOWN

    def _passed(self, node: ast.expr) -> Quantity:
        """What an expression is, with its value where that is known."""
        return replace(self._value(node), constant=self._constant(node))

    def _value(self, node: ast.expr | None) -> Quantity:
        match node:
            case ast.Name():
                return self._named(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp():
                return self._operation(self._value(node.left), node.op, self._value(node.right), node)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner) | ast.Subscript(value=inner):
                return self._value(inner)
            case ast.Starred(value=inner) | ast.Attribute(attr="T" | "value", value=inner):
                return self._value(inner)
            case ast.IfExp():
                truth = self._constant(node.test)
                ways = [node.body, node.orelse] if truth is _UNKNOWN else [node.body if truth else node.orelse]
                return _either([self._value(way) for way in ways])
        parts = ast.iter_child_nodes(node) if node is not None else ()
        values = [self._value(each) for each in parts if isinstance(each, ast.expr)]
        return self._lost(values) if isinstance(node, ast.Tuple) else _opaque(values)

    def _named(self, node: ast.Name) -> Quantity:
        value = self.scope.get(node.id, _NOTHING)
        if not value.has_stride:
            return value
        spot = self.function.line_of(node)
        terms = (replace(term, trail=(*term.trail, spot)) if term.stride else term for term in value.terms)
        return Quantity(tuple(terms))

    def _operation(self, left: Quantity, operator: ast.operator, right: Quantity, node: ast.AST) -> Quantity:
        is_sum = isinstance(operator, (ast.Add, ast.Sub))
        address, offset = (right, left) if right.bases else (left, right)
        if is_sum and address.bases and not offset.bases:
            return self._advanced(address, offset.terms, node)
        if address.bases:
            return self._lost([left, right])
        if isinstance(operator, ast.Mult):
            return _product(left, right)
        return Quantity((*left.terms, *right.terms)) if is_sum else _opaque([left, right])

    def _advanced(self, address: Quantity, terms: Iterable[Term], node: ast.AST) -> Quantity:
        """The pointer behind a sum. Which of several it is, a branch decides that is not known."""
        spot = self.function.line_of(node)
        self.record.expressions.add(spot)
        if len(address.bases) > 1:
            self.record.lost |= address.bases
        else:
            advances = (replace(term, base=base, spot=spot) for base in address.bases for term in terms)
            self.record.advances |= dict.fromkeys(advances)
        return Quantity(bases=address.bases)

    def _lost(self, values: Sequence[Quantity]) -> Quantity:
        """What is made of values by what is not followed. Pointers among them went astray."""
        for value in values:
            self.record.lost |= value.bases
        return _opaque(values)

    def _call(self, node: ast.Call) -> Quantity:
        called, given = self.function.called(node), node.args
        words = {word.arg: word.value for word in node.keywords if word.arg}
        if is_own(called):
            return self._followed(called, given, words)
        if isinstance(node.func, ast.Attribute) and called is None:  # a method
            given = [node.func.value, *given]
        name = str(getattr(node.func, "attr", getattr(node.func, "id", "")))
        if name in _DESCRIBING:
            return self._described(dict(zip(("base", "shape", "strides"), given, strict=False)) | words, node)
        values = [self._value(each) for each in (*given, *words.values())]
        if name in ("load", "store") or name.startswith("atomic_"):
            self._access(name, values[:1], node)
            return _opaque(values[1:])
        if name == "where" and len(values) == 3:
            return _either(values[1:])
        return values[0] if name in _SAME and values else self._lost(values)

    def _followed(self, jit: Any, given: Sequence[ast.expr], words: dict[str, ast.expr]) -> Quantity:
        """What a call of the user's own Triton function gives."""
        function = None
        with contextlib.suppress(OSError, SyntaxError):
            function = read_once(jit) if self.depth else None
        if function is None:
            return self._lost([self._value(each) for each in (*given, *words.values())])
        passed = function.defaults | dict(zip(function.parameters, given, strict=False)) | words
        scope, prefix = {name: self._passed(each) for name, each in passed.items()}, f"{self.prefix}{function.name}."
        return _PointerReader(function, scope, self.record, self.depth - 1, prefix).follow()

    def _access(self, operation: str, values: Sequence[Quantity], node: ast.AST) -> None:
        spot = self.function.line_of(node)
        for base in (base for value in values for base in value.bases):
            self.record.expressions.add(spot)
            self.record.accesses[PointerAccess(base, operation, spot)] = None

    def _described(self, given: dict[str, ast.expr], node: ast.AST) -> Quantity:
        """A block pointer, or a descriptor: it is advanced by all its strides."""
        base, strides = self._value(given.get("base")), given.get("strides")
        if not base.bases or not isinstance(strides, (ast.Tuple, ast.List)):
            return self._lost([base])
        return self._advanced(base, [term for each in strides.elts for term in self._value(each).terms], node)


def _product(left: Quantity, right: Quantity) -> Quantity:
    first, second = (number.terms or (Term(),) for number in (left, right))
    if len(first) * len(second) > _MOST or (left.has_stride and right.has_stride):
        return _opaque([left, right])
    pairs = ((a, b) for a in first for b in second)
    return Quantity(tuple(Term(a.stride or b.stride, a.trail or b.trail, a.index | b.index) for a, b in pairs))


def _either(values: Sequence[Quantity]) -> Quantity:
    """What a variable may be behind several branches."""
    found = list(dict.fromkeys(values))
    if len(found) > 1:  # where they differ in their constants alone
        found = list(dict.fromkeys(replace(value, constant=_UNKNOWN) for value in found))
    bases = frozenset[str]().union(*(value.bases for value in found))
    if bases and len(found) > 1:
        return Quantity(bases=bases)
    # Of several sums with strides in them nobody knows here which one goes with which pointer.
    return found[0] if len(found) == 1 else _opaque(found)


def _opaque(values: Iterable[Quantity]) -> Quantity:
    """A number of which no more is known than the variables that it was computed from, as a new one."""
    found = set[str]()
    for term in (term for value in values for term in value.terms):
        found |= {*term.index, *filter(None, [term.stride])}
    return Quantity((Term(index=frozenset({*found, "of"})),) if found else ())
