"""Along which index variable each axis of a tile runs, followed through a kernel's expressions.

A shape here is a tuple with a label for each axis: the name of the [BLOCK] variable that runs along it, ONE where the
axis is broadcast, None where nothing is known; () is a scalar, and None instead of a tuple is a value nothing is known
about. Whatever is not understood is unknown, so that a label that is there is right.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from .functions import Function, blocks, heads, is_jit, read_function

ONE = "1"
_FRESH = "?"
Shape = tuple[str | None, ...] | None
# A tuple of values has a list of shapes.
Found = tuple[str | None, ...] | list[Any] | None

_ELEMENTWISE = {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "fast_expf", "pow"}
_ELEMENTWISE |= {"add", "sub", "mul", "fma", "fdiv", "div_rn", "fast_dividef", "maximum", "minimum", "clamp", "where"}
_ELEMENTWISE |= {"abs", "fabs", "floor", "ceil", "cast", "max_contiguous", "multiple_of"}
_SCALARS = {"program_id", "num_programs", "cdiv", "min", "max", "int", "float", "len"}
_REDUCTIONS = {"sum", "max", "min"}
# What may be said of a dot without a change of its axes.
_DOT = {"acc", "input_precision", "allow_tf32", "max_num_imprecise_acc", "out_dtype"}
_DEPTH = 4


def shapes_behind(tree: Sequence[Function], function: Function, statement: ast.stmt) -> dict[str, Found]:
    """The shape of every variable of a function behind one of its statements.

    In a function that is called, a parameter has what all callers agree on, by its own name where it is a block.
    """
    found = _parameters(tree, function)
    _run(function, function.tree.body, found, statement, _DEPTH)
    return found


def shape_of(text: str, function: Function, shapes: Mapping[str, Found]) -> Shape:
    """The shape of an expression where variables have the given shapes."""
    found = _Reader(function, dict(shapes), _DEPTH).visit(ast.parse(text, mode="eval").body)
    return None if isinstance(found, list) else found


def order_of(tile: Shape, blocks_: Sequence[Shape]) -> bool | None:
    """Whether a tile's axes run along two blocks in the other order: None where the labels do not tell."""
    labels = [block[0] if block is not None and len(block) == 1 else None for block in blocks_]
    if tile is None or len(tile) != 2 or len(labels) != 2 or labels[0] == labels[1]:
        return None
    known = {ONE, _FRESH, None}
    straight = [axis == label for axis, label in zip(tile, labels, strict=True) if not {axis, label} & known]
    crossed = [axis == label for axis, label in zip(tile, reversed(labels), strict=True) if not {axis, label} & known]
    if any(straight) != any(crossed):
        return any(crossed)
    return None


def _parameters(tree: Sequence[Function], function: Function) -> dict[str, Found]:
    if function is tree[0]:
        # What a kernel is launched with are scalars and pointers.
        return {name: () for name in function.parameters}
    found: dict[str, Found] = {}
    sites = [(caller, call) for caller in tree for call, called in caller.calls if called is function.jit]
    for number, (caller, call) in enumerate(sites):
        passed = _passed(tree, caller, call, function)
        for name in function.parameters:
            found[name] = passed.get(name) if number == 0 or found[name] == passed.get(name) else None
    return found


def _passed(tree: Sequence[Function], caller: Function, call: ast.Call, function: Function) -> dict[str, Found]:
    shapes = _parameters(tree, caller) if caller is not function else {}
    _run(caller, caller.tree.body, shapes, caller.source.statement(call), _DEPTH)
    reader = _Reader(caller, shapes, _DEPTH)
    given = _bound(function, call, [reader.visit(node) for node in call.args], reader)
    own = {shape[0]: name for name, shape in given.items() if isinstance(shape, tuple) and len(shape) == 1}
    return {
        # A block that is not passed is called after the caller: the function may have one of the same name.
        name: tuple(x if x in (ONE, None) else own.get(x, f"{caller.name}.{x}") for x in shape)
        if isinstance(shape, tuple)
        else None
        for name, shape in given.items()
    }


def _bound(function: Function, call: ast.Call, positional: Sequence[Found], reader: _Reader) -> dict[str, Found]:
    given = dict(zip(function.parameters, positional, strict=False))
    given.update({word.arg: reader.visit(word.value) for word in call.keywords if word.arg})
    return given


