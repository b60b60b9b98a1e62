"""Order: where statements stand, and which pointers a loop moves on."""

from __future__ import annotations

import ast
from itertools import pairwise

from ..kernel_file import called, calls_in, inside, names_in, parameters
from ..text import Edit
from ..triton_source import blocks, bound_in
from .alike import stride_of
from .spots import Spot, Undone


def order_changed(at: Spot) -> Undone:
    """The statement before its neighbour above, or behind the one below."""
    around = blocks(next(at.file.above(at.statement))) if at.is_whole else []  # type: ignore[arg-type]
    for first, second in pairwise(next((block for block in around if at.statement in block), [])):
        are_simple = not blocks(first) and not blocks(second)
        if at.statement in (first, second) and are_simple and _depend(first, second):
            texts = at.file.text_of(first), at.file.text_of(second)
            yield 1.2, (at.file.replaced(first, texts[1]), at.file.replaced(second, texts[0]))


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two statements may matter: what one binds the other has, or both act on memory."""
    if set(bound_in([first])) & names_in(second) or set(bound_in([second])) & names_in(first):
        return True
    stores = [isinstance(each, ast.Expr) for each in (first, second)]
    loads = [bool(calls_in(each, "load")) for each in (first, second)]
    return any(stores) and (stores[0] or loads[0]) and (stores[1] or loads[1])


def moved_out(at: Spot) -> Undone:
    """The last statement of a loop behind it: once, and not in each round."""
    loop = next(iter(at.loops), None)
    if loop is not None and at.is_whole and at.statement is loop.body[-1] and not loop.orelse and loop.body[1:]:
        start, end = at.file.span(loop.body[-2])[1], at.file.span(at.statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * loop.col_offset}{at.file.text_of(at.statement)}"),)


def pointer_advanced(at: Spot) -> Undone:
    """A pointer that a loop reads from moved on in each round, as it moves on others that begin alike."""
    for loop in at.loops:
        moving = [each for each in loop.body if isinstance(each, ast.AugAssign) and _is_step(each)]
        pointers = [pointer for call in calls_in(loop, "load") for pointer in call.args[:1]]
        loaded = {pointer.id for pointer in pointers if isinstance(pointer, ast.Name)}
        standing = at.reads - set(bound_in(loop.body))
        for name in sorted(standing & {*parameters(at.function), *loaded}):
            for step in moving if stride_of(name) is None else ():
                likely = _begin_alike(at, loop, name, step) or (name in loaded and bool(names_in(step.target) & loaded))
                yield at.put_behind(0.5 if likely else 1.5, moving[-1], f"{name} += {at.file.text_of(step.value)}")


def _is_step(statement: ast.AugAssign) -> bool:
    """Whether it adds to a name what is made by no call, as sums of tiles are."""
    is_made = any(called(node) not in ("", "to") for node in ast.walk(statement.value))
    return isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add) and not is_made


def _begin_alike(at: Spot, loop: ast.AST, name: str, step: ast.AugAssign) -> bool:
    """Whether the same is added to both pointers before a loop."""
    starts = {name: "no", at.file.text_of(step.target): "none"}
    for each in inside(at.function, ast.AugAssign):
        if isinstance(each.target, ast.Name) and each.lineno < loop.lineno:  # type: ignore[attr-defined]
            starts[each.target.id] = at.file.text_of(each.value)
    return starts[name] == starts[at.file.text_of(step.target)]
