"""Rows of addresses: whose stride, which index, which names, and what launches pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

from ..kernel_file import (
    Change,
    KernelFile,
    arguments_of,
    by_parameter,
    calls_in,
    calls_of,
    inside,
    names_in,
    parameters,
)
from ..text import Edit
from ..triton_source import bound_in
from .alike import belongs, core, others_of, stride_of
from .row import Row
from .spots import Edits, Spot, Undone, place_of

# Tensors of as many axes as q, by the names that they usually have; only these may stand for one another.
_LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
_LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
# How much later each further name is tried in the place of one, so that they leave room to what other rows say; how
# much later another tensor is asked for its dtype; and a tile for a pointer, or the reverse, which would not run.
_NEXT, _SAME_DTYPE, _OTHER_KIND = 0.2, 2.5, 1.5


def uses(function: ast.FunctionDef) -> list[ast.Name]:
    """Every use of a name in a function's body, in the order of the text."""
    names = [name for statement in function.body for name in inside(statement, ast.Name)]
    return sorted((name for name in names if isinstance(name.ctx, ast.Load)), key=place_of)


def _strides(kernel: ast.FunctionDef) -> dict[str, tuple[str, str]]:
    """Tensor and axis of each parameter that is a stride."""
    return {name: parts for name in parameters(kernel) if (parts := stride_of(name))}


def another_stride(file: KernelFile) -> Iterator[Change]:
    """`h * stride_qh` for `h * stride_doh`: at each use the stride of the first other tensor with that axis."""
    for kernel in file.kernels:
        known = {name: parts for name, parts in _strides(kernel).items() if parts[0]}
        for use in (use for use in uses(kernel) if use.id in known):
            tensor, axis = known[use.id]
            others = [name for name, parts in known.items() if parts[1] == axis and parts[0] != tensor]
            if others:
                yield Change("S1", use, (file.replaced(use, others[0]),))


def another_name(at: Spot) -> Undone:
    """Another name of its kind: a stride, an offset, a size, a tensor."""
    own = set(parameters(at.function))
    for node in at.names:
        above = next(at.file.above(node), None)
        is_called = (isinstance(above, ast.Call) and above.func is node) or node.id in ("tl", "torch", "triton", "math")
        if is_called:
            continue
        is_dtype = isinstance(above, ast.Attribute) and above.attr in ("dtype", "type", "device")
        for number, (unlike, other) in enumerate(others_of(node.id, at.scope, [each.id for each in at.names])):
            kind = _OTHER_KIND if at.is_on_device and (node.id in own) != (other in own) else 0.0
            late = kind + (_SAME_DTYPE if is_dtype else 0.0)
            yield at.put(1.0 + unlike + late + _NEXT * number, node, other)


def stride_passed(at: Spot) -> Undone:
    """`h * stride_doh` for `h * stride_qh` where nothing is called so yet: with the parameter, and do.stride(1)."""
    if not at.is_on_device:
        return
    known = _strides(at.function)
    here = {parts[0] for name in at.reads if (parts := stride_of(name))}
    for node in at.names:
        tensor, axis = stride_of(node.id) or ("", "")
        for anchor, own in known.items():
            if not axis or own[0] in ("", tensor) or own[0] not in here:
                continue
            # As the field writes it there: stride_dob -> stride_doh.
            name = re.sub(f"{re.escape(own[1])}$", axis, anchor)
            if stride_of(name) == (own[0], axis) and name not in parameters(at.function):
                passed = _passed_besides(at.file, at.function, anchor, node.id, name)
                yield from [(1.3, (at.file.replaced(node, name), *passed))] if passed else []


def _passed_besides(file: KernelFile, kernel: ast.FunctionDef, anchor: str, foreign: str, name: str) -> Edits:
    """A parameter and what every launch passes for it, beside another one's; none where one does not tell."""
    passed = list[Edit]()
    for call in calls_of(file, kernel.name):
        given = arguments_of(call, kernel)
        owners, axes = (_asked(file, given.get(each)) for each in (anchor, foreign))
        if not owners or not axes:
            return ()
        passed.append(_more_passed(file, given[anchor], name, f"{owners[0]}({axes[1]})"))
    return (_more_taken(file, kernel, anchor, name), *passed) if passed else ()


def _asked(file: KernelFile, argument: ast.expr | ast.keyword | None) -> tuple[str, str] | None:
    """`do.stride` and 1 of an argument `do.stride(1)`."""
    value = argument.value if isinstance(argument, ast.keyword) else argument
    words = re.fullmatch(r"(.*\.stride)\((-?\d)\)", file.text_of(value)) if value is not None else None
    return (words[1], words[2]) if words else None


