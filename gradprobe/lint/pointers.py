"""What the pointers of a Triton kernel start from and are advanced by, as its syntax tells it.

Only addresses matter here. A number is a sum of products of strides and of variables, and nothing of it is computed.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..source.text import SourceLine
from ..source.triton_source import HINTS, Function, bound_in, is_own, read_once, targets_of

# How many calls deep functions are followed.
_DEPTH = 6
# Products of sums are multiplied out as far as this many terms.
_MOST = 24


@dataclass(frozen=True)
class Term:
    """One product in a sum: of a stride, or of none, and of variables."""

    stride: str = ""
    """The kernel's parameter: "stride_qh", or "strides[1]" of a tuple."""
    trail: tuple[SourceLine, ...] = ()
    """Every name under which the stride was read: first the parameter, then what it was passed as, or what held it."""
    index: frozenset[str] = frozenset()
    """The variables, each by the name under which it was computed."""


@dataclass(frozen=True)
class ProductSum:
    """A number, or a block of numbers: a sum of products."""

    terms: tuple[Term, ...] = ()

    @property
    def has_stride(self) -> bool:
        return any(term.stride for term in self.terms)


@dataclass(frozen=True)
class Address:
    """An address that starts from one of some parameters."""

    bases: frozenset[str]


Value = ProductSum | Address | tuple["Value", ...]
NOTHING = ProductSum()


@dataclass(frozen=True)
class Advance:
    """One product that is added to a pointer."""

    base: str
    """The parameter that it starts from."""
    term: Term
    spot: SourceLine
    """Of the whole pointer expression."""


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


def variable(name: str) -> ProductSum:
    """A number of which no more is known than its name."""
    return ProductSum((Term(index=frozenset({name})),))


def read_kernel(function: Function, arguments: Mapping[str, Value], constants: Mapping[str, Any]) -> Record:
    """What its pointers start from and are advanced by.

    Args:
        arguments: what each parameter is.
        constants: the values of parameters that branches may depend on.
    """
    record = Record()
    # Of a tensor a branch may ask whether it is None.
    is_there = {name: object() for name, value in arguments.items() if isinstance(value, Address)}
    _PointerReader(function, dict(arguments), {**constants, **is_there}, record).run()
    return record


# Calls whose value is that of their first argument.
_SAME = {"broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs"}
_SAME |= {"advance", *HINTS}
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
_UNKNOWN = object()


