"""Rows of ranges and order: which tiles are visited, what is allocated, and where statements stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from ..kernel_file import Change, KernelFile, called, calls_in, inside, names_in, parameters
from ..text import Edit
from ..triton_source import blocks, bound_in
from .address_rows import uses
from .alike import stride_of
from .row import Row
from .spots import Spot, Undone

# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = ("arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to")
_EMPTY = {"zeros": "empty", "new_zeros": "new_empty", "zeros_like": "empty_like"}
_ZEROS = {empty: zeros for zeros, empty in _EMPTY.items()}


def range_cut(file: KernelFile) -> Iterator[Change]:
    """A loop over tiles that ends with the last whole one, or begins behind the first."""
    for loop in file.calls("range", "static_range"):
        if len(loop.args) == 3:
            start, stop, step = loop.args
            size = file.text_of(step)
            yield Change("M3", stop, (file.replaced(stop, f"{file.bracketed(stop)} // {size} * {size}"),))
            is_zero = isinstance(start, ast.Constant) and start.value == 0
            behind = size if is_zero else f"{file.text_of(start)} + {size}"
            yield Change("M2", start, (file.replaced(start, behind),))


def range_moved(at: Spot) -> Undone:
    """A loop that begins or ends a step earlier or later, or begins at 0; `x` for `x // B * B`."""
    for node in at.nodes:
        match node:
            case ast.BinOp(ast.BinOp(whole, ast.FloorDiv(), tile), ast.Mult(), right):
                is_cut = at.file.bracketed(tile) == at.file.bracketed(right)
                yield at.put(0.0 if is_cut else 0.5, node, at.file.bracketed(whole))
    for loop in at.calls("range", "static_range"):
        if len(loop.args) in (2, 3):
            start, stop, *steps = loop.args
            step = at.file.bracketed(steps[0]) if steps else "1"
            yield at.put(1.0, start, "0")
            for end in (start, stop):
                words = at.file.bracketed(end)
                if isinstance(end, ast.BinOp):
                    is_step = at.file.bracketed(end.right) == step
                    yield at.put(0.0 if is_step else 0.9, end, at.file.bracketed(end.left))
                yield at.put(1.5, end, f"{words} + {step}")
                yield at.put(1.5, end, f"{words} - {step}")


def last_tile_lost(file: KernelFile) -> Iterator[Change]:
    """So many tiles as fit whole, not as many as are begun."""
    for function in file.functions:
        for call in calls_in(function, "cdiv"):
            if len(call.args) == 2:
                size, block = map(file.bracketed, call.args)
                yield Change("M3", call, (file.replaced(call, f"({size} // {block})"),))


def whole_tiles(at: Spot) -> Undone:
    """As many tiles as are begun, where only whole ones are counted, and the reverse."""
    rank, module = (0.8, "tl") if at.is_on_device else (0.3, "triton")
    text, bracketed = at.file.text_of, at.file.bracketed
    for node in at.nodes:
        match node:
            case ast.Call(args=[size, block]) if called(node) == "cdiv":
                yield at.put(rank, node, f"{_divided(at, size)} // {bracketed(block)}")
            case ast.BinOp(
                ast.BinOp(ast.BinOp(size, ast.Add(), tile), ast.Sub(), ast.Constant(1)), ast.FloorDiv(), block
            ) if bracketed(tile) == bracketed(block):
                yield at.put(rank, node, f"{_divided(at, size)} // {bracketed(block)}")
            case ast.BinOp(size, ast.FloorDiv(), block):
                yield at.put(rank, node, f"{module}.cdiv({text(size)}, {text(block)})")


def _divided(at: Spot, node: ast.expr) -> str:
    """A node as the left side of a division, in brackets where it needs some."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return at.file.text_of(node) if is_product else at.file.bracketed(node)


def blocks_mixed_up(file: KernelFile) -> Iterator[Change]:
    """BLOCK_N for BLOCK_M, BLOCK_SIZE_M1 for BLOCK_SIZE_N1, where they are counted with and not part of a shape."""
    for kernel in file.kernels:
        known = set(parameters(kernel))
        for use in uses(kernel):
            match = re.fullmatch(r"(BLOCK_?(?:SIZE_?)?)([MN])(\d?)", use.id)
            other = f"{match[1]}{'N' if match[2] == 'M' else 'M'}{match[3]}" if match else ""
            if other in known and not any(called(above) in _SHAPES for above in file.above(use)):
                yield Change("M2", use, (file.replaced(use, other),))


def zeros_not_written(file: KernelFile) -> Iterator[Change]:
    """torch.empty for torch.zeros."""
    for host in file.hosts:
        for call in calls_in(host, *_EMPTY):
            yield Change("N2", call, (file.renamed(call, _EMPTY[called(call)]),))