def _more_taken(file: KernelFile, kernel: ast.FunctionDef, anchor: str, name: str) -> Edit:
    """One more parameter behind another."""
    node = next(each for each in (*kernel.args.args, *kernel.args.kwonlyargs) if each.arg == anchor)
    end = file.span(node)[1]
    return Edit(end, end, f", {name}")


def _more_passed(file: KernelFile, beside: ast.expr | ast.keyword, name: str, text: str) -> Edit:
    """What is passed for it, behind another one's argument and in the same way."""
    end = file.span(beside)[1]
    return Edit(end, end, f", {name}={text}" if isinstance(beside, ast.keyword) else f", {text}")


def other_tensors_strides(file: KernelFile) -> Iterator[Change]:
    """`*q.stride()` for `*do.stride()`, `q.stride(1)` for `do.stride(1)`: the first other tensor of the function."""
    for host in file.hosts:
        owners = [owner for node in ast.walk(host) if (owner := _owner(node)) and owner.id.lower() in _LIKE_Q]
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
    """`do.stride(1)`, `*do.stride()` for another tensor's, where the parameter of that place is called stride_doh."""
    for kernel in at.file.kernels if not at.is_on_device else ():
        for call in calls_of(at.file, kernel.name):
            for node, tensor in _owners(call, parameters(kernel)):
                if node in at.nodes and core(node.id) != tensor:
                    yield from (at.put(-1.0, node, name) for name in at.scope if core(name) == tensor)


def _owners(call: ast.Call, names: list[str]) -> Iterator[tuple[ast.Name, str]]:
    """Whose strides a call passes, each with the tensor that the parameters of that place are called after."""
    for name, value in by_parameter(call, names):
        owner, parts = _owner(value), stride_of(name)
        if owner is not None and parts is not None:
            yield owner, core(parts[0])


def strides_of_what_is_passed(at: Spot) -> Undone:
    """`scaled.stride(i)` for each `k.stride(i)` of a launch that passes what was made of k, and not k itself."""
    for kernel in at.file.kernels if not at.is_on_device else ():
        for call in calls_of(at.file, kernel.name):
            given = [*call.args, *(word.value for word in call.keywords)]
            passed = [each.id for each in given if isinstance(each, ast.Name)]
            owners = [owner for each in given if (owner := _owner(each)) and owner.id not in passed]
            for name in passed:
                for of in made_of(at.function, name) & {owner.id for owner in owners}:
                    others = [owner for owner in owners if owner.id == of]
                    if any(owner in at.nodes for owner in others):
                        yield -1.0, tuple(at.file.replaced(owner, name) for owner in others)


def made_of(function: ast.FunctionDef, name: str) -> set[str]:
    """The names in what a function assigns to one."""
    values = [node.value for node in inside(function, ast.Assign) if name in bound_in([node])]
    return set().union(*map(names_in, values)) - {name}


def own_strides_swapped(file: KernelFile) -> Iterator[Change]:
    """A tensor's own strides in each other's place: the first two of a line."""
    for kernel in file.kernels:
        known = _strides(kernel)
        for _, line in groupby((use for use in uses(kernel) if use.id in known), key=lambda use: use.lineno):
            by_tensor: dict[str, dict[str, ast.Name]] = {}
            for use in line:
                tensor, axis = known[use.id]
                by_tensor.setdefault(tensor, {}).setdefault(axis, use)
            for axes in by_tensor.values():
                if len(axes) > 1:
                    first, second = list(axes.values())[:2]
                    yield Change("S3", first, (file.replaced(first, second.id), file.replaced(second, first.id)))


def term_dropped(file: KernelFile) -> Iterator[Change]:
    """`b * stride_lseb` for `b * stride_lseb + h * stride_lseh`: a head's, batch's or sequence's term is missing."""
    for kernel in file.kernels:
        nodes = list(ast.walk(kernel))
        if not calls_in(kernel, "program_id"):
            continue  # what its parameters hold is not known: without a vector's term it would not compile
        vectors = vectors_of(kernel)
        for node in nodes:
            match node:
                case ast.BinOp(left, ast.Add(), right):
                    for lost, kept in zip((right, left), file.operands(node, "+"), strict=True):
                        if _is_scalar_term(lost, vectors):
                            yield Change("S3", node, (file.replaced(node, kept),))
                case ast.AugAssign(op=ast.Add(), value=value) if _is_scalar_term(value, vectors):
                    yield Change("S3", node, (file.replaced(value, "0"),))


