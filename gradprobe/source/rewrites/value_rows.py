"""Rows of values: factors, signs, delta, logarithms, transposes, sums and roundings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from ...model.intermediates import in_kernels, plain
from ..kernel_file import Change, KernelFile, called, calls_in, inside, names_in, parameters
from ..triton_source import bound_in
from .address_rows import has_strides
from .alike import scales
from .mask_rows import is_mask
from .row import Row
from .spots import Edits, Spot, Undone

# What rows are called that are subtracted from dP.
_DELTA = in_kernels("delta")
_BASES = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log"}
_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
_BARRIERS = ("debug_barrier", "barrier", "syncthreads")
_SIGNS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
}  # fmt: skip


def factor_dropped(file: KernelFile) -> Iterator[Change]:
    """`dq` for `dq * scale`; and a factor that a line of its own multiplies by, as softcap's derivative is."""
    for node in file.inside_kernels(ast.BinOp, ast.AugAssign):
        match node:
            case ast.AugAssign(op=ast.Mult(), value=value):
                yield Change("A", node, (file.replaced(value, "1.0"),))
            case ast.BinOp(left, ast.Mult(), right):
                for lost, kept in zip((right, left), file.operands(node, "*"), strict=True):
                    if isinstance(lost, ast.Name) and "scale" in lost.id.lower():
                        yield Change("A", node, (file.replaced(node, kept),))


def factor_added(at: Spot) -> Undone:
    """The value that is assigned, or a part of it, times a factor in scope; or the value times log2(e) or ln(2)."""
    value = at.value
    if value is None or has_strides(value) or is_mask(at):
        return
    for factor in scales(at.scope):
        twice = 1.0 if factor in names_in(value) else 0.0
        yield from (_multiplied(at, 1.3 + further + twice, part, factor) for further, part in _parts(value))
    for part in (value, *_summands(value)):
        yield from (_multiplied(at, 3.0, part, factor) for factor in (_LOG2E, _LN2))


def _multiplied(at: Spot, rank: float, node: ast.expr, factor: str) -> tuple[float, Edits]:
    """A node times a factor; in brackets where an attribute is taken of it, unless it has some."""
    text, (start, end) = f"{at.file.bracketed(node)} * {factor}", at.file.span(node)
    has_brackets = at.file.text[start - 1] == "(" and at.file.text[end : end + 1] == ")"
    is_owner = isinstance(next(at.file.above(node)), ast.Attribute) and isinstance(node, (ast.Name, ast.Call))
    return at.put(rank, node, f"({text})" if is_owner and not has_brackets else text)


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    """A value and the parts of it that a factor may be of, with how much less likely each is."""
    yield further, value
    match value:
        case ast.Call(ast.Attribute(inner, "to")) | ast.Call(ast.Attribute(attr="where"), [_, inner, _]):
            yield from _parts(inner, further + 0.1)
        case ast.Call(ast.Attribute(attr="exp" | "exp2" | "log" | "log2"), [inner, *_]):
            yield from _parts(inner, further + 0.1)
    for side in _summands(value):
        yield from _parts(side, further + 0.2)


def _summands(value: ast.expr) -> tuple[ast.expr, ...]:
    match value:
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return left, right
    return ()


def factor_of_sibling(at: Spot) -> Undone:
    """`acc * fade[:, None]` for `acc` where another statement of the function multiplies it so: another branch."""
    own = at.file.text_of(at.statement)
    for node in at.names:
        for name, product in _products(at.file, at.function):
            if name == node.id and product not in own:
                yield at.put_operation(1.0, node, product)


@lru_cache(maxsize=256)
def _products(file: KernelFile, function: ast.FunctionDef) -> list[tuple[str, str]]:
    """What a function multiplies by something: (the name, the product)."""
    products = [node for node in inside(function, ast.BinOp) if isinstance(node.op, ast.Mult)]
    return sorted({(node.left.id, file.text_of(node)) for node in products if isinstance(node.left, ast.Name)})