def _run(
    function: Function, block: Sequence[ast.stmt], shapes: dict[str, Found], last: ast.stmt | None, depth: int
) -> bool:
    """Follows the statements of a block; whether it came to the last one."""
    return any(_step(function, statement, shapes, last, depth) for statement in block)


def _step(function: Function, statement: ast.stmt, shapes: dict[str, Found], last: ast.stmt | None, depth: int) -> bool:
    reader = _Reader(function, shapes, depth)
    if isinstance(statement, ast.Assign):
        value = reader.visit(statement.value)
        for target in statement.targets:
            _assign(target, value, shapes, reader.prefix)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        _assign(statement.target, reader.visit(statement.value), shapes, reader.prefix)
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        merged = _merge([shapes.get(statement.target.id), reader.visit(statement.value)])
        _assign(statement.target, merged, shapes, reader.prefix)
    elif isinstance(statement, ast.If):
        return _branch(function, statement, shapes, last, depth)
    else:
        for head in heads(statement):
            _assign(head, () if isinstance(statement, ast.For) else None, shapes, reader.prefix)
        for inner in blocks(statement):
            if _run(function, inner, shapes, last, depth) and statement is not last:
                return True
    return statement is last


def _branch(function: Function, statement: ast.If, shapes: dict[str, Found], last: ast.stmt | None, depth: int) -> bool:
    """Both branches apart; behind them a variable has the shape on which they agree."""
    results = []
    for branch in (statement.body, statement.orelse):
        own = dict(shapes)
        if _run(function, branch, own, last, depth):
            shapes.update(own)
            return True
        results.append(own)
    for name in {**results[0], **results[1]}:
        here = [result[name] for result in results if name in result]
        shapes[name] = here[0] if all(shape == here[0] for shape in here) else None
    return statement is last


def _assign(target: ast.AST, value: Found, shapes: dict[str, Found], prefix: str) -> None:
    if isinstance(target, ast.Name):
        # A block made on the spot is called by the variable that holds it.
        shapes[target.id] = (prefix + target.id,) if value == (_FRESH,) else value
    elif isinstance(target, ast.Tuple):
        parts = value if isinstance(value, list) and len(value) == len(target.elts) else [None] * len(target.elts)
        for part, shape in zip(target.elts, parts, strict=True):
            _assign(part, shape, shapes, prefix)


def _merge(shapes: Sequence[Found]) -> Shape:
    """The shape of an elementwise operation."""
    known = [shape for shape in shapes if isinstance(shape, tuple)]
    rank = max((len(shape) for shape in known), default=0)
    if len(known) < len(shapes) and rank < 2:
        # What is unknown may have more axes than all the others.
        return None
    axes = [_label([shape[axis] for shape in known if len(shape) >= -axis]) for axis in range(-rank, 0)]
    return tuple(None if label == ONE and len(known) < len(shapes) else label for label in axes)


def _label(labels: Sequence[str | None]) -> str | None:
    told = {label for label in labels if label not in (ONE, None)}
    if len(told) == 1:
        return next(iter(told))
    return ONE if not told and None not in labels else None


