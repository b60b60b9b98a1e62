"""Along which index variable each axis of a tile runs, followed through a kernel's expressions.

A shape here is a tuple with a label for each axis: the name of the [BLOCK] variable that runs along it, ONE where the
axis is broadcast, None where nothing is known; () is a scalar, and None instead of a tuple is a value nothing is known
about. Whatever is not understood is unknown, so that a label that is there is right.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...source.evaluation import Evaluator
from ...source.triton_source import HINTS, Function

ONE = "1"
_FRESH = "?"
Shape = tuple[str | None, ...] | None
# A tuple of values has a list of shapes.
Found = tuple[str | None, ...] | list[Any] | None

_ELEMENTWISE = {"add", "sub", "mul", "fma", "fdiv", "div_rn", "fast_dividef", "pow"}
_ELEMENTWISE |= {"maximum", "minimum", "clamp", "where"}
# What has the axes of its first argument, whatever else it is given.
_OF_FIRST = {"load", "to", "cast", "to_tensor", "zeros_like", "full_like", "abs", "fabs", "floor", "ceil", *HINTS}
_OF_FIRST |= {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "fast_expf"}
_SCALARS = {"program_id", "num_programs", "cdiv", "min", "max", "int", "float", "len"}
# What may be said of a dot without a change of its axes.
_DOT = {"acc", "input_precision", "allow_tf32", "max_num_imprecise_acc", "out_dtype"}


def shapes_behind(tree: Sequence[Function], function: Function, statement: ast.stmt | None) -> dict[str, Found]:
    """The shape of every variable of a function behind one of its statements; None: at its end.

    In a function that is called, a parameter has what all callers agree on, by its own name where it is a block.
    """
    return _behind(tree, function, statement).scope


def shape_of(text: str, function: Function, shapes: Mapping[str, Found]) -> Shape:
    """The shape of an expression where variables have the given shapes."""
    found = _Axes(function, shapes).visit(ast.parse(text, mode="eval").body)
    return None if isinstance(found, list) else found


def order_of(tile: Shape, blocks_: Sequence[Shape]) -> bool | None:
    """Whether a tile's axes run along two blocks in the other order: None where the labels do not tell."""
    labels = [block[0] if block is not None and len(block) == 1 else None for block in blocks_]
    if tile is None or len(tile) != 2 or len(labels) != 2 or labels[0] == labels[1]:
        return None
    known = {ONE, _FRESH, None}
    straight = [axis == label for axis, label in zip(tile, labels, strict=True) if not {axis, label} & known]
    crossed = [axis == label for axis, label in zip(tile, reversed(labels), strict=True) if not {axis, label} & known]
    return any(crossed) if any(straight) != any(crossed) else None


def _behind(tree: Sequence[Function], function: Function, statement: ast.stmt | None) -> _Axes:
    axes = _Axes(function, _parameters(tree, function))
    axes.run(statement)
    return axes


def _parameters(tree: Sequence[Function], function: Function) -> dict[str, Found]:
    if function is tree[0]:
        # What a kernel is launched with are scalars and pointers.
        return dict.fromkeys(function.parameters, ())
    sites = [(caller, call) for caller in tree for call, called in caller.calls if called is function.jit]
    # Of a function that calls itself nothing is known.
    passed = [{} if caller is function else _passed(tree, caller, call, function) for caller, call in sites]
    return {name: _agreed([each.get(name) for each in passed]) for name in function.parameters}


def _passed(tree: Sequence[Function], caller: Function, call: ast.Call, function: Function) -> dict[str, Found]:
    given = _behind(tree, caller, caller.source.statement(call)).arguments(function, call)
    own = {shape[0]: name for name, shape in given.items() if isinstance(shape, tuple) and len(shape) == 1}
    # A block that is not passed is called after the caller: the function may have one of the same name.
    return {
        name: tuple(axis if axis in (ONE, None) else own.get(axis, f"{caller.name}.{axis}") for axis in shape)
        for name, shape in given.items()
        if isinstance(shape, tuple)
    }


def _agreed(shapes: Sequence[Found]) -> Found:
    """The one shape of several that are all the same; None where they differ, or there is none."""
    return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else None


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


class _Axes(Evaluator[Found]):
    """The shapes of a function's variables and expressions."""

    unknown = None
    counter = ()

    def constant(self, value: Any) -> Found:
        return ()

    def default(self, node: ast.expr | None) -> Found:
        return ()

    def assigned(self, variable: ast.Name, value: Found, source: ast.AST) -> Found:
        # A block made on the spot is called by the variable that holds it.
        return (self.prefix + variable.id,) if value == (_FRESH,) else value

    def parts(self, value: Found, count: int) -> Sequence[Found]:
        return value if isinstance(value, list) and len(value) == count else [None] * count

    def joined(self, name: str, values: Sequence[Found]) -> Found:
        return _agreed(values)

    def result(self, returned: Sequence[Found]) -> Found:
        return _agreed(returned)

    def generic_visit(self, node: ast.AST) -> Found:
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)):
            return _merge([self.visit(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)])
        return None

    def visit_Name(self, node: ast.Name) -> Found:
        if node.id in self.scope:
            return self.scope[node.id]
        return () if node.id not in self.function.assigned and self.function.knows(node.id) else None

    def visit_Tuple(self, node: ast.Tuple) -> Found:
        return [self.visit(part) for part in node.elts]

    def visit_IfExp(self, node: ast.IfExp) -> Found:
        return _agreed([self.visit(node.body), self.visit(node.orelse)])

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

    def builtin(self, name: str, node: ast.Call, receiver: ast.expr | None) -> Found:
        given = node.args if receiver is None else [receiver, *node.args]
        shapes = [self.visit(argument) for argument in given]
        first = shapes[0] if shapes else None
        if name == "arange":
            return (_FRESH,)
        if name in _SCALARS and all(shape == () for shape in shapes):
            return ()
        if name in ("zeros", "full") and given and isinstance(given[0], (ast.List, ast.Tuple)):
            return (None,) * len(given[0].elts)
        if name == "trans":
            return _reversed(first) if len(shapes) == 1 and not node.keywords else None
        if name == "dot":
            return _dot(shapes) if {word.arg for word in node.keywords} <= _DOT else None
        if name in ("sum", "max", "min") and isinstance(first, tuple):
            return _reduced(first, [*given[1:2], *(word.value for word in node.keywords if word.arg == "axis")])
        return first if name in _OF_FIRST else _merge(shapes) if name in _ELEMENTWISE else None


def _reversed(shape: Found) -> Found:
    return shape[::-1] if isinstance(shape, tuple) and len(shape) == 2 else None


def _reduced(shape: tuple[str | None, ...], axis: Sequence[ast.expr]) -> Shape:
    number = axis[0].value if len(axis) == 1 and isinstance(axis[0], ast.Constant) else None
    if not isinstance(number, int) or not 0 <= number < len(shape):
        return None
    return shape[:number] + shape[number + 1 :]


def _dot(shapes: Sequence[Found]) -> Found:
    left, right = (shape if isinstance(shape, tuple) else () for shape in (*shapes, None, None)[:2])
    axes = left[0] if len(left) == 2 else None, right[1] if len(right) == 2 else None
    return axes if any(isinstance(shape, tuple) for shape in shapes[:2]) else None
