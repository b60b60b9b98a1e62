"""Rules of places: names, offsets, ranges, calls, and where a statement stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from ..kernel_file import called
from ..operators.addresses import parameters, stride_of
from ..text import Edit
from ..triton_source import blocks, bound_in
from .alike import others_of, scales
from .repairs import Repairs, Undone
from .spots import Spot
from .unread import term_added

_EMPTY = {"empty": "zeros", "new_empty": "new_zeros", "empty_like": "zeros_like"}
_ONE_OF = ("min", "max", "minimum", "maximum")
# How much later each further name is tried in the place of one, so that they leave room to what other rules say.
_NEXT = 0.2
# How much later another tensor is asked for its dtype.
_SAME_DTYPE = 2.5


def as_planted(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """What mutate itself would make of the statement."""
    spans = [by.file.span(root) for root in spot.roots]
    for rank, edits in by.planted.get(spot.statement, ()):
        if all(any(start <= edit.start <= edit.end <= end for start, end in spans) for edit in edits):
            yield rank, edits


def name_swapped(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """Another name of its kind: a stride, an offset, a size, a tensor."""
    beside = [node.id for node in spot.names]
    for node in spot.names:
        if not _is_called(by, node):
            own = set(parameters(spot.function))
            late = _SAME_DTYPE if _is_asked_for_dtype(by, node) else 0.0
            for number, (unlike, other) in enumerate(others_of(node.id, scope, beside)):
                # A tile for a pointer, or the reverse, would not run.
                other_kind = 1.5 if (node.id in own) != (other in own) and spot.function in by.file.kernels else 0.0
                yield 1.0 + unlike + late + other_kind + _NEXT * number, by.replaced(node, other)


def _is_asked_for_dtype(by: Repairs, node: ast.Name) -> bool:
    """`Q.dtype`: in a case all tensors have one."""
    above = next(by.file.above(node), None)
    return isinstance(above, ast.Attribute) and above.attr in ("dtype", "type", "device")


def _is_called(by: Repairs, node: ast.Name) -> bool:
    above = next(by.file.above(node), None)
    return (isinstance(above, ast.Call) and above.func is node) or node.id in ("tl", "torch", "triton", "math")


def operand_dropped(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """One side of an operator alone; `x` for `x // B * B`, which leaves out a partial tile."""
    for node in by.nodes(spot):
        if isinstance(node, ast.BinOp):
            inner = node.left
            if isinstance(node.op, ast.Mult) and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.FloorDiv):
                is_whole = by.bracketed_text(inner.right) == by.bracketed_text(node.right)
                yield 0.0 if is_whole else 0.5, by.replaced(node, by.bracketed_text(inner.left))
            is_factor = isinstance(node.right, ast.Name) and node.right.id in scales(scope)
            # One too many, or counted from where a loop begins.
            is_first = by.bracketed_text(node.right) in {"1", *_begins(by, spot)}
            yield 1.0 if is_first else 1.4 if is_factor else 2.0, by.replaced(node, by.side(node, node.left))
            if isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
                yield 2.0, by.replaced(node, by.side(node, node.right))
        elif isinstance(node, ast.UnaryOp):
            yield 2.0, by.replaced(node, by.bracketed_text(node.operand))


def _begins(by: Repairs, spot: Spot) -> set[str]:
    """Where the loops around a statement begin, in words."""
    loops = [above.iter for above in by.file.above(spot.statement) if isinstance(above, ast.For)]
    return {by.bracketed_text(each.args[0]) for each in loops if isinstance(each, ast.Call) and len(each.args) > 1}


def call_undone(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """One argument of min, max or where; a cast taken away; zeros for empty; another axis of a stride."""
    for node in by.nodes(spot):
        name = called(node)
        if not isinstance(node, ast.Call) or not name:
            continue
        if name in _ONE_OF and len(node.args) == 2:
            # A host clamps a size, once or twice; a kernel has them everywhere.
            rank = 1.0 if spot.function in by.file.kernels else 0.1
            yield from ((rank, by.replaced(node, by.bracketed_text(each))) for each in node.args)
        elif name == "where" and len(node.args) == 3:
            test, one, other = map(by.file.text_of, node.args)
            head = by.file.text_of(node.func)
            yield 1.5, by.replaced(node, by.bracketed_text(node.args[1]))
            yield 2.0, by.replaced(node, f"{head}({test}, {other}, {one})")
        elif name == "to" and isinstance(node.func, ast.Attribute):
            yield 1.0, by.replaced(node, by.file.text_of(node.func.value))
            inner = node.func.value
            if called(inner) == "to" and isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                yield -0.3, by.replaced(node, by.file.text_of(inner.func.value))
        elif name in _EMPTY:
            yield 0.5, by.replaced(node.func, by.file.text_of(node.func).removesuffix(name) + _EMPTY[name])
        elif name == "stride" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            others = [at for at in range(4) if at != node.args[0].value]
            yield from ((1.5, by.replaced(node.args[0], str(at))) for at in others)


def whole_tiles(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """As many tiles as are begun, where only whole ones are counted, and the reverse."""
    on_device = spot.function in by.file.kernels
    rank = 0.8 if on_device else 0.3
    for node in by.nodes(spot):
        begun = _begun(by, node)
        if begun is not None:
            yield rank, by.replaced(node, f"{begun[0]} // {begun[1]}")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            cdiv = (
                f"{'tl' if on_device else 'triton'}.cdiv({by.file.text_of(node.left)}, {by.file.text_of(node.right)})"
            )
            yield rank, by.replaced(node, cdiv)


def _begun(by: Repairs, node: ast.AST) -> tuple[str, str] | None:
    """What is divided by what and rounded up: `cdiv(x, B)`, `(x + B - 1) // B`."""
    if isinstance(node, ast.Call) and called(node) == "cdiv" and len(node.args) == 2:
        return _divided(by, node.args[0]), by.bracketed_text(node.args[1])
    match node:
        case ast.BinOp(
            ast.BinOp(ast.BinOp(left, ast.Add(), tile), ast.Sub(), ast.Constant(1)), ast.FloorDiv(), right
        ) if by.bracketed_text(tile) == by.bracketed_text(right):
            return _divided(by, left), by.bracketed_text(right)
    return None


def _divided(by: Repairs, node: ast.expr) -> str:
    """A node as the left side of a division, in brackets where it needs some."""
    return (
        by.file.text_of(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        else by.bracketed_text(node)
    )


def range_moved(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A loop that begins or ends a step earlier or later, or begins at 0."""
    for node in by.nodes(spot):
        if called(node) in ("range", "static_range") and isinstance(node, ast.Call) and len(node.args) in (2, 3):
            start, stop, step = node.args[0], node.args[1], by.bracketed_text(node.args[2]) if node.args[2:] else "1"
            yield 1.0, by.replaced(start, "0")
            for end in (start, stop):
                if isinstance(end, ast.BinOp):
                    yield (
                        0.0 if by.bracketed_text(end.right) == step else 0.9,
                        by.replaced(end, by.bracketed_text(end.left)),
                    )
                yield 1.5, by.replaced(end, f"{by.bracketed_text(end)} + {step}")
                yield 1.5, by.replaced(end, f"{by.bracketed_text(end)} - {step}")