def zeros_written(at: Spot) -> Undone:
    """torch.zeros for torch.empty."""
    yield from ((0.5, (at.file.renamed(call, _ZEROS[called(call)]),)) for call in at.calls(*_ZEROS))


def order_changed(at: Spot) -> Undone:
    """The statement before its neighbour above, or behind the one below."""
    around = blocks(_above(at, at.statement)) if at.is_whole else []
    for first, second in pairwise(next((block for block in around if at.statement in block), [])):
        are_simple = not blocks(first) and not blocks(second)
        if at.statement in (first, second) and are_simple and _depend(first, second):
            texts = at.file.text_of(first), at.file.text_of(second)
            yield 1.2, (at.file.replaced(first, texts[1]), at.file.replaced(second, texts[0]))


def _above(at: Spot, statement: ast.stmt) -> ast.stmt:
    return next(at.file.above(statement))  # type: ignore[return-value]


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two statements may matter: what one binds the other has, or both act on memory."""
    if set(bound_in([first])) & names_in(second) or set(bound_in([second])) & names_in(first):
        return True
    stores = [isinstance(each, ast.Expr) for each in (first, second)]
    loads = [bool(calls_in(each, "load")) for each in (first, second)]
    return any(stores) and (stores[0] or loads[0]) and (stores[1] or loads[1])


def moved_out(at: Spot) -> Undone:
    """The last statement of a loop behind it: once, and not in each round."""
    statement, loop = at.statement, _above(at, at.statement)
    if not at.is_whole or blocks(statement) or not isinstance(loop, (ast.For, ast.While)) or loop.orelse:
        return
    if len(loop.body) > 1 and loop.body[-1] is statement:
        start, end = at.file.span(loop.body[-2])[1], at.file.span(statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * loop.col_offset}{at.file.text_of(statement)}"),)


def pointer_advanced(at: Spot) -> Undone:
    """A pointer that a loop reads from moved on in each round, as it moves on others that begin alike."""
    for loop in _loops(at):
        moving = [each for each in loop.body if isinstance(each, ast.AugAssign) and _is_step(each)]
        pointers = [pointer for call in calls_in(loop, "load") for pointer in call.args[:1]]
        loaded = {pointer.id for pointer in pointers if isinstance(pointer, ast.Name)}
        known = {*parameters(at.function), *loaded}
        standing = (at.reads - set(bound_in(loop.body))) & known
        for name in sorted(name for name in standing if stride_of(name) is None):
            for step, rank in _steps(at, name, moving, loaded if name in loaded else set()).items():
                yield at.put_behind(rank, moving[-1], f"{name} += {step}")


def _loops(at: Spot) -> Iterator[ast.For | ast.While]:
    return (each for each in at.file.above(at.statement) if isinstance(each, (ast.For, ast.While)))


def _is_step(statement: ast.AugAssign) -> bool:
    """Whether it adds to a name what is made by no call, as sums of tiles are."""
    is_made = any(called(node) not in ("", "to") for node in ast.walk(statement.value))
    return isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add) and not is_made


def _steps(at: Spot, name: str, moving: list[ast.AugAssign], alike: set[str]) -> dict[str, float]:
    """What others are moved on by, those first that begin with the same offset, or are used alike."""
    starts = dict[str, str]()
    for each in inside(at.function, ast.AugAssign):
        if isinstance(each.target, ast.Name) and each not in moving:
            starts[each.target.id] = at.file.text_of(each.value)
    found: dict[str, float] = {}
    for each in moving:
        step, other = at.file.text_of(each.value), each.target.id  # type: ignore[union-attr]
        is_alike = other in alike or (name in starts and starts.get(other) == starts[name])
        rank = 0.5 if is_alike else 1.5
        found[step] = min(rank, found.get(step, rank))
    return found


RANGES = (
    Row("range-cut", "a loop leaves tiles out, or takes too many", range_cut, (range_moved,),
        of_hosts=True),
    Row("last-tile-lost", "tiles are counted in whole ones, or as many as are begun", last_tile_lost, (whole_tiles,),
        of_hosts=True),
    Row("blocks-mixed-up", "{old} stands in the place of {new}", blocks_mixed_up, again=1.0),
    Row("zeros-not-written", "memory that nobody wrote is added to", zeros_not_written, (zeros_written,),
        of_hosts=True),
    Row("statement-misplaced", "a statement stands in the wrong place", undoes=(order_changed, moved_out),
        of_hosts=True),
    Row("pointer-left-behind", "a pointer is not moved on as others are", undoes=(pointer_advanced,)),
)  # fmt: skip
