"""Rules: what each may undo in a spot. Each gives edits, with how far it is from what usually went wrong."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..kernel_file import KernelFile, called
from ..operators import OPERATORS
from ..operators.addresses import parameters, stride_of
from ..text import Edit
from ..triton_source import blocks, bound_in
from .alike import in_scope, others_of, scales
from .guards import guarded, hiding
from .spots import Spot
from .unread import term_added, unread

Undone = Iterator[tuple[float, tuple[Edit, ...]]]
"""(rank, edits): the least rank is tried first."""
_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"
_EMPTY = {"empty": "zeros", "new_empty": "new_zeros", "empty_like": "zeros_like"}
_ONE_OF = ("min", "max", "minimum", "maximum")
# What masks are called.
_MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)
# What rows are called that are subtracted from dP.
_ROWS = ("delta", "di", "d_i", "dsum", "dpsum", "delta_i")
_STORES = ("store", "atomic_add")
_ACCESSES = ("load", *_STORES)
_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.GtE: (">=", "<="), ast.Gt: (">", "<"), ast.LtE: ("<=", ">="), ast.Lt: ("<", ">"),
}  # fmt: skip
# How much later each further name is tried in the place of one, so that they leave room to what other rules say.
_NEXT = 0.2
# How much later another tensor is asked for its dtype.
_SAME_DTYPE = 2.5
# What no edit that helps does again, and what seldom helps.
_NEVER = ("rounded-early", "zeros-not-written", "wide-offset-dropped", "barrier-dropped")
_SELDOM = ("last-tile-lost", "range-cut", "sum-overwritten", "atomic-stored", "transpose-dropped")
# Faults that drop something are undone where something was added, which happens less often.
_SWAPPING = ("own-strides-swapped", "divisions-mixed-up", "bound-off-by-one", "other-base")
_DROPPING = ("term-dropped", "operand-dropped", "guard-dropped", "mask-dropped", "factor-dropped", "subtrahend-changed")


@dataclass(frozen=True, eq=False)
class Repairs:
    """The candidate edits of one file."""

    file: KernelFile

    def of(self, spot: Spot) -> Undone:
        """The edits of one spot."""
        scope = in_scope(self.file, spot.function)
        for rule in RULES if spot.function in self.file.kernels else _OF_HOSTS:
            yield from rule(self, spot, scope)

    def nodes(self, spot: Spot) -> list[ast.AST]:
        return _nodes(spot)

    def replaced(self, node: ast.AST, text: str) -> tuple[Edit, ...]:
        return (self.file.replaced(node, text),)

    def bracketed(self, node: ast.expr, text: str) -> tuple[Edit, ...]:
        """The same, in brackets where an operator may stand beside it."""
        above = next(self.file.above(node))
        is_alone = isinstance(above, (ast.keyword, ast.Assign, ast.AugAssign)) or (
            isinstance(above, ast.Call) and node in above.args
        )
        return self.replaced(node, text if is_alone else f"({text})")

    def multiplied(self, node: ast.expr, factor: str) -> tuple[Edit, ...]:
        """A node times a factor; in its brackets, where it has some."""
        above = next(self.file.above(node))
        text = f"{self.words(node)} * {factor}"
        is_inside = isinstance(above, ast.Attribute) and isinstance(node, (ast.Name, ast.Call))
        start, end = self.file.span(node)
        is_inside = is_inside and not (self.file.text[start - 1] == "(" and self.file.text[end] == ")")
        return self.replaced(node, f"({text})" if is_inside else text)

    def words(self, node: ast.AST) -> str:
        """A node as it may stand beside any operator."""
        words = self.file.words(node)
        plain = (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript)
        return words if isinstance(node, plain) else f"({words})"

    @cached_property
    def planted(self) -> dict[ast.stmt, list[tuple[float, tuple[Edit, ...]]]]:
        """The changes of mutate's operators, by statement: many undo themselves, such as `<` for `<=`."""
        found: dict[ast.stmt, list[tuple[float, tuple[Edit, ...]]]] = {}
        for name, operator in ((each, of) for each, of in OPERATORS.items() if each not in _NEVER):
            for change in operator(self.file):
                if any(isinstance(each, ast.FunctionDef) for each in self.file.above(change.node)):
                    rank = 2.5 if name in _DROPPING else 2.0 if name in _SELDOM else 0.7 if name in _SWAPPING else 1.0
                    found.setdefault(self.file.statement(change.node), []).append((rank, change.edits))
        return found

    @cached_property
    def conditions(self) -> list[str]:
        """The terms of every mask in the kernels, each once."""
        nodes = [node for function in self.file.functions for node in ast.walk(function)]
        compared = [node for node in nodes if isinstance(node, ast.Compare) and any(map(_is_position, ast.walk(node)))]
        return list(dict.fromkeys(self.file.words(node) for node in compared))


