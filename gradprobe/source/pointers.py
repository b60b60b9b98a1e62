"""By which strides the pointers of a Triton kernel are advanced."""

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..model.intermediates import names, title
from ..model.layout_run import Line
from .parameter_names import tensor_of
from .syntax import HINTS, SourceLine, called, keywords, targets_of
from .triton_source import Function, is_own, read_function

# Calls whose value is that of their first argument.
_SAME = {
    "broadcast_to", "expand_dims", "reshape", "view", "ravel", "trans", "flip", "to", "to_tensor", "cast", "abs",
    "advance", *HINTS,
}  # fmt: skip
# Calls that describe a block of memory: of base, shape and strides.
_DESCRIBING = {"make_block_ptr", "make_tensor_descriptor"}
# The addresses that atomics of CUDA add to.
_OF_CUDA = re.compile(r"\batomic[A-Z]\w*\s*\(([^;,]*)")


@dataclass(frozen=True)
class Advance:
    stride: str
    trail: tuple[SourceLine, ...] = ()  # first the parameter
    base: str = ""


@dataclass
class Record:
    advances: dict[Advance, None] = field(default_factory=dict)
    accesses: dict[tuple[str, SourceLine], None] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # pointers not followed everywhere


class _Quantity(NamedTuple):
    strides: tuple[Advance, ...] = ()
    bases: frozenset[str] = frozenset()


_NOTHING = _Quantity()


def read_kernel(
    function: Function, pointers: Iterable[str], strides: Iterable[str] = ()
) -> Record:
    scope, record = {name: _Quantity(bases=frozenset({name})) for name in pointers}, Record()
    for name in strides:
        scope[name] = _Quantity((Advance(name),))
    _PointerReader(function, scope, record).value()
    return record