def factor_moved(at: Spot) -> Undone:
    """`a * c - b` and `a - b * c` for `(a - b) * c`, and the reverse: what of a difference a factor is of."""
    text = at.file.bracketed
    for node in at.nodes:
        match node:
            case ast.BinOp(left, ast.Mult(), right):
                for inner, factor in ((left, text(right)), (right, text(left))):
                    if isinstance(inner, ast.BinOp) and _summands(inner):
                        first, sign, second = text(inner.left), _sign(inner), text(inner.right)
                        yield at.put_operation(1.4, node, f"{first} * {factor} {sign} {second}")
                        yield at.put_operation(1.5, node, f"{first} {sign} {second} * {factor}")
            case ast.BinOp(left, ast.Add() | ast.Sub(), right):
                for side in (left, right):
                    if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult):
                        first, second = (text(each.left if each is side else each) for each in (left, right))
                        yield at.put_operation(1.5, node, f"({first} {_sign(node)} {second}) * {text(side.right)}")


def _sign(node: ast.BinOp) -> str:
    return _SIGNS[type(node.op)][0]


def subtrahend_changed(file: KernelFile) -> Iterator[Change]:
    """`dp` and `dp + delta` for `dp - delta`; `D[:, None]` is a delta too, but not a D that is a size."""
    for node in file.inside_kernels(ast.BinOp):
        match node:
            case ast.BinOp(left, ast.Sub(), ast.Subscript(ast.Name(name)) | ast.Name(name)):
                if plain(name) in _DELTA or (name == "D" and isinstance(node.right, ast.Subscript)):
                    yield Change("A", node, (file.replaced(node, file.operands(node, "-")[0]),))
                    yield Change("A", node, (replace(file.operator(left, "-"), text="+"),))


def _is_row(name: str, *more: str) -> bool:
    return plain(name.lower().removeprefix("b_")) in (*_DELTA, *more)


def delta_taken(at: Spot) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    own = set(parameters(at.function)) if calls_in(at.function, "program_id") else set()
    rows = [name for name in at.scope if _is_row(name) and name not in own]
    for node in inside(at.value, ast.BinOp) if rows and at.value is not None else ():
        match node:
            case ast.BinOp(left, ast.Mult(), right):
                for side in (right, left):
                    if isinstance(side, ast.Name) or called(side) == "dot":
                        for name in rows:
                            twice = 1.0 if name in _subtracted(at.function) else 0.0
                            words = at.file.text_of(side)
                            yield at.put(0.9 + twice, side, f"({words} - {name}[:, None])")
                            yield at.put(1.2 + twice, side, f"({words} - {name}[None, :])")


@lru_cache(maxsize=256)
def _subtracted(function: ast.FunctionDef) -> frozenset[str]:
    """The names in what a function subtracts."""
    sides = [node.right for node in inside(function, ast.BinOp) if isinstance(node.op, ast.Sub)]
    return frozenset().union(*map(names_in, sides))


def axis_given(at: Spot) -> Undone:
    """`dp - delta[:, None]` for `dp - delta`, which goes along the last axis; and the other axis of two."""
    turned = {"[:, None]": "[None, :]", "[None, :]": "[:, None]"}
    for node in at.nodes:
        if not isinstance(node, ast.BinOp) or type(node.op) not in _SIGNS:
            continue
        for side in (node.left, node.right):
            words = at.file.text_of(side)
            if isinstance(side, ast.Name) and _is_row(words, "lse"):
                yield at.put(0.9, side, f"{words}[:, None]")
            elif isinstance(side, ast.Subscript) and not has_strides(at.statement):
                yield from (at.put(1.4, side, words.replace(*axes)) for axes in turned.items() if axes[0] in words)


def sign_changed(at: Spot) -> Undone:
    """`+` for `-`, `*` for `/` and the reverse."""
    likely = 2.0 if has_strides(at.statement) else 0.9
    for node in at.nodes:
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            sign, other = _SIGNS[type(node.op)]
            yield likely if sign in "+-" else 2.0, (replace(at.file.operator(node.left, sign), text=other),)
    statement = at.statement
    if isinstance(statement, ast.AugAssign) and type(statement.op) in _SIGNS and at.is_whole:
        sign, other = _SIGNS[type(statement.op)]
        yield 1.2, (replace(at.file.operator(statement.target, f"{sign}="), text=f"{other}="),)


