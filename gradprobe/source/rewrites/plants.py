"""What is planted that no pattern says: names that stand for one another, masks and strides that go."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from ..kernel_file import Change, KernelFile, called, calls_in, inside, names_in, parameters
from ..parameter_names import stride_by_name
from ..text import Edit
from ..triton_source import bound_in, targets_of
from .name_kinds import has_strides, is_stride
from .patterns import FAMILIES, Found, is_infinite
from .spots import names_read, place_of

# Tensors of as many axes as q, by the names that they usually have: of these strides are planted for one another.
LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = ("arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to")
# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)


def another_stride(file: KernelFile) -> Iterator[Change]:
    """`h * stride_qh` for `h * stride_doh`: at each use the stride of the first other tensor with that axis."""

    def other(known: list[str], name: str) -> str:
        tensor, axis = stride_by_name(name)
        for each in known if tensor and name in known else ():
            of, its = stride_by_name(each)
            if of not in ("", tensor) and its == axis:
                return each
        return ""

    return _in_place_of(file, "S1", other)


def blocks_mixed_up(file: KernelFile) -> Iterator[Change]:
    """BLOCK_N for BLOCK_M, BLOCK_SIZE_M1 for BLOCK_SIZE_N1, where they are counted with and not part of a shape."""

    def other(known: list[str], name: str) -> str:
        match = re.fullmatch(r"(BLOCK_?(?:SIZE_?)?)([MN])(\d?)", name)
        name = f"{match[1]}{'N' if match[2] == 'M' else 'M'}{match[3]}" if match else ""
        return name if name in known else ""

    return _in_place_of(file, "M2", other)


def _in_place_of(file: KernelFile, fault: str, other: Callable[[list[str], str], str]) -> Iterator[Change]:
    """Another name at each use of one, where there is one among the parameters."""
    for kernel in file.kernels:
        for use in _uses(kernel):
            name = other(parameters(kernel), use.id)
            is_shape = fault == "M2" and any(called(above) in _SHAPES for above in file.above(use))
            if name and not is_shape:
                yield Change(fault, use, (file.replaced(use, name),))


def _uses(kernel: ast.FunctionDef) -> list[ast.Name]:
    """Every use of a name in a function's body, in the order of the text."""
    return sorted((name for statement in kernel.body for name in names_read(statement)), key=place_of)


def own_strides_swapped(file: KernelFile) -> Iterator[Change]:
    """A tensor's own strides in each other's place: the first two of a line."""
    for kernel in file.kernels:
        known, lines = parameters(kernel), dict[tuple[int, str], list[ast.Name]]()
        for use in _uses(kernel):
            if use.id in known and is_stride(use.id):
                lines.setdefault((use.lineno, stride_by_name(use.id)[0]), []).append(use)
        for _, (first, *rest) in sorted(lines.items(), key=lambda each: each[0]):
            second = next((use for use in rest if use.id != first.id), None)
            if second is not None:
                yield Change("S3", first, (file.replaced(first, second.id), file.replaced(second, first.id)))


def other_tensors_strides(file: KernelFile) -> Iterator[Change]:
    """`*q.stride()` for `*do.stride()`, `q.stride(1)` for `do.stride(1)`: the first other tensor of the function."""
    for host in file.hosts:
        owners = [owner for node in ast.walk(host) if (owner := owner_of(node)) and owner.id.lower() in LIKE_Q]
        owners.sort(key=place_of)
        for owner in owners:
            other = next((each.id for each in owners if each.id != owner.id), None)
            if other is not None:
                yield Change("S1", next(file.above(owner)), (file.replaced(owner, other),))


def owner_of(node: ast.AST) -> ast.Name | None:
    """Whose stride a call asks for."""
    match node:
        case ast.Call(ast.Attribute(ast.Name() as owner, "stride")):
            return owner
    return None