def _is_scalar_term(node: ast.expr, vectors: set[str]) -> bool:
    """Whether a node is an index times a stride, of single numbers."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    return not inside(node, ast.Subscript) and not names_in(node) & vectors and has_strides(node)


def vectors_of(kernel: ast.FunctionDef) -> set[str]:
    """The variables that hold a row or a tile: made of tl.arange, or of others that are."""
    found: set[str] = set()
    assigned: list[ast.Assign | ast.AugAssign] = [*inside(kernel, ast.Assign), *inside(kernel, ast.AugAssign)]
    for node in sorted(assigned, key=place_of):
        if names_in(node.value) & found or calls_in(node.value, "arange", "zeros", "full"):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = found.union(*map(names_in, targets))
    return found


def term_missing(at: Spot) -> Undone:
    """`b * stride_qb + h * stride_qh` for `b * stride_qb`: the index with which others of that axis are multiplied."""
    if not at.is_on_device:
        return
    beside = {*at.reads, *at.targets}
    terms = list[tuple[float, str]]()
    for name, (_, axis) in _strides(at.function).items():
        if name not in beside and belongs(name, beside):
            likely = 0.3 if name in at.unread else 1.8
            indices = [index for index in _indices(at.file, axis) if index in at.scope and index not in beside]
            terms += [(likely, f"{index} * {name}") for index in indices]
    # An index and a stride that nothing reads stood together.
    left = [name for name in at.scope if name in at.unread and name not in beside]
    made = set(bound_in(at.function.body))
    for stride in filter(stride_of, left):
        terms += [(0.2, f"{name} * {stride}") for name in left if name in made and name != stride]
    for node in _sums(at):
        end = at.file.span(node)[1]
        for rank, term in terms:
            is_nothing = isinstance(node, ast.Constant)
            yield at.put(rank, node, term) if is_nothing else (rank, (Edit(end, end, f" + {term}"),))


@lru_cache(maxsize=256)
def _indices(file: KernelFile, axis: str) -> list[str]:
    """The indices that stand before strides of an axis, the two most frequent."""
    found = list[str]()
    for node in file.inside_kernels(ast.BinOp):
        match node:
            case ast.BinOp(
                ast.Name(index) | ast.Call(ast.Attribute(ast.Name(index), "to")), ast.Mult(), ast.Name(stride)
            ):
                parts = stride_of(stride)
                found += [index] if parts is not None and parts[1] == axis else []
    return sorted(set(found), key=lambda index: (-found.count(index), index))[:2]


def _sums(at: Spot) -> Iterator[ast.expr]:
    """Where a term may be missing: whole sums with a stride, a product or a pointer alone, and a 0 that is added."""
    value = getattr(at.statement, "value", None)
    is_pointer = isinstance(value, ast.Name) and value.id in parameters(at.function)
    is_nothing = isinstance(at.statement, ast.AugAssign) and isinstance(value, ast.Constant) and value.value == 0
    if value is not None and (is_pointer or is_nothing):
        yield value
    for node in at.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            is_part = isinstance(next(at.file.above(node), None), ast.BinOp)
            if not is_part and has_strides(node):
                yield node


def has_strides(node: ast.AST) -> bool:
    """Whether strides stand in a statement or a part of it."""
    return any(map(stride_of, names_in(node)))


def divisions_mixed_up(file: KernelFile) -> Iterator[Change]:
    """`//` for `%` and the reverse, where an index is taken apart; `h % group` for `h // group`."""
    for node in file.inside_kernels(ast.BinOp):
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if divides and isinstance(node.right, ast.Name) and not node.right.id.isupper():
            sign, other = ("//", "%") if isinstance(node.op, ast.FloorDiv) else ("%", "//")
            yield Change("S3", node, (replace(file.operator(node.left, sign), text=other),))


def wide_offset_dropped(file: KernelFile) -> Iterator[Change]:
    """`.to(tl.int64)` taken away, and a parameter's `: tl.int64`."""
    for kernel in file.kernels:
        for node in ast.walk(kernel):
            match node:
                case ast.Call(ast.Attribute(value, "to"), [ast.Attribute(attr="int64"), *_]):
                    yield Change("I64", node, (Edit(file.span(value)[1], file.span(node)[1], ""),))
                case ast.arg(name, ast.Attribute(attr="int64")):
                    start, end = file.span(node)
                    yield Change("I64", node, (Edit(start + len(name), end, ""),))


ADDRESSES = (
    Row("another-stride", "{old} stands in the place of {new}", another_stride, (another_name, stride_passed),
        again=1.0, of_hosts=True),
    Row("other-tensors-strides", "the strides of {old} are passed for those of {new}", other_tensors_strides,
        (owner_meant, strides_of_what_is_passed), again=1.0, of_hosts=True),
    Row("own-strides-swapped", "two strides of one tensor stand in each other's place", own_strides_swapped, again=0.7),
    Row("term-dropped", "an offset lacks a term: {new}", term_dropped, (term_missing,)),
    Row("divisions-mixed-up", "an index is taken apart by {old} and not by {new}", divisions_mixed_up, again=0.7),
    Row("wide-offset-dropped", "an offset of 32 bits overflows", wide_offset_dropped),
)  # fmt: skip