@lru_cache(maxsize=4)
def _nodes(spot: Spot) -> list[ast.AST]:
    return [node for root in spot.roots for node in ast.walk(root)]


def _is_position(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id.startswith(("off", "o_", "m_")))


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


def comparison_turned(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`<=` for `>=`; a bound one further or nearer."""
    for node in by.nodes(spot):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SIGNS:
            sign, other = _SIGNS[type(node.ops[0])]
            yield 2.0, (replace(by.file.operator(node.left, sign), text=other),)
            for step in ("+ 1", "- 1"):
                yield 2.5, by.replaced(node.comparators[0], f"{by.words(node.comparators[0])} {step}")


def operand_dropped(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """One side of an operator alone; `x` for `x // B * B`, which leaves out a partial tile."""
    for node in by.nodes(spot):
        if isinstance(node, ast.BinOp):
            inner = node.left
            if isinstance(node.op, ast.Mult) and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.FloorDiv):
                is_whole = by.words(inner.right) == by.words(node.right)
                yield 0.0 if is_whole else 0.5, by.replaced(node, by.words(inner.left))
            is_factor = isinstance(node.right, ast.Name) and node.right.id in scales(scope)
            yield 1.4 if is_factor else 2.0, by.replaced(node, by.words(node.left))
            if isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
                yield 2.0, by.replaced(node, by.words(node.right))
        elif isinstance(node, ast.UnaryOp):
            yield 2.0, by.replaced(node, by.words(node.operand))


def sign_changed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`+` for `-`, `*` for `/` and the reverse."""
    signs = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
    for node in by.nodes(spot):
        if isinstance(node, ast.BinOp) and type(node.op) in signs:
            sign, other = signs[type(node.op)]
            yield (
                0.9 if sign in "+-" and not _has_strides(spot.statement) else 2.0,
                (replace(by.file.operator(node.left, sign), text=other),),
            )
    statement = spot.statement
    if isinstance(statement, ast.AugAssign) and type(statement.op) in signs and spot.roots == (statement,):
        sign, other = signs[type(statement.op)]
        yield 1.2, (replace(by.file.operator(statement.target, f"{sign}="), text=f"{other}="),)


def call_undone(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """One argument of min, max or where; a cast taken away; zeros for empty; another axis of a stride."""
    for node in by.nodes(spot):
        name = called(node)
        if not isinstance(node, ast.Call) or not name:
            continue
        if name in _ONE_OF and len(node.args) == 2:
            # A host clamps a size, once or twice; a kernel has them everywhere.
            rank = 1.0 if spot.function in by.file.kernels else 0.1
            yield from ((rank, by.replaced(node, by.words(each))) for each in node.args)
        elif name == "where" and len(node.args) == 3:
            test, one, other = map(by.file.words, node.args)
            head = by.file.words(node.func)
            yield 1.5, by.replaced(node, by.words(node.args[1]))
            yield 2.0, by.replaced(node, f"{head}({test}, {other}, {one})")
        elif name == "to" and isinstance(node.func, ast.Attribute):
            yield 1.0, by.replaced(node, by.file.words(node.func.value))
            inner = node.func.value
            if called(inner) == "to" and isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                yield -0.3, by.replaced(node, by.file.words(inner.func.value))
        elif name in _EMPTY:
            yield 0.5, by.replaced(node.func, by.file.words(node.func).removesuffix(name) + _EMPTY[name])
        elif name == "stride" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            others = [at for at in range(4) if at != node.args[0].value]
            yield from ((1.5, by.replaced(node.args[0], str(at))) for at in others)


def whole_tiles(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """As many tiles as are begun, where only whole ones are counted."""
    on_device = spot.function in by.file.kernels
    for node in by.nodes(spot):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            rank = 0.8 if on_device else 0.3
            cdiv = f"{'tl' if on_device else 'triton'}.cdiv({by.file.words(node.left)}, {by.file.words(node.right)})"
            yield rank, by.replaced(node, cdiv)


def range_moved(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A loop that begins or ends a step earlier or later, or begins at 0."""
    for node in by.nodes(spot):
        if called(node) in ("range", "static_range") and isinstance(node, ast.Call) and len(node.args) in (2, 3):
            start, stop, step = node.args[0], node.args[1], by.words(node.args[2]) if node.args[2:] else "1"
            yield 1.0, by.replaced(start, "0")
            for end in (start, stop):
                if isinstance(end, ast.BinOp):
                    yield 0.0 if by.words(end.right) == step else 0.9, by.replaced(end, by.words(end.left))
                yield 1.5, by.replaced(end, f"{by.words(end)} + {step}")
                yield 1.5, by.replaced(end, f"{by.words(end)} - {step}")


def constant_changed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A whole number one more or less; 0, 1 and -inf for one another; a factor of 1.0 by one that has a name."""
    for node in by.nodes(spot):
        if not isinstance(node, ast.Constant) or isinstance(node.value, (bool, str)) or node.value is None:
            continue
        if isinstance(node.value, int):
            yield from ((2.5, by.replaced(node, str(node.value + step))) for step in (1, -1) if node.value + step >= 0)
        elif isinstance(node.value, float) and node.value in (0.0, 1.0):
            known = scales(scope) if node.value == 1.0 else []
            yield from ((1.0, by.replaced(node, name)) for name in known)
            others = [word for word in ("0.0", "1.0", 'float("-inf")') if node.value != _float(word)]
            yield from ((2.0, by.replaced(node, word)) for word in others)


def _float(word: str) -> float:
    return float(word) if word[0].isdigit() else float("-inf")


def factor_added(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """The value that is assigned, or a part of it, times a factor in scope; or the value times log2(e) or ln(2)."""
    value = _value(by, spot)
    if value is None or _has_strides(value) or any(map(_MASK.search, bound_in([spot.statement]))):
        return
    for factor in scales(scope):
        twice = 1.0 if re.search(rf"\b{re.escape(factor)}\b", by.file.words(value)) else 0.0
        yield from ((1.3 + further + twice, by.multiplied(part, factor)) for further, part in _parts(value))
    for part in (value, *_summands(value)):
        yield from ((3.0, by.multiplied(part, factor)) for factor in (_LOG2E, _LN2))


def _has_strides(node: ast.AST) -> bool:
    """Whether strides stand in a statement or a part of it."""
    return any(stride_of(each.id) for each in ast.walk(node) if isinstance(each, ast.Name))


def _parts(value: ast.expr, further: float = 0.0) -> Iterator[tuple[float, ast.expr]]:
    """A value and the parts of it that a factor may be of, with how much less likely each is."""
    yield further, value
    if isinstance(value, ast.Call):
        inner = value.func.value if called(value) == "to" and isinstance(value.func, ast.Attribute) else None
        inner = value.args[0] if called(value) in ("exp", "exp2", "log", "log2") and value.args else inner
        inner = value.args[1] if called(value) == "where" and len(value.args) == 3 else inner
        if inner is not None:
            yield from _parts(inner, further + 0.1)
    for side in _summands(value):
        yield from _parts(side, further + 0.2)


def _summands(value: ast.expr) -> tuple[ast.expr, ...]:
    is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub))
    return (value.left, value.right) if is_sum and isinstance(value, ast.BinOp) else ()


def _value(by: Repairs, spot: Spot) -> ast.expr | None:
    """What a statement assigns or stores."""
    statement = spot.statement
    if spot.roots != (statement,):
        return None
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return)):
        return None if isinstance(statement.value, ast.Tuple) else statement.value
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return _stored(by.file, statement.value) if is_call else None  # type: ignore[attr-defined]


def _stored(file: KernelFile, call: ast.Call) -> ast.expr | None:
    """The value that a call stores, itself or in a helper that it is passed to."""
    if called(call) in _STORES:
        return call.args[1] if len(call.args) > 1 else None
    for helper in (each for each in file.kernels if each.name == called(call)):
        passed = dict(zip(parameters(helper), call.args, strict=False))
        inside = [node for node in ast.walk(helper) if isinstance(node, ast.Call) and called(node) in _STORES]
        values = [node for each in inside for value in each.args[1:2] for node in ast.walk(value)]
        return next((passed[node.id] for node in values if isinstance(node, ast.Name) and node.id in passed), None)
    return None


def mask_added(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """One more term in a mask; a mask on an access that has none; what is hidden set to 0 or left out of the scores."""
    terms = [*_held(by, spot, scope), *_terms(by, scope)]
    for mask in _masks(by, spot):
        words = by.file.words(mask)
        yield from ((1.5, by.replaced(mask, f"({words}) & ({term})")) for term in terms if term not in words)
    for start, head, test in _tests(by, spot):
        held, end = by.file.words(test), by.file.span(test)[1]
        others = ((rank, other) for rank, other in hiding(by.file, spot.function) if other not in held)
        yield from ((rank, (Edit(start, end, f"{head}({held}) & ({other})"),)) for rank, other in others)
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) in _ACCESSES and not any(w.arg == "mask" for w in node.keywords):
            other = ", other=0.0" if called(node) == "load" else ""
            end = by.file.span(node)[1] - 1
            yield from ((1.5, (Edit(end, end, f", mask={term}{other}"),)) for term in terms)
    value = _value(by, spot) if isinstance(spot.statement, ast.Assign) else None
    if value is not None and spot.function in by.file.kernels:
        yield from ((rank, by.replaced(value, text)) for rank, text in guarded(by.file, spot, value, scope))
        names = [name for name in scope if "mask" in name.lower() or "valid" in name.lower()]
        for hidden in ("0.0", 'float("-inf")'):
            held = by.file.words(value)
            yield from ((2.5, by.replaced(value, f"tl.where({test}, {held}, {hidden})")) for test in [*names, *terms])


def _tests(by: Repairs, spot: Spot) -> Iterator[tuple[int, str, ast.expr]]:
    """(offset, "tl.where(" if that stands there, test) of each that decides over pairs of a row and a key."""
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) == "where" and node.args:
            yield by.file.span(node)[0], f"{by.file.words(node.func)}(", node.args[0]
    value = _value(by, spot)
    if isinstance(value, ast.Compare) and not any(map(_is_position, ast.walk(value))):
        yield by.file.span(value)[0], "", value