@dataclass
class _PointerReader:
    function: Function
    scope: dict[str, _Quantity]
    record: Record
    depth: int = 6
    returned: list[_Quantity] = field(default_factory=list)

    def value(self) -> _Quantity:
        self._block(self.function.tree.body)
        return _either(self.returned)

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        return any(map(self._statement, statements))

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.If():
                return self._branch(node)
            case ast.For() | ast.While():
                # What one turn leaves to the next is seen in the second.
                self._block([*node.body, *node.body])
            case ast.Return():
                self.returned.append(self._value(node.value))
                return True
            case ast.AugAssign(ast.Name(name)):
                before = self.scope.get(name, _NOTHING)
                self.scope[name] = self._operation(before, self._value(node.value), node.op)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in targets_of(node):
                    self._assign(target, value)
            case ast.Expr():
                self._value(node.value)
        return False

    def _branch(self, node: ast.If) -> bool:
        before, after, ends = self.scope, dict[str, list[_Quantity]](), True
        for block in (node.body, node.orelse):
            self.scope = dict(before)
            if not self._block(block):
                ends = False
                for name, value in self.scope.items():
                    after.setdefault(name, []).append(value)
        self.scope = {name: _either(values) for name, values in after.items()}
        return ends

    def _assign(self, target: ast.expr, source: ast.expr) -> None:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = self._values(source.elts if isinstance(source, ast.Tuple) else [source])
        if len(names) != len(values):
            is_tuple = len(values) == 1 and not values[0].bases
            values = [values[0] if is_tuple else self._lost(values)] * len(names)
        for name, value in zip(names, values, strict=True):
            if isinstance(name, ast.Name):
                self.scope[name.id] = value

    def _values(self, nodes: Iterable[ast.AST]) -> list[_Quantity]:
        return [self._value(node) for node in nodes if isinstance(node, ast.expr)]

    def _value(self, node: ast.expr | None) -> _Quantity:
        match node:
            case None:
                return _NOTHING
            case ast.Name():
                found, advances = self.scope.get(node.id, _NOTHING), list[Advance]()
                for each in found.strides:
                    trail = *each.trail, self.function.line_of(node)
                    advances.append(replace(each, trail=trail))
                return _Quantity(tuple(advances), found.bases)
            case ast.Call():
                return self._call(node)
            case ast.BinOp():
                return self._operation(self._value(node.left), self._value(node.right), node.op)
            case ast.Subscript(inner) | ast.Starred(inner) | ast.UnaryOp(_, inner):
                return self._value(inner)
            case ast.Attribute(inner, "T" | "value"):
                return self._value(inner)
            case ast.IfExp():
                return _either(self._values([node.body, node.orelse]))
            case ast.Tuple():
                return self._lost(self._values(node.elts))
        self._values(ast.iter_child_nodes(node))
        return _NOTHING

    def _operation(self, left: _Quantity, right: _Quantity, operator: ast.operator) -> _Quantity:
        is_sum = isinstance(operator, (ast.Add, ast.Sub))
        if left.bases or right.bases:
            address, offset = (right, left) if right.bases else (left, right)
            return self._advanced(address, offset) if is_sum else self._lost([address])
        # A product of two strides is none.
        is_product = isinstance(operator, ast.Mult) and not (left.strides and right.strides)
        return _Quantity((*left.strides, *right.strides)) if is_sum or is_product else _NOTHING

    def _advanced(self, address: _Quantity, offset: _Quantity) -> _Quantity:
        if len(address.bases) != 1 or offset.bases:
            return self._lost([address, offset])
        for each in offset.strides:
            self.record.advances[replace(each, base=min(address.bases))] = None
        return address

    def _lost(self, values: Iterable[_Quantity]) -> _Quantity:
        for value in values:
            self.record.lost |= value.bases
        return _NOTHING

    def _call(self, node: ast.Call) -> _Quantity:
        own, name, given = self.function.called(node), called(node), node.args
        words = keywords(node)
        if isinstance(node.func, ast.Attribute) and own is None:  # a method
            given = [node.func.value, *given]
        if name.removeprefix("_experimental_") in _DESCRIBING:
            return self._described(*given[:1], *given[2:3], **words)
        values = self._values([*given, *words.values()])
        if is_own(own) and self.depth:
            with contextlib.suppress(OSError, SyntaxError):
                function = read_function(own)
                names = [*function.parameters[: len(given)], *words]
                scope = dict(zip(names, values, strict=False))
                return _PointerReader(function, scope, self.record, self.depth - 1).value()
        if name in ("load", "store") or name.startswith("atomic_"):
            if values and values[0].bases:
                self.record.accesses[name, self.function.line_of(node)] = None
            return _NOTHING
        if name == "where" and len(values) == 3:
            return _either(values[1:])
        return values[0] if name in _SAME and values else self._lost(values)

    def _described(
        self, pointer: ast.expr | None = None, strides: ast.expr | None = None, **words: ast.expr
    ) -> _Quantity:
        base = self._value(words.get("base", pointer))
        for node in strides.elts if isinstance(strides, (ast.Tuple, ast.List)) else [strides]:
            stride = self._value(node)
            self._advanced(base, stride)
            if not stride.strides and not isinstance(node, ast.Constant):
                self._lost([base])  # a stride that nobody knows
        return base


def _either(values: Iterable[_Quantity]) -> _Quantity:
    some = set(values) - {_NOTHING}
    if len(some) == 1:
        return some.pop()
    return _Quantity(bases=frozenset().union(*(value.bases for value in some)))


# --- what is added to in no fixed order


def atomics_into(kernel: Any, parameters: Iterable[str]) -> Iterator[Line]:
    """Raises OSError, SyntaxError where there is no source."""
    for operation, at in read_kernel(read_function(kernel), parameters).accesses:
        if operation.startswith("atomic_"):
            yield Line(kernel=at.function, file=at.file, line=at.line, code=at.code)


def cuda_atomics(file: str, text: str) -> Iterator[tuple[str, Line]]:
    for number, code in enumerate(text.split("\n"), 1):
        for address in _OF_CUDA.findall(code.partition("//")[0]):
            named = filter(None, map(named_after, re.findall(r"\w+", address)))
            yield next(named, ""), Line(kernel="", file=file, line=number, code=code.strip())


def named_after(word: str) -> str:
    """The gradient of `dq_ptr`, `DQ`, `grad_query`, `p_dq`; or ""."""
    word = word.lower().replace("gradient", "grad")
    for part in (word, *re.split(r"_|ptr|pointer", word)):
        name = title(tensor_of(part)) if part else ""
        if name in names() and name.startswith("d"):
            return name
    return ""