def constant_changed(at: Spot) -> Undone:
    """A whole number one more or less; 0, 1 and -inf for one another; a factor of 1.0 by one that has a name."""
    for node in at.nodes:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, int) and not isinstance(value, bool):
            yield from (at.put(2.5, node, str(other)) for other in (value + 1, value - 1) if other >= 0)
        elif isinstance(value, float) and value in (0.0, 1.0):
            yield from (at.put(1.0, node, name) for name in (scales(at.scope) if value else ()))
            others = ("0.0" if value else "1.0", 'float("-inf")')
            yield from (at.put(2.0, node, other) for other in others)


def part_alone(at: Spot) -> Undone:
    """A part in the place of the whole: one side of an operator, one argument of min, max or where, and no cast."""
    for node in at.nodes:
        yield from (at.put(rank, node, words) for rank, words in _parts_alone(at, node))


def _parts_alone(at: Spot, node: ast.AST) -> Iterator[tuple[float, str]]:
    text, bare = at.file.text_of, at.file.bracketed
    match node:
        case ast.BinOp(left, operator, right):
            is_factor = isinstance(right, ast.Name) and right.id in scales(at.scope)
            is_number = isinstance(right, ast.Constant) and isinstance(right.value, float)
            is_likely = is_number or bare(right) in _likely(at)
            yield 1.0 if is_likely else 1.4 if is_factor else 1.9, _side(at, node, left)
            if isinstance(operator, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
                yield 1.9, _side(at, node, right)
        case ast.UnaryOp(operand=inner):
            yield 2.0, bare(inner)
        case ast.Call(ast.Attribute(value, "to")):
            yield 1.0, text(value)
            match value:
                case ast.Call(ast.Attribute(inner, "to")):
                    yield -0.3, text(inner)
        case ast.Call(args=[first, second]) if called(node) in ("min", "max", "minimum", "maximum"):
            # A host clamps a size, once or twice; a kernel has them everywhere.
            yield from ((1.0 if at.is_on_device else 0.1, bare(each)) for each in (first, second))
        case ast.Call(args=[test, value, other]) if called(node) == "where":
            yield 1.5, bare(value)
            yield 2.0, f"{text(node.func)}({text(test)}, {text(other)}, {text(value)})"


def _likely(at: Spot) -> set[str]:
    """What is likely one operand too many: one, and where a loop around begins."""
    loops = [each.iter for each in at.file.above(at.statement) if isinstance(each, ast.For)]
    starts = [each.args[0] for each in loops if isinstance(each, ast.Call) and len(each.args) > 1]
    return {"1", *map(at.file.bracketed, starts)}


def _side(at: Spot, whole: ast.BinOp, side: ast.expr) -> str:
    """An operand in the place of its operation: one that stands there without brackets needs none here either."""
    (start, end), (first, last) = at.file.span(whole), at.file.span(side)
    return at.file.text_of(side) if start == first or end == last else at.file.bracketed(side)


def other_base(file: KernelFile) -> Iterator[Change]:
    """exp2 for exp, log2 for log, and the reverse, without the factor that belongs to it."""
    for node in file.calls(*_BASES):
        if isinstance(node.func, ast.Attribute):
            yield Change("A", node, (file.renamed(node, _BASES[called(node)]),))


def transpose_dropped(file: KernelFile) -> Iterator[Change]:
    """`k` for `tl.trans(k)` or `k.T`: compiles only where both sizes are the same."""
    for node in file.inside_kernels(ast.Call, ast.Attribute):
        match node:
            case (
                ast.Call(ast.Attribute(attr="trans") | ast.Name("trans"), [inner, *_])
                | ast.Call(ast.Attribute(inner, "trans"), [])
                | ast.Attribute(inner, "T")
            ):
                yield Change("A", node, (file.replaced(node, file.text_of(inner)),))


def transposed(at: Spot) -> Undone:
    """A transpose of what a dot is given."""
    for call in at.calls("dot"):
        yield from (at.put(1.2, each, f"tl.trans({at.file.text_of(each)})") for each in call.args[:2])


def sum_overwritten(file: KernelFile) -> Iterator[Change]:
    """`dk = tl.dot(...)` for `dk += tl.dot(...)`: in a loop, of a sum that begins as a tile of zeros."""
    for kernel in file.kernels:
        tiles = [node for node in inside(kernel, ast.Assign) if called(node.value) in ("zeros", "full")]
        sums = {target.id for node in tiles for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(kernel):
            match node:
                case ast.AugAssign(ast.Name(name) as target, ast.Add()) if name in sums:
                    if any(isinstance(above, ast.For) for above in file.above(node)):
                        yield Change("ACC", node, (replace(file.operator(target, "+="), text="="),))


def sum_kept(at: Spot) -> Undone:
    """`+=` for `=` of what has a value already, and the reverse."""
    match at.statement if at.is_whole else None:
        case ast.Assign([ast.Name(name) as target]) if _is_bound_before(at, name):
            is_in_loop = any(isinstance(above, (ast.For, ast.While)) for above in at.file.above(at.statement))
            yield 0.9 if is_in_loop else 1.1, (replace(at.file.operator(target, "="), text="+="),)
        case ast.AugAssign(target, ast.Add()):
            yield 2.5, (replace(at.file.operator(target, "+="), text="="),)


def _is_bound_before(at: Spot, name: str) -> bool:
    lines = [each.lineno for each in inside(at.function, ast.Assign) if name in bound_in([each])]
    return min(lines, default=at.statement.lineno) < at.statement.lineno


def atomic_stored(file: KernelFile) -> Iterator[Change]:
    """`tl.store` for `tl.atomic_add`: the last program's share is all that is left."""
    for call in file.calls("atomic_add"):
        if isinstance(next(file.above(call)), ast.Expr):
            yield Change("ACC", call, (file.renamed(call, "store"),))


def store_added(at: Spot) -> Undone:
    """`tl.atomic_add` for `tl.store`."""
    yield from ((1.4, (at.file.renamed(call, "atomic_add"),)) for call in at.calls("store"))


def barrier_dropped(file: KernelFile) -> Iterator[Change]:
    """A barrier taken away."""
    for call in file.calls(*_BARRIERS):
        if isinstance(next(file.above(call)), ast.Expr):
            yield Change("RACE", call, (file.replaced(call, "pass"),))


def rounded_early(file: KernelFile) -> Iterator[Change]:
    """A product or P rounded to bfloat16 as it is made."""
    for call in file.calls("dot", "exp", "exp2"):
        if isinstance(next(file.above(call)), (ast.Assign, ast.AugAssign)):
            yield Change("PREC", call, (file.replaced(call, f"{file.text_of(call)}.to(tl.bfloat16).to(tl.float32)"),))


VALUES = (
    Row("factor-dropped", "a factor is missing", factor_dropped, (factor_added, factor_of_sibling)),
    Row("factor-misplaced", "a factor is of one side of a difference and not of both, or the reverse",
        undoes=(factor_moved,)),
    Row("subtrahend-changed", "a row is not subtracted, or along the wrong axis", subtrahend_changed,
        (delta_taken, axis_given)),
    Row("sign-changed", "{old} stands for {new}", undoes=(sign_changed,)),
    Row("constant-changed", "{old} stands for {new}", undoes=(constant_changed,), of_hosts=True),
    Row("part-put-on", "{old} stands where {new} is meant", undoes=(part_alone,), of_hosts=True),
    Row("other-base", "{old} stands for {new}: the other base", other_base, again=0.7),
    Row("transpose-dropped", "a product takes {old} and not {new}", transpose_dropped, (transposed,), again=2.0),
    Row("sum-overwritten", "a sum is overwritten, or added to what should be overwritten", sum_overwritten,
        (sum_kept,)),
    Row("atomic-stored", "programs overwrite one another's share of a sum, or add to it twice", atomic_stored,
        (store_added,), again=2.0),
    Row("barrier-dropped", "a barrier is missing", barrier_dropped),
    Row("rounded-early", "a value is rounded before it is used", rounded_early),
)  # fmt: skip