def _held(by: Repairs, spot: Spot, scope: list[str]) -> list[str]:
    """The masks that the function has by a name, along each axis: first those never read, then by words in common."""
    names = [name for name in scope if _MASK.search(name) and name not in bound_in([spot.statement])]
    here = {word for node in spot.names for word in node.id.lower().split("_")}
    names.sort(key=lambda name: (name not in unread(spot.function), -len(here & set(name.lower().split("_")))))
    return [f"{name}{axis}" for name in names[:3] for axis in ("[:, None]", "[None, :]", "")]


def _terms(by: Repairs, scope: list[str]) -> list[str]:
    known = {*scope, "tl"}
    trees = [(words, ast.parse(words.strip().replace("\n", " "), mode="eval")) for words in by.conditions]
    return [
        words for words, tree in trees
        if {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} <= known
    ][:8]  # fmt: skip


def _masks(by: Repairs, spot: Spot) -> Iterator[ast.expr]:
    """Where a condition over positions stands whole."""
    for node in by.nodes(spot):
        if isinstance(node, ast.keyword) and node.arg == "mask":
            yield node.value
        elif called(node) == "where" and isinstance(node, ast.Call) and node.args:
            yield node.args[0]
    value = _value(by, spot)
    if value is not None and any(map(_MASK.search, bound_in([spot.statement]))):
        yield value
        return
    is_mask = isinstance(value, ast.Compare) or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitAnd))
    if value is not None and is_mask:
        yield value


