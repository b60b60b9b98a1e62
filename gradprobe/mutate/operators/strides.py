"""S1 and S3: another tensor's stride, and a tensor's own strides in the wrong order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby

from ..source import KernelFile
from .change import Change

# The ways in which the field names a stride: stride_qh, stride_q_h, q_stride_h, q_head_stride.
_FORMS = (
    re.compile(r"stride_(?P<tensor>\w*?)_?(?P<axis>[a-z]|\d)"),
    re.compile(r"(?P<tensor>\w+?)_stride_?(?P<axis>[a-z]+|\d)"),
    re.compile(r"(?P<tensor>[a-z0-9]+)_(?P<axis>[a-z]+)_stride"),
)


def stride_of(name: str) -> tuple[str, str] | None:
    """Tensor and axis of a stride's name, the tensor "" where it names none; None for any other name."""
    match = next((match for form in _FORMS if (match := form.fullmatch(name))), None)
    return (match["tensor"], match["axis"]) if match else None


def parameters(function: ast.FunctionDef) -> list[str]:
    spec = function.args
    return [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]


def uses(function: ast.FunctionDef) -> list[ast.Name]:
    """Every use of a name in a function's body, in the order of the text."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    loads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return sorted(loads, key=lambda node: (node.lineno, node.col_offset))


def another_stride(file: KernelFile) -> Iterator[Change]:
    """`h * stride_qh` for `h * stride_doh`: at each use the stride of the first other tensor with that axis."""
    for kernel in file.kernels:
        known = {name: parts for name in parameters(kernel) if (parts := stride_of(name)) and parts[0]}
        for use in uses(kernel):
            if use.id in known:
                tensor, axis = known[use.id]
                others = [name for name, parts in known.items() if parts[1] == axis and parts[0] != tensor]
                if others:
                    yield Change("S1", use, (file.replaced(use, others[0]),))


def own_strides_swapped(file: KernelFile) -> Iterator[Change]:
    """A tensor's own strides in each other's place: the first two of a line."""
    for kernel in file.kernels:
        known = {name: parts for name in parameters(kernel) if (parts := stride_of(name))}
        found = [use for use in uses(kernel) if use.id in known]
        for _, line in groupby(found, key=lambda use: use.lineno):
            by_tensor: dict[str, dict[str, ast.Name]] = {}
            for use in line:
                tensor, axis = known[use.id]
                by_tensor.setdefault(tensor, {}).setdefault(axis, use)
            for axes in by_tensor.values():
                if len(axes) > 1:
                    one, two = list(axes.values())[:2]
                    yield Change("S3", one, (file.replaced(one, two.id), file.replaced(two, one.id)))
