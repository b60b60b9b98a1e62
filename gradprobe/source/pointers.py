"""What the pointers of a Triton kernel start from, and by which strides they are advanced, as its syntax tree tells it.

Only addresses matter here: of a number it is followed which strides stand in the sum of products that it is.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .text import SourceLine
from .triton_source import HINTS, Function, bound_in, is_own, read_function, targets_of

# How many calls deep functions are followed.
_DEPTH = 6
# Calls whose value is that of their first argument.
_SAME = {"broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs"}
_SAME |= {"advance", *HINTS}
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
_UNKNOWN = object()


@dataclass(frozen=True)
class Advance:
    """A stride on its way to a pointer."""

    stride: str
    """The kernel's parameter."""
    trail: tuple[SourceLine, ...] = ()
    """Every name under which it was read: first the parameter, then what it was passed as, or what held it."""
    base: str = ""
    """The parameter of the pointer that is advanced by it."""


@dataclass(frozen=True)
class Quantity:
    """A number, a block of numbers, or a pointer."""

    strides: tuple[Advance, ...] = ()
    """Of a number: those that stand in its sum."""
    bases: frozenset[str] = frozenset()
    """Of a pointer: the parameters of which it starts from one."""
    constant: Any = _UNKNOWN
    """What branches may depend on; of a tensor, that it is there."""


_NOTHING = Quantity()


def pointer(parameter: str) -> Quantity:
    """A parameter that is a pointer."""
    return Quantity(bases=frozenset({parameter}), constant=object())