def sum_kept(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`+=` for `=` of what has a value already, and the reverse; atomic_add for store."""
    statement = spot.statement
    if spot.roots == (statement,) and isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        in_loop = any(isinstance(above, (ast.For, ast.While)) for above in by.file.above(statement))
        target = statement.targets[0]
        if isinstance(target, ast.Name) and _is_bound_before(spot, target.id):
            yield 0.9 if in_loop else 1.1, (replace(by.file.operator(statement.targets[0], "="), text="+="),)
    elif spot.roots == (statement,) and isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        yield 2.5, (replace(by.file.operator(statement.target, "+="), text="="),)
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) == "store":
            words = by.file.words(node.func)
            yield 1.5, by.replaced(node.func, words.removesuffix("store") + "atomic_add")


def _is_bound_before(spot: Spot, name: str) -> bool:
    return _first_bound(spot.function).get(name, spot.statement.lineno) < spot.statement.lineno


@lru_cache(maxsize=256)
def _first_bound(function: ast.FunctionDef) -> dict[str, int]:
    """The first line at which a function assigns to a name, by the name."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    return {name: each.lineno for each in sorted(found, key=lambda each: -each.lineno) for name in bound_in([each])}


def transposed(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A transpose of what a dot is given."""
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) == "dot":
            for each in node.args[:2]:
                yield 1.2, by.replaced(each, f"tl.trans({by.file.words(each)})")


def delta_taken(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A row subtracted that is in scope and nowhere subtracted here."""
    value = _value(by, spot)
    is_launched = any(called(node) == "program_id" for node in ast.walk(spot.function))
    own = set(parameters(spot.function)) if is_launched else set()
    rows = [name for name in scope if name.lower().strip("_").removeprefix("b_") in _ROWS and name not in own]
    for node in ast.walk(value) if value is not None else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for side in (node.right, node.left):
                if isinstance(side, ast.Name) or called(side) == "dot":
                    words = by.file.words(side)
                    for name in rows:
                        twice = 1.0 if name in _subtracted(spot.function) else 0.0
                        yield 0.9 + twice, by.replaced(side, f"({words} - {name}[:, None])")
                        yield 1.2 + twice, by.replaced(side, f"({words} - {name}[None, :])")


@lru_cache(maxsize=256)
def _subtracted(function: ast.FunctionDef) -> frozenset[str]:
    """The names in what a function subtracts."""
    sides = [node.right for node in ast.walk(function) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)]
    return frozenset(node.id for side in sides for node in ast.walk(side) if isinstance(node, ast.Name))


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
            one, two = by.file.words(first), by.file.words(second)
            yield 1.2, (by.file.replaced(first, two), by.file.replaced(second, one))


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two statements may matter: what one binds the other has, or both act on memory."""
    acting = [
        isinstance(each, ast.Expr) or any(called(n) == "load" for n in ast.walk(each)) for each in (first, second)
    ]
    names = [{node.id for node in ast.walk(each) if isinstance(node, ast.Name)} for each in (first, second)]
    shared = set(bound_in([first])) & names[1] or set(bound_in([second])) & names[0]
    return bool(shared) or (all(acting) and any(isinstance(each, ast.Expr) for each in (first, second)))


def factor_moved(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`a * c - b` and `a - b * c` for `(a - b) * c`, and the reverse: what of a difference a factor is of."""
    for node in by.nodes(spot):
        if not isinstance(node, ast.BinOp):
            continue
        sides = (node.left, node.right), (node.right, node.left)
        if isinstance(node.op, ast.Mult):
            for inner, factor in ((a, by.words(b)) for a, b in sides if _is_sum(a)):
                sign = "-" if isinstance(inner.op, ast.Sub) else "+"  # type: ignore[attr-defined]
                one, other = by.words(inner.left), by.words(inner.right)  # type: ignore[attr-defined]
                yield 1.4, by.bracketed(node, f"{one} * {factor} {sign} {other}")
                yield 1.5, by.bracketed(node, f"{one} {sign} {other} * {factor}")
        elif _is_sum(node):
            sign = "-" if isinstance(node.op, ast.Sub) else "+"
            for inner, rest in sides:
                if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult):
                    kept = [by.words(inner.left), by.words(rest)]
                    both = f" {sign} ".join(kept if inner is node.left else kept[::-1])
                    yield 1.5, by.bracketed(node, f"({both}) * {by.words(inner.right)}")


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))