class _Reader(ast.NodeVisitor):
    """The shape of an expression, from the shapes of variables."""

    def __init__(self, function: Function, shapes: dict[str, Found], depth: int) -> None:
        self.function, self.shapes, self.depth = function, shapes, depth
        # Blocks made in a function that is looked into may have the names of the caller's.
        self.prefix = "" if depth == _DEPTH else f"{function.name}."

    def generic_visit(self, node: ast.AST) -> Found:  # noqa: ARG002
        return None

    def visit_Constant(self, node: ast.Constant) -> Found:  # noqa: ARG002
        return ()

    def visit_Name(self, node: ast.Name) -> Found:
        if node.id in self.shapes:
            return self.shapes[node.id]
        return () if node.id not in self.function.assigned and self.function.knows(node.id) else None

    def visit_Tuple(self, node: ast.Tuple) -> Found:
        return [self.visit(part) for part in node.elts]

    def visit_BinOp(self, node: ast.BinOp) -> Found:
        return _merge([self.visit(node.left), self.visit(node.right)])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Found:
        found: Found = self.visit(node.operand)
        return found

    def visit_BoolOp(self, node: ast.BoolOp) -> Found:
        return _merge([self.visit(part) for part in node.values])

    def visit_Compare(self, node: ast.Compare) -> Found:
        return _merge([self.visit(part) for part in (node.left, *node.comparators)])

    def visit_IfExp(self, node: ast.IfExp) -> Found:
        first, second = self.visit(node.body), self.visit(node.orelse)
        return first if first == second else None

    def visit_Subscript(self, node: ast.Subscript) -> Found:
        shape = self.visit(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        kept = [part for part in parts if isinstance(part, ast.Slice)]
        new = [part for part in parts if isinstance(part, ast.Constant) and part.value is None]
        if not isinstance(shape, tuple) or len(kept) + len(new) != len(parts) or len(kept) != len(shape):
            return None
        labels = iter(shape)
        return tuple(next(labels) if isinstance(part, ast.Slice) else ONE for part in parts)

    def visit_Attribute(self, node: ast.Attribute) -> Found:
        return _reversed(self.visit(node.value)) if node.attr == "T" else None

    def visit_Call(self, node: ast.Call) -> Found:
        called = self.function.called(node, self.function.scope)
        if is_jit(called) and not called.fn.__module__.startswith("triton."):
            return self._inside(node, called)
        if isinstance(node.func, ast.Attribute) and called is None:
            return self._method(node.func, node)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return self._builtin(name, node, [self.visit(argument) for argument in node.args])

    def _method(self, func: ast.Attribute, node: ast.Call) -> Found:
        shape: Found = self.visit(func.value)
        if func.attr in ("to", "cast", "abs", "exp", "exp2", "log"):
            return shape
        return _reversed(shape) if func.attr in ("trans", "T") and not node.args else None

    def _builtin(self, name: str, node: ast.Call, arguments: list[Found]) -> Found:
        first = arguments[0] if arguments else None
        if name == "arange":
            return (_FRESH,)
        if name in _SCALARS and all(shape == () for shape in arguments):
            return ()
        if name in ("zeros", "full") and node.args and isinstance(node.args[0], (ast.List, ast.Tuple)):
            return (None,) * len(node.args[0].elts)
        if name == "trans":
            return _reversed(first) if len(arguments) == 1 and not node.keywords else None
        if name == "dot":
            return _dot(arguments) if {word.arg for word in node.keywords} <= _DOT else None
        if name in ("load", "to_tensor", "zeros_like", "full_like"):
            return first
        if name in _REDUCTIONS and isinstance(first, tuple):
            return _reduced(first, [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "axis")])
        return _merge(arguments) if name in _ELEMENTWISE else None

    def _inside(self, node: ast.Call, called: Any) -> Found:
        """What a function returns, followed with the shapes passed to it."""
        if not self.depth:
            return None
        function = read_function(called)
        shapes = _bound(function, node, [self.visit(argument) for argument in node.args], self)
        defaults = {name: () for name in function.parameters if name not in shapes}
        shapes = {**defaults, **shapes}
        _run(function, function.tree.body, shapes, None, self.depth - 1)
        reader = _Reader(function, shapes, self.depth - 1)
        returns = [inner.value for inner in ast.walk(function.tree) if isinstance(inner, ast.Return) and inner.value]
        found = [reader.visit(value) for value in returns]
        return found[0] if found and all(shape == found[0] for shape in found) else None


def _reversed(shape: Found) -> Found:
    return shape[::-1] if isinstance(shape, tuple) and len(shape) == 2 else None


def _reduced(shape: tuple[str | None, ...], axis: Sequence[ast.expr]) -> Shape:
    number = axis[0].value if len(axis) == 1 and isinstance(axis[0], ast.Constant) else None
    if not isinstance(number, int) or not 0 <= number < len(shape):
        return None
    return shape[:number] + shape[number + 1 :]


def _dot(arguments: Sequence[Found]) -> Found:
    left, right = (*arguments, None, None)[:2]
    if not (isinstance(left, tuple) or isinstance(right, tuple)):
        return None
    rows = left[0] if isinstance(left, tuple) and len(left) == 2 else None
    columns = right[1] if isinstance(right, tuple) and len(right) == 2 else None
    return (rows, columns)
