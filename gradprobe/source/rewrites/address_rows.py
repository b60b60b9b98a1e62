"""Addresses: which names may stand for one another, whose stride, which terms of an offset, what launches pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from ...model.intermediates import in_kernels, plain
from ..kernel_file import Change, KernelFile, by_parameter, called, calls_in, calls_of, inside, names_in, parameters
from ..parameter_names import stride_by_name
from ..triton_source import bound_in, targets_of
from .patterns import Found
from .spots import Spot, Undone, names_read, place_of

# Tensors of one shape each, where V has as many dims as K.
_OF_ONE_SHAPE = (
    frozenset({"q", "o", "do", "dq", "dout", "out", "query", "d_o", "g"}),
    frozenset({"k", "v", "dk", "dv", "key", "value"}),
)
# What kernels call the tensors and tiles that may be taken for one another.
_KINDS = (
    _OF_ONE_SHAPE[0] | _OF_ONE_SHAPE[1],
    frozenset({*in_kernels("LSE", "delta", "maximum of S so far", "sum of exp(S - maximum) so far"), "d"}),
    frozenset({*in_kernels("P", "dP", "dS", "S"), "dpt", "dst", "qkt"}),
    frozenset({"lo", "hi", "start", "end", "begin", "stop"}),
)
# Tensors of as many axes as q, by the names that they usually have: of these strides are planted for one another.
LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
_SCALE = re.compile(r"scale|log2e|ln2|log_2|inv_ln", re.IGNORECASE)
_PARTS = re.compile(r"^((?:b|p|ptr|cur|curr)_)?(.*?)(_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)?$")
_FEW_NAMES = 6
# How much later each further name is tried in the place of one, so that they leave room to what other rows say; and a
# tile for a pointer, or the reverse, which would not run.
_NEXT, _OTHER_KIND = 0.2, 1.5
# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = ("arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to")


@lru_cache(maxsize=4096)
def _parts(name: str) -> tuple[str | None, ...]:
    """What a name says before its core, the core, and what it says behind: a pointer, a block, transposed."""
    match = _PARTS.fullmatch(name)
    return match.groups() if match else (None, name, None)


def core(name: str) -> str:
    """A name without what says that it is a pointer, a block or transposed."""
    return str(_parts(name)[1]).lower()


def is_stride(name: str) -> bool:
    """Whether a name is a stride's, and says of which axis."""
    return bool(stride_by_name(name)[1])


def scales(known: Iterable[str]) -> list[str]:
    """The names that hold a factor of the scores."""
    return [name for name in known if _SCALE.search(name)]


