"""What is planted that no pattern says alone."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from ..kernel_file import KernelFile
from ..parameter_names import stride_by_name
from ..syntax import (
    assignments_in,
    bound_in,
    called,
    calls_in,
    inside,
    keywords,
    names_in,
    owner_of,
    parameters,
    place_of,
    targets_of,
)
from ..text import Edit
from .name_kinds import TENSORS, core, has_strides, is_stride
from .patterns import FAMILIES, Found, is_infinite
from .spots import Spot, Undone

# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = {"arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to"}
# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)
# A comma behind an argument: between them brackets that close, ends of lines, comments.
_COMMA = re.compile(r"(?:[\s)\]\\]|#[^\n]*\n)*,")


def another_stride(at: Spot) -> Undone:
    """stride_qh for stride_doh: that of the first other tensor."""
    known = parameters(at.function)
    for use in at.names:
        tensor, axis = stride_by_name(use.id)
        for other in known if tensor and use.id in known else ():
            of, its = stride_by_name(other)
            if of not in ("", tensor) and its == axis:
                yield 0.0, (at.file.replaced(use, other),)
                break


def other_block(at: Spot) -> Undone:
    """BLOCK_N for BLOCK_M, BLOCK_SIZE_M1 for BLOCK_SIZE_N1, where it is no part of a shape."""
    for use in at.names:
        match = re.fullmatch(r"(BLOCK_?(?:SIZE_?)?)([MN])(\d?)", use.id)
        other = f"{match[1]}{'N' if match[2] == 'M' else 'M'}{match[3]}" if match else ""
        if other in parameters(at.function) and _SHAPES.isdisjoint(map(called, at.file.above(use))):
            yield 0.0, (at.file.replaced(use, other),)


def other_owner(at: Spot) -> Undone:
    owners = filter(None, map(owner_of, calls_in(at.function, "stride")))
    named = [each.id for each in sorted(owners, key=place_of) if core(each.id) in TENSORS]
    for owner in filter(None, map(owner_of, at.nodes)):
        if core(owner.id) in TENSORS:
            for other in [each for each in named if each != owner.id][:1]:
                yield 0.0, (at.file.replaced(owner, other),)


def own_strides_swapped(at: Spot) -> Undone:
    known, lines = parameters(at.function), dict[tuple[int, str], list[ast.Name]]()
    for use in at.names:
        if use.id in known and is_stride(use.id):
            lines.setdefault((use.lineno, stride_by_name(use.id)[0]), []).append(use)
    for _, (first, *rest) in sorted(lines.items(), key=lambda each: each[0]):
        second = next((each for each in rest if each.id != first.id), None)
        if second is not None:
            yield 0.0, (at.file.replaced(first, second.id), at.file.replaced(second, first.id))


def wide_parameter_dropped(at: Spot) -> Undone:
    for node in at.nodes:
        match node:
            case ast.arg(name, ast.expr() as kind) if at.file.text_of(kind).endswith("int64"):
                yield 0.0, (at.file.replaced(node, name),)


def mask_dropped(at: Spot) -> Undone:
    """Also `other=`, which means nothing alone."""
    for node in calls_in(at.root, *FAMILIES["ACCESS"]):
        words = [word for word in node.keywords if word.arg in ("mask", "other")]
        if "mask" in keywords(node):
            yield 0.0, tuple(_without(at.file, node, word) for word in words)


def _without(file: KernelFile, call: ast.Call, word: ast.keyword) -> Edit:
    start, end = file.span(word)
    before = max(span for span in map(file.span, (*call.args, *call.keywords)) if span[0] < start)
    comma = _COMMA.match(file.text, before[1])
    return Edit(comma.end() - 1 if comma else start, end, "")


# --- what patterns ask of what fills their holes


def class_of(file: KernelFile, node: ast.AST) -> str:
    """M3 for a bound of what there is, else M1."""
    match node:
        case ast.Compare(ops=[ast.Lt() | ast.LtE(), *_], comparators=[bound, *_]):
            is_seen = "offs" in file.text_of(bound) or _SEEN.search(file.text_of(node))
            return "M1" if is_seen or isinstance(bound, ast.Subscript) else "M3"
    return "M1"


def is_scalar_term(at: Spot, found: Found) -> bool:
    """Whether it is an index times a stride, of single numbers, and not of a helper's parameters."""
    term = found["_term"]
    is_product = isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult)
    if not is_product or not has_strides(term) or inside(term, ast.Subscript):
        return False
    is_helper = not calls_in(at.function, "program_id")
    return not is_helper and names_in(term).isdisjoint(_vectors_of(at.function))


@lru_cache(maxsize=256)
def _vectors_of(kernel: ast.FunctionDef) -> set[str]:
    found: set[str] = set()
    for node in sorted(assignments_in(kernel), key=place_of):
        if names_in(node.value) & found or calls_in(node.value, "arange", "zeros", "full"):
            found = found.union(*map(names_in, targets_of(node)))
    return found


def are_counts(at: Spot, found: Found) -> bool:
    for side in (found["_a"], found["_b"]):
        if is_infinite(side) or isinstance(getattr(side, "value", None), float):
            return False
    return True


def is_sum(at: Spot, found: Found) -> bool:
    name, loop = at.file.text_of(found["_a"]), next(at.file.above(at.statement, ast.For), None)
    for each in inside(at.function, ast.Assign) if loop is not None else ():
        if called(each.value) in ("zeros", "full") and name in bound_in(*each.targets):
            return True
    return False


def has_value(at: Spot, found: Found) -> bool:
    before = [each for each in inside(at.function, ast.Assign) if each.lineno < at.statement.lineno]
    return isinstance(found["_a"], ast.Name) and found["_a"].id in bound_in(*before)


def is_statement(at: Spot, found: Found) -> bool:
    return isinstance(at.statement, ast.Expr) and at.statement.value is found["_it"]


def is_clamp(at: Spot, found: Found) -> bool:
    """Not `tl.max(s, 1)`, which is the largest along an axis."""
    return not at.file.text_of(found["_it"]).partition("(")[0].endswith((".min", ".max"))


def is_no_address(at: Spot, found: Found) -> bool:
    return not has_strides(at.statement)
