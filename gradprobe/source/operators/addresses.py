"""S1 and S3: another tensor's stride, and a tensor's own strides in the wrong order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from ..kernel_file import Change, KernelFile, called

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


def term_dropped(file: KernelFile) -> Iterator[Change]:
    """`b * stride_lseb` for `b * stride_lseb + h * stride_lseh`: a head's, batch's or sequence's term is missing."""
    for kernel in file.kernels:
        nodes = list(ast.walk(kernel))
        if not any(called(node) == "program_id" for node in nodes):
            continue  # what its parameters hold is not known: without a vector's term it would not compile
        vectors = _vectors(kernel)
        for node in nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                for lost, kept in zip((node.right, node.left), file.operands(node, "+"), strict=True):
                    if _is_scalar_term(lost, vectors):
                        yield Change("S3", node, (file.replaced(node, kept),))
            is_sum = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
            if isinstance(node, ast.AugAssign) and is_sum and _is_scalar_term(node.value, vectors):
                yield Change("S3", node, (file.replaced(node.value, "0"),))


def divisions_mixed_up(file: KernelFile) -> Iterator[Change]:
    """`//` for `%` and the reverse, where an index is taken apart; `h % group` for `h // group`."""
    for node in file.inside_kernels(ast.BinOp):
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if divides and isinstance(node.right, ast.Name) and not node.right.id.isupper():
            sign, other = ("//", "%") if isinstance(node.op, ast.FloorDiv) else ("%", "//")
            yield Change("S3", node, (replace(file.operator(node.left, sign), text=other),))


def _is_scalar_term(node: ast.expr, vectors: set[str]) -> bool:
    """Whether a node is an index times a stride, of single numbers."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    tiles = any(isinstance(inner, ast.Subscript) for inner in ast.walk(node))
    return not tiles and not names & vectors and any(stride_of(name) for name in names)


def _vectors(kernel: ast.FunctionDef) -> set[str]:
    """The variables that hold a row or a tile: made of tl.arange, or of others that are."""
    found: set[str] = set()
    assigned = [node for node in ast.walk(kernel) if isinstance(node, (ast.Assign, ast.AugAssign))]
    for node in sorted(assigned, key=lambda node: node.lineno):
        inside = list(ast.walk(node.value))
        names = {inner.id for inner in inside if isinstance(inner, ast.Name)}
        if names & found or any(called(inner) in ("arange", "zeros", "full") for inner in inside):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return found


# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = ("arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to")


def range_cut(file: KernelFile) -> Iterator[Change]:
    """A loop over tiles that ends with the last whole one, or begins behind the first."""
    for loop in file.calls("range", "static_range"):
        if len(loop.args) == 3:
            start, stop, step = loop.args
            size = file.text_of(step)
            yield Change("M3", stop, (file.replaced(stop, f"{_whole(file, stop)} // {size} * {size}"),))
            from_zero = isinstance(start, ast.Constant) and start.value == 0
            behind = size if from_zero else f"{file.text_of(start)} + {size}"
            yield Change("M2", start, (file.replaced(start, behind),))


def last_tile_lost(file: KernelFile) -> Iterator[Change]:
    """So many tiles as fit whole, not as many as are begun."""
    for function in file.functions:
        for node in ast.walk(function):
            if called(node) == "cdiv" and isinstance(node, ast.Call) and len(node.args) == 2:
                size, block = node.args
                words = f"({_whole(file, size)} // {_whole(file, block)})"
                yield Change("M3", node, (file.replaced(node, words),))


def blocks_mixed_up(file: KernelFile) -> Iterator[Change]:
    """BLOCK_N for BLOCK_M, BLOCK_SIZE_M1 for BLOCK_SIZE_N1, where they are counted with and not part of a shape."""
    for kernel in file.kernels:
        known = set(parameters(kernel))
        for use in uses(kernel):
            match = re.fullmatch(r"(BLOCK_?(?:SIZE_?)?)([MN])(\d?)", use.id)
            other = f"{match[1]}{'N' if match[2] == 'M' else 'M'}{match[3]}" if match else ""
            if other in known and not any(called(above) in _SHAPES for above in file.above(use)):
                yield Change("M2", use, (file.replaced(use, other),))


def _whole(file: KernelFile, node: ast.expr) -> str:
    """Words that may stand beside any operator."""
    words = file.text_of(node)
    return words if isinstance(node, (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript)) else f"({words})"


# Tensors of as many axes as q, by the names that they usually have; only these may stand for one another.
_LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
_LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
_EMPTY = {"zeros": "empty", "new_zeros": "new_empty", "zeros_like": "empty_like"}


def other_tensors_strides(file: KernelFile) -> Iterator[Change]:
    """`*q.stride()` for `*do.stride()`, `q.stride(1)` for `do.stride(1)`: the first other tensor of the function."""
    for host in file.hosts:
        found = [node for node in ast.walk(host) if _owner(node) is not None]
        found.sort(key=lambda node: (node.lineno, node.col_offset))  # type: ignore[attr-defined]
        names = list(dict.fromkeys(owner.id for node in found if (owner := _owner(node))))
        for node in found:
            owner = _owner(node)
            assert owner is not None
            other = next((name for name in names if name != owner.id), None)
            if other is not None:
                yield Change("S1", node, (file.replaced(owner, other),))


def zeros_not_written(file: KernelFile) -> Iterator[Change]:
    """torch.empty for torch.zeros."""
    for host in file.hosts:
        for node in ast.walk(host):
            if isinstance(node, ast.Call) and called(node) in _EMPTY:
                zeros = called(node)
                words = file.text_of(node.func).removesuffix(zeros) + _EMPTY[zeros]
                yield Change("N2", node, (file.replaced(node.func, words),))


def _owner(node: ast.AST) -> ast.Name | None:
    """Whose stride a call asks for."""
    if isinstance(node, ast.Call) and called(node) == "stride" and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id.lower() in _LIKE_Q:
            return owner
    return None