def wide_parameter_dropped(file: KernelFile) -> Iterator[Change]:
    """A parameter's `: tl.int64` taken away."""
    for kernel in file.kernels:
        for node in inside(kernel, ast.arg):
            if node.annotation is not None and file.text_of(node.annotation).endswith("int64"):
                yield Change("I64", node, (file.replaced(node, node.arg),))


def mask_dropped(file: KernelFile) -> Iterator[Change]:
    """An access without its `mask=`, and without `other=`, which means nothing alone."""
    for node in file.calls(*FAMILIES["ACCESS"]):
        words = [word for word in node.keywords if word.arg in ("mask", "other")]
        if any(word.arg == "mask" for word in words):
            yield Change("M3", node, tuple(_without(file, node, word) for word in words))


def _without(file: KernelFile, call: ast.Call, word: ast.keyword) -> Edit:
    """A keyword taken away, with the comma before it."""
    start, end = file.span(word)
    before = [other for other in (*call.args, *call.keywords) if file.span(other)[0] < start]
    return Edit(file.operator(max(before, key=file.span), ",").start, end, "")


# --- what patterns ask of what fills their holes


def class_of(file: KernelFile, node: ast.AST) -> str:
    """M3 for a bound of what there is, else M1."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return "M1"
    bound = node.comparators[0]
    is_position = isinstance(bound, ast.Subscript) or "offs" in file.text_of(bound)
    return "M1" if is_position or _SEEN.search(file.text_of(node)) else "M3"


def is_scalar_term(file: KernelFile, found: Found) -> bool:
    """Whether a hole is an index times a stride, of single numbers, in a kernel that says which program it is.

    What the parameters of any other hold is not known: without a vector's term it would not compile.
    """
    term, kernel = found["_term"], _kernel_around(file, found["_it"])
    if not isinstance(term, ast.BinOp) or not isinstance(term.op, ast.Mult) or not has_strides(term):
        return False
    is_vector = inside(term, ast.Subscript) or names_in(term) & vectors_of(kernel)
    return not is_vector and bool(calls_in(kernel, "program_id"))


@lru_cache(maxsize=256)
def vectors_of(kernel: ast.FunctionDef) -> set[str]:
    """The variables that hold a row or a tile: made of tl.arange, or of others that are."""
    found: set[str] = set()
    assigned: list[ast.Assign | ast.AugAssign] = [*inside(kernel, ast.Assign), *inside(kernel, ast.AugAssign)]
    for node in sorted(assigned, key=place_of):
        if names_in(node.value) & found or calls_in(node.value, "arange", "zeros", "full"):
            found = found.union(*map(names_in, targets_of(node)))
    return found


def are_counts(file: KernelFile, found: Found) -> bool:
    """Whether whole numbers are compared."""
    sides = found["_a"], found["_b"]
    is_float = any(isinstance(side, ast.Constant) and isinstance(side.value, float) for side in sides)
    return not is_float and not any(map(is_infinite, sides))


def is_sum(file: KernelFile, found: Found) -> bool:
    """Whether something is added in a loop to what begins as a tile of zeros."""
    kernel = _kernel_around(file, found["_it"])
    tiles = [each for each in inside(kernel, ast.Assign) if called(each.value) in ("zeros", "full")]
    in_loop = any(isinstance(each, ast.For) for each in file.above(found["_it"]))
    return in_loop and file.text_of(found["_a"]) in bound_in(target for each in tiles for target in each.targets)


def has_value(file: KernelFile, found: Found) -> bool:
    """Whether the name that is assigned has a value already."""
    name, line = found["_a"], found["_it"].lineno  # type: ignore[attr-defined]
    before = [each for each in inside(_kernel_around(file, found["_it"]), ast.Assign) if each.lineno < line]
    return isinstance(name, ast.Name) and name.id in bound_in(before)


def _kernel_around(file: KernelFile, node: ast.AST) -> ast.FunctionDef:
    return next(each for each in file.above(node) if isinstance(each, ast.FunctionDef))