def order_changed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """The statement before its neighbour above, or behind the one below."""
    statement = spot.statement
    if spot.roots != (statement,):
        return
    above = next(by.file.above(statement))
    block = next((each for each in blocks(above) if statement in each), [])  # type: ignore[arg-type]
    at = block.index(statement) if block else 0
    pairs = [(block[at - 1], statement)] if at else []
    pairs += [(statement, block[at + 1])] if at + 1 < len(block) else []
    for first, second in pairs:
        if not blocks(first) and not blocks(second) and _depend(first, second):
            one, two = by.file.text_of(first), by.file.text_of(second)
            yield 1.2, (by.file.replaced(first, two), by.file.replaced(second, one))


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two statements may matter: what one binds the other has, or both act on memory."""
    acting = [
        isinstance(each, ast.Expr) or any(called(n) == "load" for n in ast.walk(each)) for each in (first, second)
    ]
    names = [{node.id for node in ast.walk(each) if isinstance(node, ast.Name)} for each in (first, second)]
    shared = set(bound_in([first])) & names[1] or set(bound_in([second])) & names[0]
    return bool(shared) or (all(acting) and any(isinstance(each, ast.Expr) for each in (first, second)))


def moved_out(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """The last statement of a loop behind it: once, and not in each round."""
    statement = spot.statement
    loop = next(by.file.above(statement))
    if spot.roots != (statement,) or blocks(statement) or not isinstance(loop, (ast.For, ast.While)):
        return
    if len(loop.body) > 1 and loop.body[-1] is statement and not loop.orelse:
        start, end = by.file.span(loop.body[-2])[1], by.file.span(statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * loop.col_offset}{by.file.text_of(statement)}"),)


def pointer_advanced(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A pointer that a loop reads from moved on in each round, as it moves on others that begin alike."""
    read = {node.id for node in spot.names}
    for loop in by.file.above(spot.statement):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        moving = [each for each in loop.body if _is_move(each)]
        standing = (read - set(bound_in(loop.body))) & {*parameters(spot.function), *_loaded_from(loop)}
        for name in sorted(name for name in standing if stride_of(name) is None):
            alike = _loaded_from(loop) if name in _loaded_from(loop) else set()
            for step, rank in _steps(by, spot.function, name, moving, alike).items():
                end = by.file.span(moving[-1])[1]
                yield rank, (Edit(end, end, f"\n{' ' * moving[-1].col_offset}{name} += {step}"),)