def factor_of_sibling(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`acc * fade[:, None]` for `acc` where another statement of the function multiplies it so: another branch."""
    own = by.file.words(spot.statement)
    for node in spot.names:
        for name, product in _products(by.file, spot.function):
            if name == node.id and product not in own:
                yield 1.0, by.bracketed(node, product)


@lru_cache(maxsize=256)
def _products(file: KernelFile, function: ast.FunctionDef) -> list[tuple[str, str]]:
    """What a function multiplies by something: (the name, the product)."""
    inside = [node for node in ast.walk(function) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    return sorted({(node.left.id, file.words(node)) for node in inside if isinstance(node.left, ast.Name)})


def moved_out(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """The last statement of a loop behind it: once, and not in each round."""
    statement = spot.statement
    loop = next(by.file.above(statement))
    if spot.roots != (statement,) or blocks(statement) or not isinstance(loop, (ast.For, ast.While)):
        return
    if len(loop.body) > 1 and loop.body[-1] is statement and not loop.orelse:
        start, end = by.file.span(loop.body[-2])[1], by.file.span(statement)[1]
        yield 1.0, (Edit(start, end, f"\n{' ' * loop.col_offset}{by.file.words(statement)}"),)


def pointer_advanced(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """A pointer that a loop reads from moved on in each round, as it moves on others that begin alike."""
    read = {node.id for node in spot.names}
    for loop in by.file.above(spot.statement):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        moving = [each for each in loop.body if _is_move(each)]
        standing = (read - set(bound_in(loop.body))) & set(parameters(spot.function))
        for name in sorted(name for name in standing if stride_of(name) is None):
            for step, rank in _steps(by, spot.function, name, moving).items():
                end = by.file.span(moving[-1])[1]
                yield rank, (Edit(end, end, f"\n{' ' * moving[-1].col_offset}{name} += {step}"),)


def _is_move(statement: ast.stmt) -> bool:
    """Whether it adds to a name what is made by no call, as sums of tiles are."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return False
    is_made = any(called(node) not in (None, "", "to") for node in ast.walk(statement.value))
    return isinstance(statement.op, ast.Add) and not is_made


def _steps(by: Repairs, function: ast.FunctionDef, name: str, moving: Sequence[ast.stmt]) -> dict[str, float]:
    """What others are moved on by, those first that begin with the same offset."""
    starts = {
        each.target.id: by.file.words(each.value)
        for each in ast.walk(function)
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name) and each not in moving
    }
    found: dict[str, float] = {}
    for each in moving:
        step, other = by.file.words(each.value), each.target.id  # type: ignore[attr-defined]
        rank = 0.5 if name in starts and starts.get(other) == starts[name] else 1.5
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


RULES: tuple[Callable[[Repairs, Spot, list[str]], Undone], ...] = (
    as_planted, name_swapped, call_undone, whole_tiles, range_moved, operand_dropped, sum_kept, comparison_turned,
    sign_changed, constant_changed, factor_added, mask_added, transposed, delta_taken, order_changed, made_wide,
    factor_moved, factor_of_sibling, moved_out, pointer_advanced, term_missing,
)  # fmt: skip
# Outside kernels: sizes, grids, allocations and what launches pass.
_OF_HOSTS = (as_planted, name_swapped, call_undone, whole_tiles, operand_dropped, constant_changed, order_changed)