def stride(parameter: str) -> Quantity:
    """A parameter that is a stride."""
    return Quantity((Advance(parameter),))


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

    advances: dict[Advance, None] = field(default_factory=dict)
    accesses: dict[PointerAccess, None] = field(default_factory=dict)
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
                self.scope[name] = self._operation(before, self._value(node.value), node.op)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in targets_of(node):
                    self._assign(target, value)
            case ast.Expr():
                self._value(node.value)
        return False

    def _branch(self, node: ast.If) -> bool:
        truth = self._constant(node.test)
        if truth is not _UNKNOWN:
            return self._block(node.body if truth else node.orelse)
        before, ways = self.scope, list[dict[str, Quantity]]()
        for block in (node.body, node.orelse):
            self.scope = dict(before)
            if not self._block(block):
                ways.append(self.scope)
        names = dict.fromkeys(name for way in ways for name in way)
        self.scope = {name: _either([way[name] for way in ways if name in way]) for name in names}
        return not ways

    def _loop(self, node: ast.For | ast.While) -> None:
        for _ in range(2):  # what one turn leaves to the next is seen in the second
            for name in bound_in([node]):
                self.scope[name] = replace(self.scope.get(name, _NOTHING), constant=_UNKNOWN)
            self._block(node.body)

    def _assign(self, target: ast.expr, source: ast.expr) -> None:
        """Assigns what an expression is; of a tuple each part by itself."""
        names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        parts = source.elts if isinstance(source, ast.Tuple) else [source]
        values = [self._passed(part) for part in parts]
        if len(names) != len(parts):
            values = [self._lost(values)] * len(names)
        for name, value in zip(names, values, strict=True):
            if isinstance(name, ast.Name):
                self.scope[name.id] = value

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

    def _values(self, nodes: Iterable[ast.AST]) -> list[Quantity]:
        return [self._value(node) for node in nodes if isinstance(node, ast.expr)]

    def _value(self, node: ast.expr | None) -> Quantity:
        match node:
            case None:
                return _NOTHING
            case ast.Name():
                value = self.scope.get(node.id, _NOTHING)
                trails = [(*each.trail, self.function.line_of(node)) for each in value.strides]
                strides = [replace(each, trail=trail) for each, trail in zip(value.strides, trails, strict=True)]
                return replace(value, strides=tuple(strides))
            case ast.Call():
                return self._call(node)
            case ast.BinOp():
                return self._operation(self._value(node.left), self._value(node.right), node.op)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner) | ast.Subscript(value=inner):
                return self._value(inner)
            case ast.Starred(value=inner) | ast.Attribute(attr="T" | "value", value=inner):
                return self._value(inner)
            case ast.IfExp():
                truth = self._constant(node.test)
                ways = [node.body, node.orelse] if truth is _UNKNOWN else [node.body if truth else node.orelse]
                return _either(self._values(ways))
            case ast.Tuple():
                return self._lost(self._values(node.elts))
        self._values(ast.iter_child_nodes(node))
        return _NOTHING

    def _operation(self, left: Quantity, right: Quantity, operator: ast.operator) -> Quantity:
        is_sum = isinstance(operator, (ast.Add, ast.Sub))
        address, offset = (right, left) if right.bases else (left, right)
        if is_sum and address.bases and not offset.bases:
            return self._advanced(address, offset.strides)
        if address.bases:
            return self._lost([left, right])
        # A product of two strides is none.
        is_kept = is_sum or (isinstance(operator, ast.Mult) and not (left.strides and right.strides))
        return Quantity((*left.strides, *right.strides)) if is_kept else _NOTHING

    def _advanced(self, address: Quantity, strides: Iterable[Advance]) -> Quantity:
        """The pointer behind a sum. Which of several it is, a branch decides that is not known."""
        if len(address.bases) > 1:
            self.record.lost |= address.bases
        else:
            (base,) = address.bases
            for each in strides:
                self.record.advances[replace(each, base=base)] = None
        return Quantity(bases=address.bases)

    def _lost(self, values: Iterable[Quantity]) -> Quantity:
        """Nothing: what is made of values by what is not followed. Pointers among them went astray."""
        for value in values:
            self.record.lost |= value.bases
        return _NOTHING

    def _call(self, node: ast.Call) -> Quantity:
        called, given = self.function.called(node), node.args
        words = {word.arg: word.value for word in node.keywords if word.arg}
        if is_own(called):
            return self._followed(called, given, words)
        if isinstance(node.func, ast.Attribute) and called is None:  # a method
            given = [node.func.value, *given]
        name = str(getattr(node.func, "attr", getattr(node.func, "id", "")))
        if name in _DESCRIBING:
            return self._described(dict(zip(("base", "shape", "strides"), given, strict=False)) | words)
        values = self._values([*given, *words.values()])
        if name in ("load", "store") or name.startswith("atomic_"):
            for base in values[0].bases if values else ():
                self.record.accesses[PointerAccess(base, name, self.function.line_of(node))] = None
            return _NOTHING
        if name == "where" and len(values) == 3:
            return _either(values[1:])
        return values[0] if name in _SAME and values else self._lost(values)

    def _followed(self, jit: Any, given: Sequence[ast.expr], words: dict[str, ast.expr]) -> Quantity:
        """What a call of the user's own Triton function gives."""
        function = None
        with contextlib.suppress(OSError, SyntaxError):
            function = read_function(jit) if self.depth else None
        if function is None:
            return self._lost(self._values([*given, *words.values()]))
        passed = dict(zip(function.parameters, given, strict=False)) | words
        scope = {name: Quantity(constant=value) for name, value in function.defaults.items()}
        scope |= {name: self._passed(each) for name, each in passed.items()}
        return _PointerReader(function, scope, self.record, self.depth - 1).follow()

    def _described(self, given: dict[str, ast.expr]) -> Quantity:
        """A block pointer, or a descriptor: it is advanced by all its strides."""
        base, strides = self._value(given.get("base")), given.get("strides")
        if not base.bases or not isinstance(strides, (ast.Tuple, ast.List)):
            return self._lost([base])
        return self._advanced(base, [stride for each in self._values(strides.elts) for stride in each.strides])


def _either(values: Sequence[Quantity]) -> Quantity:
    """What a variable may be behind several branches."""
    found = list(dict.fromkeys(values))
    if len(found) > 1:  # where they differ in their constants alone
        found = list(dict.fromkeys(replace(value, constant=_UNKNOWN) for value in found))
    if len(found) == 1:
        return found[0]
    # Of several sums with strides in them nobody knows here which one goes with which pointer.
    return Quantity(bases=frozenset[str]().union(*(value.bases for value in found)))