def belongs(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that other names of its expression are of."""
    return is_stride(stride) and stride_by_name(stride)[0] in _tensors(beside)


def _tensors(names: Iterable[str]) -> set[str]:
    return {stride_by_name(name)[0] if is_stride(name) else core(name) for name in names}


def same_when_contiguous(first: str, other: str) -> bool:
    """Whether two names are strides of one axis of tensors that have one shape."""
    (tensor, axis), (of, its) = stride_by_name(first), stride_by_name(other)
    return bool(axis) and axis == its and any({core(tensor), core(of)} <= shape for shape in _OF_ONE_SHAPE)


def others_of(name: str, known: Sequence[str], beside: Iterable[str] = ()) -> list[tuple[float, str]]:
    """Names of the same kind, each with how unlikely it is that it was meant; the likeliest few.

    Args:
        beside: the other names of the expression: a stride belongs to a tensor that stands there.
    """
    near, found = _tensors(each for each in beside if each != name), list[tuple[float, str]]()
    for other in known:
        unlikely = _unlike(name, other, near)
        if other != name and unlikely is not None:
            found.append((unlikely, other))
    found.sort(key=lambda each: each[0])
    return found[:_FEW_NAMES]


def _unlike(name: str, other: str, near: set[str]) -> float | None:
    """How unlikely it is that another name was meant; None where they are of two kinds."""
    (tensor, axis), (of, its) = stride_by_name(name), stride_by_name(other)
    if axis and axis == its:
        return 0.0 if of in near else 1.0
    if axis and its:
        return 1.0 if tensor == of else 1.5 if of in near else None
    if axis or its:
        return None
    if _are_of_kind(name, other) or _differ_in_a_word(name, other) or len(scales((name, other))) == 2:
        return 0.5
    return 1.5 if name.isupper() and other.isupper() and max(len(name), len(other)) <= 3 else None


def _are_of_kind(name: str, other: str) -> bool:
    (before, here, behind), (before_other, there, behind_other) = _parts(name), _parts(other)
    pair = {plain(core(name)), plain(core(other))}
    are_alike = (before, behind) == (before_other, behind_other) and str(here).isupper() == str(there).isupper()
    return are_alike and any(pair <= kind for kind in _KINDS)


def _differ_in_a_word(name: str, other: str) -> bool:
    here, there = (re.findall(r"[A-Z]+|[a-z]+|\d+", each) for each in (name, other))
    differing = [a for a, b in zip(here, there, strict=False) if a != b]
    return len(here) == len(there) > 1 and len(differing) == 1


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


def another_name(at: Spot) -> Undone:
    """Another name of its kind: a stride, an offset, a size, a tensor."""
    own = parameters(at.function)
    for node in at.names:
        above = next(at.file.above(node), None)
        if isinstance(above, ast.Attribute) and above.attr in ("dtype", "type", "device"):
            continue  # nearly all have the same
        for number, (unlikely, other) in enumerate(others_of(node.id, at.scope, at.reads)):
            is_other_kind = at.is_on_device and (node.id in own) != (other in own)
            yield at.put(1.0 + unlikely + _OTHER_KIND * is_other_kind + _NEXT * number, node, other)


def other_tensors_strides(file: KernelFile) -> Iterator[Change]:
    """`*q.stride()` for `*do.stride()`, `q.stride(1)` for `do.stride(1)`: the first other tensor of the function."""
    for host in file.hosts:
        owners = [owner for node in ast.walk(host) if (owner := _owner(node)) and owner.id.lower() in LIKE_Q]
        owners.sort(key=place_of)
        for owner in owners:
            other = next((each.id for each in owners if each.id != owner.id), None)
            if other is not None:
                yield Change("S1", next(file.above(owner)), (file.replaced(owner, other),))


def _owner(node: ast.AST) -> ast.Name | None:
    """Whose stride a call asks for."""
    match node:
        case ast.Call(ast.Attribute(ast.Name() as owner, "stride")):
            return owner
    return None


def owner_meant(at: Spot) -> Undone:
    """`do.stride(1)` for `q.stride(1)` where the parameter of that place is called stride_doh."""
    for kernel in at.file.kernels if not at.is_on_device else ():
        for call in calls_of(at.file, kernel.name):
            for name, value in by_parameter(call, parameters(kernel)):
                owner, tensor = _owner(value), core(stride_by_name(name)[0])
                if owner in at.nodes and owner is not None and tensor not in ("", core(owner.id)):
                    yield from (at.put(-1.0, owner, other) for other in at.scope if core(other) == tensor)


def is_scalar_term(file: KernelFile, found: Found) -> bool:
    """Whether a hole is an index times a stride, of single numbers, in a kernel that says which program it is.

    What the parameters of any other hold is not known: without a vector's term it would not compile.
    """
    term = found["_term"]
    kernel = next(each for each in file.above(found["_it"]) if isinstance(each, ast.FunctionDef))
    if not isinstance(term, ast.BinOp) or not isinstance(term.op, ast.Mult) or not has_strides(term):
        return False
    is_vector = inside(term, ast.Subscript) or names_in(term) & _vectors_of(kernel)
    return not is_vector and bool(calls_in(kernel, "program_id"))


@lru_cache(maxsize=64)
def _vectors_of(kernel: ast.FunctionDef) -> set[str]:
    """The variables that hold a row or a tile: made of tl.arange, or of others that are."""
    found: set[str] = set()
    assigned: list[ast.Assign | ast.AugAssign] = [*inside(kernel, ast.Assign), *inside(kernel, ast.AugAssign)]
    for node in sorted(assigned, key=place_of):
        if names_in(node.value) & found or calls_in(node.value, "arange", "zeros", "full"):
            found = found.union(*map(names_in, targets_of(node)))
    return found


def term_missing(at: Spot) -> Undone:
    """`b * stride_qb + h * stride_qh` for `b * stride_qb`: the index with which others of that axis are multiplied."""
    terms = list(_terms(at)) if at.is_on_device else []
    for node in at.nodes if terms else ():
        above = next(at.file.above(node), None)
        is_alone = node is at.value and isinstance(node, ast.Name) and node.id in parameters(at.function)
        is_sum = isinstance(node, ast.BinOp) and not isinstance(above, ast.BinOp) and has_strides(node)
        for rank, term in terms if is_alone or is_sum else ():
            yield at.put(rank, node, "_it + _term", _term=term)
        is_nothing = isinstance(node, ast.Constant) and node.value == 0 and isinstance(above, ast.AugAssign)
        for rank, term in terms if is_nothing else ():
            yield at.put(rank, node, "_term", _term=term)


def _terms(at: Spot) -> Iterator[tuple[float, str]]:
    """(rank, term) of what an offset here may lack; first an index and a stride that nothing reads."""
    beside, made = {*at.reads, *at.targets}, set(bound_in(at.function.body))
    for stride in filter(is_stride, at.scope):
        is_unread = stride in at.unread
        for index in at.scope if is_unread else ():
            if index in at.unread & made and index != stride and not is_stride(index):
                yield 0.2, f"{index} * {stride}"
        if stride not in beside and belongs(stride, beside):
            for index in _indices(at.file, stride_by_name(stride)[1]):
                if index in at.scope and index not in beside:
                    yield 0.3 if is_unread else 1.8, f"{index} * {stride}"


@lru_cache(maxsize=256)
def _indices(file: KernelFile, axis: str) -> list[str]:
    """The indices that stand before strides of an axis, the two most frequent."""
    found = list[str]()
    for node in file.inside_kernels(ast.BinOp):
        match node.left, node.right:
            case ((ast.Name(index) | ast.Call(ast.Attribute(ast.Name(index), "to"))), ast.Name(stride)):
                if isinstance(node.op, ast.Mult) and stride_by_name(stride)[1] == axis:
                    found.append(index)
    return sorted(set(found), key=lambda index: (-found.count(index), index))[:2]


def has_strides(node: ast.AST) -> bool:
    """Whether strides stand in a statement or a part of it."""
    return any(map(is_stride, names_in(node)))


def wide_parameter_dropped(file: KernelFile) -> Iterator[Change]:
    """A parameter's `: tl.int64` taken away."""
    for kernel in file.kernels:
        for node in inside(kernel, ast.arg):
            if node.annotation is not None and file.text_of(node.annotation).endswith("int64"):
                yield Change("I64", node, (file.replaced(node, node.arg),))