def _loaded_from(loop: ast.For | ast.While) -> set[str]:
    """The names that a loop loads from as they are."""
    loads = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and called(node) == "load" and node.args]
    return {node.args[0].id for node in loads if isinstance(node.args[0], ast.Name)}


def pointer_begun(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A pointer moved on before its loop, as another is, in the words in which the loop moves it on."""
    read = {node.id for node in spot.names}
    for loop in by.file.above(spot.statement):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        within = {name: each for each in loop.body if (name := _moved(each))}
        around = next(block for block in blocks(next(by.file.above(loop))) if loop in block)  # type: ignore[arg-type]
        begun = {name: each for each in around[: around.index(loop)] if (name := _moved(each)) in within}
        for name in sorted((read & within.keys()) - begun.keys()):
            for other, each in begun.items():
                start, step = _apart(each, within[other])
                if start and step:
                    words = re.sub(rf"\b{step}\b", start, by.file.text_of(within[name]))
                    end = by.file.span(each)[1]
                    yield 0.7, (Edit(end, end, f"\n{' ' * each.col_offset}{words}"),)


def _moved(statement: ast.stmt) -> str:
    """The name that a statement makes of itself: `p += step`, `p = tl.advance(p, step)`."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if not isinstance(target, ast.Name) or not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return ""
    is_moved = isinstance(statement, ast.AugAssign) or (
        called(statement.value) == "advance" and target.id in _names_in(statement.value)
    )
    return target.id if is_moved else ""


def _apart(one: ast.stmt, other: ast.stmt) -> tuple[str, str]:
    """The only name that each of two statements has and the other has not; "" where there are several, or none."""
    here, there = _names_in(one), _names_in(other)
    own, its = here - there, there - here
    return (own.pop(), its.pop()) if len(own) == len(its) == 1 else ("", "")


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_move(statement: ast.stmt) -> bool:
    """Whether it adds to a name what is made by no call, as sums of tiles are."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return False
    is_made = any(called(node) not in (None, "", "to") for node in ast.walk(statement.value))
    return isinstance(statement.op, ast.Add) and not is_made


def _steps(
    by: Repairs, function: ast.FunctionDef, name: str, moving: Sequence[ast.stmt], alike: Collection[str]
) -> dict[str, float]:
    """What others are moved on by, those first that begin with the same offset, or are used alike."""
    starts = {
        each.target.id: by.file.text_of(each.value)
        for each in ast.walk(function)
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name) and each not in moving
    }
    found: dict[str, float] = {}
    for each in moving:
        step, other = by.file.text_of(each.value), each.target.id  # type: ignore[attr-defined]
        is_alike = other in alike or (name in starts and starts.get(other) == starts[name])
        rank = 0.5 if is_alike else 1.5
        found[step] = min(rank, found.get(step, rank))
    return found


def made_wide(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """An index widened to 64 bits before it is multiplied by a stride."""
    for node in by.nodes(spot):
        is_product = isinstance(getattr(node, "op", None), ast.Mult)
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) and is_product else (None, None)
        if isinstance(left, ast.Name) and isinstance(right, ast.Name) and "stride" in right.id:
            yield 3.0, by.replaced(left, f"{left.id}.to(tl.int64)")


def term_missing(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """An index times a stride that an offset lacks."""
    yield from term_added(by.file, spot, scope)