@dataclass
class _PointerReader:
    """One function of a kernel, followed from its first statement. What pointers do is noted in the record."""

    function: Function
    scope: dict[str, Value]
    constants: dict[str, Any]
    record: Record
    depth: int = _DEPTH
    prefix: str = ""
    """Stands before the names of variables where the callers may have the same names."""
    returned: list[Value] = field(default_factory=list)

    def run(self) -> Value:
        """What the function returns."""
        self._block(self.function.tree.body)
        return _either(self.returned)

    # --- statements

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
                self.returned.append(self._value(node.value) if node.value else NOTHING)
                return True
            case ast.AugAssign(target=ast.Name(id=name)):
                before = self.scope.get(name, NOTHING)
                self._assign(node.target, self._operation(before, node.op, self._value(node.value), node), node)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in targets_of(node):
                    self._assign(target, self._value(value), value)
            case ast.Expr():
                self._value(node.value)
        return False

    def _branch(self, node: ast.If) -> bool:
        truth = self._constant(node.test)
        if truth is not _UNKNOWN:
            return self._block(node.body if truth else node.orelse)
        before, ways = (self.scope, self.constants), []
        for block in (node.body, node.orelse):
            self.scope, self.constants = dict(before[0]), dict(before[1])
            is_end = self._block(block)
            ways.append((is_end, self.scope, self.constants))
        open_ways = [way for way in ways if not way[0]] or ways
        names = dict.fromkeys(name for _, scope, _ in open_ways for name in scope)
        self.scope = {name: _either([scope[name] for _, scope, _ in open_ways if name in scope]) for name in names}
        (_, _, first), (_, _, last) = open_ways[0], open_ways[-1]
        self.constants = {name: value for name, value in first.items() if last.get(name, _UNKNOWN) is value}
        return all(is_end for is_end, _, _ in ways)

    def _loop(self, node: ast.For | ast.While) -> None:
        self._value(node.iter if isinstance(node, ast.For) else node.test)
        for _ in range(2):  # what one turn leaves to the next is seen in the second
            for name in bound_in([node]):
                self.constants.pop(name, None)
            if isinstance(node, ast.For):
                self._assign(node.target, variable("turn"), node.iter)
            self._block(node.body)

    def _assign(self, target: ast.expr, value: Value, source: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else ()
            for at, part in enumerate(target.elts):
                self._assign(part, parts[at] if parts else _opaque([value]), source)
        elif isinstance(target, ast.Name):
            # A computed number without a stride goes by the variable's name; a variable under another name does not.
            is_new = isinstance(value, ProductSum) and not value.has_stride and not isinstance(_bare(source), ast.Name)
            self.scope[target.id] = variable(self.prefix + target.id) if is_new else value
            self.constants.pop(target.id, None)
            if isinstance(source, ast.expr) and (constant := self._constant(source)) is not _UNKNOWN:
                self.constants[target.id] = constant

    def _constant(self, node: ast.expr) -> Any:
        """What an expression is that is made of constants alone; _UNKNOWN of any other."""
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        known = {name: self.constants[name] for name in names if name in self.constants}
        for name in names - self.function.variables:
            found = self.function.scope.get(name)
            found = getattr(found, "value", found) if type(found).__name__ == "constexpr" else found
            known |= {name: found} if isinstance(found, (int, float, str)) else {}
        if len(known) < len(names):
            return _UNKNOWN
        with contextlib.suppress(Exception):
            return eval(compile(ast.Expression(node), self.function.file, "eval"), {"__builtins__": {}}, known)
        return _UNKNOWN

    # --- expressions

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Name():
                return self._named(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp():
                return self._operation(self._value(node.left), node.op, self._value(node.right), node)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return self._value(node.operand)
            case ast.Tuple() | ast.List():
                return tuple(map(self._value, node.elts))
            case ast.Subscript():
                return self._part(node)
            case ast.Starred() | ast.Attribute(attr="T" | "value"):
                return self._value(node.value)
            case ast.IfExp():
                truth = self._constant(node.test)
                ways = [node.body, node.orelse] if truth is _UNKNOWN else [node.body if truth else node.orelse]
                return _either([self._value(way) for way in ways])
        return _opaque([self._value(each) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)])

    def _named(self, node: ast.Name) -> Value:
        value = self.scope.get(node.id, NOTHING)
        if not isinstance(value, ProductSum) or not value.has_stride:
            return value
        spot = self.function.line_of(node)
        return ProductSum(tuple(replace(one, trail=(*one.trail, spot)) if one.stride else one for one in value.terms))

    def _part(self, node: ast.Subscript) -> Value:
        value, at = self._value(node.value), self._constant(node.slice)
        if not isinstance(value, tuple):
            return value
        is_one = isinstance(at, int) and -len(value) <= at < len(value)
        return value[at] if is_one else _either(value)

    def _operation(self, left: Value, operator: ast.operator, right: Value, node: ast.AST) -> Value:
        is_sum = isinstance(operator, (ast.Add, ast.Sub))
        if isinstance(right, Address) and not isinstance(left, Address):
            left, right = right, left
        if is_sum and isinstance(left, Address) and isinstance(right, ProductSum):
            return self._advanced(left, right.terms, node)
        if not isinstance(left, ProductSum) or not isinstance(right, ProductSum):
            return self._lost([left, right])
        if isinstance(operator, ast.Mult):
            return _product(left, right)
        return ProductSum((*left.terms, *right.terms)) if is_sum else _opaque([left, right])

    def _advanced(self, address: Address, terms: Iterable[Term], node: ast.AST) -> Address:
        """The pointer behind a sum. Which of several it is, a branch decides that is not known."""
        spot = self.function.line_of(node)
        for term in terms:
            self.record.expressions.add(spot)
            if len(address.bases) > 1:
                self.record.lost |= address.bases
            else:
                self.record.advances |= {Advance(base, term, spot): None for base in address.bases}
        return address

    def _lost(self, values: Iterable[Value]) -> Value:
        """What is made of values by what is not followed. Pointers among them went astray."""
        for value in values:
            if isinstance(value, Address):
                self.record.lost |= value.bases
            elif isinstance(value, tuple):
                self._lost(value)
        return _opaque(values)

    def _call(self, node: ast.Call) -> Value:
        called = self.function.called(node)
        words = {word.arg: self._value(word.value) for word in node.keywords if word.arg}
        is_method = isinstance(node.func, ast.Attribute) and called is None
        receiver = [node.func.value] if is_method else []  # type: ignore[attr-defined]
        values = [self._value(each) for each in (*receiver, *node.args)]
        if is_own(called):
            return self._followed(called, node, values, words)
        name = str(getattr(node.func, "attr", getattr(node.func, "id", "")))
        if name in ("load", "store") or name.startswith("atomic_"):
            self._access(values[0] if values else words.get("pointer", NOTHING), node)
            return _opaque(values[1:])
        if name in _DESCRIBING:
            return self._described(values, words, node)
        if name == "where" and len(values) == 3:
            return _either(values[1:])
        if name in _SAME and values:
            return values[0]
        return NOTHING if name.startswith(("static_", "device_")) else self._lost([*values, *words.values()])

    def _followed(self, jit: Any, node: ast.Call, values: list[Value], words: dict[str, Value]) -> Value:
        """What a call of the user's own Triton function gives."""
        function = None
        with contextlib.suppress(OSError, SyntaxError):
            function = read_once(jit) if self.depth else None
        if function is None:
            return self._lost([*values, *words.values()])
        passed = dict(zip(function.parameters, node.args, strict=False))
        passed |= {word.arg: word.value for word in node.keywords if word.arg}
        constants = {name: self._constant(passed.get(name, each)) for name, each in function.defaults.items()}
        constants |= {name: self._constant(each) for name, each in passed.items()}
        constants = {name: value for name, value in constants.items() if value is not _UNKNOWN}
        scope, prefix = dict(zip(function.parameters, values, strict=False)) | words, f"{self.prefix}{function.name}."
        return _PointerReader(function, scope, constants, self.record, self.depth - 1, prefix).run()

    def _access(self, value: Value, node: ast.AST) -> None:
        """Notes a load or a store."""
        spot = self.function.line_of(node)
        for base in value.bases if isinstance(value, Address) else ():
            self.record.expressions.add(spot)
            self.record.accesses.setdefault(base, spot)

    def _described(self, values: Sequence[Value], words: Mapping[str, Value], node: ast.AST) -> Value:
        """A block pointer, or a descriptor: it is advanced by all its strides."""
        given = dict(zip(("base", "shape", "strides"), values, strict=False)) | dict(words)
        base, strides = given.get("base", NOTHING), given.get("strides")
        if not isinstance(base, Address) or not isinstance(strides, tuple):
            return self._lost([base])
        return self._advanced(
            base, (term for one in strides if isinstance(one, ProductSum) for term in one.terms), node
        )


def _bare(node: ast.AST) -> ast.AST:
    """What is indexed, or cast."""
    while True:
        match node:
            case ast.Subscript(value=of) | ast.Call(func=ast.Attribute(value=of, attr="to")):
                node = of
            case _:
                return node


def _product(left: ProductSum, right: ProductSum) -> ProductSum:
    first, second = (number.terms or (Term(),) for number in (left, right))
    if len(first) * len(second) > _MOST or any(a.stride and b.stride for a in first for b in second):
        return _opaque([left, right])
    pairs = ((a, b) for a in first for b in second)
    return ProductSum(tuple(Term(a.stride or b.stride, a.trail or b.trail, a.index | b.index) for a, b in pairs))


def _either(values: Sequence[Value]) -> Value:
    """What a variable may be behind several branches."""
    found = list(dict.fromkeys(values))
    if len(found) == 1:
        return found[0]
    bases = [value.bases for value in found if isinstance(value, Address)]
    if bases:
        return Address(frozenset().union(*bases))
    tuples = [value for value in found if isinstance(value, tuple)]
    if tuples and len(tuples) == len(found) and len(set(map(len, tuples))) == 1:
        return tuple(map(_either, zip(*tuples, strict=True)))
    # Of several sums with strides in them nobody knows here which one goes with which pointer.
    return _opaque(found)


def _opaque(values: Iterable[Value]) -> ProductSum:
    """A number of which no more is known than the variables that it was computed from."""
    found = set[str]()
    for value in values:
        if isinstance(value, tuple):
            found |= {name for term in _opaque(value).terms for name in term.index}
        elif isinstance(value, ProductSum):
            for term in value.terms:
                found |= {*term.index, *filter(None, [term.stride])}
    return ProductSum((Term(index=frozenset(found)),) if found else ())
