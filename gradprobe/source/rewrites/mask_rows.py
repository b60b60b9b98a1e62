"""Rows of masks: comparisons, their terms, what is hidden by them, and the accesses that they guard."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from ..kernel_file import Change, KernelFile, called, calls_in, inside, names_in
from ..text import Edit
from ..triton_source import bound_in
from .address_rows import made_of
from .row import Row
from .spots import STORES, Spot, Undone, place_of

_ACCESSES = ("load", *STORES)
# Each comparison with the one that differs in the bound itself, and the one that looks the other way.
_SIGNS: dict[type[ast.cmpop], tuple[str, str, str]] = {
    ast.GtE: (">=", ">", "<="), ast.Gt: (">", ">=", "<"), ast.LtE: ("<=", "<", ">="), ast.Lt: ("<", "<=", ">"),
}  # fmt: skip
# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)
# What masks are called.
_MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)
# How the field names what is hidden with -inf, positions of rows and of keys, and the size of a head.
_SCORES = re.compile(r"qk|score|^s|att|logit", re.IGNORECASE)
_ROWS, _KEYS = re.compile(r"m|q|row|(^|_)i"), re.compile(r"n(?!t)|k|col|(^|_)j")
_DIMS = re.compile(r"D$|D_|DIM|DMODEL|HEAD", re.IGNORECASE)
_HIDDEN = ('float("-inf")', "0.0")
# How many vectors of positions, names of masks and terms of others are tried.
_FEW_VECTORS, _FEW_NAMES, _FEW_TERMS = 2, 3, 8


def bound_off_by_one(file: KernelFile) -> Iterator[Change]:
    """`>` for `>=`, `<=` for `<` and the reverse, where whole numbers are compared."""
    for node in file.inside_kernels(ast.Compare):
        sides = (node.left, node.comparators[0])
        is_float = any(isinstance(side, ast.Constant) and isinstance(side.value, float) for side in sides)
        if len(node.ops) == 1 and type(node.ops[0]) in _SIGNS and not is_float and not any(map(_is_infinite, sides)):
            sign, other, _ = _SIGNS[type(node.ops[0])]
            yield Change(_class_of(file, node), node, (replace(file.operator(node.left, sign), text=other),))


def comparison_turned(at: Spot) -> Undone:
    """`<=` for `>=`; a bound one further or nearer."""
    for node in at.nodes:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SIGNS:
            sign, _, turned = _SIGNS[type(node.ops[0])]
            yield 2.0, (replace(at.file.operator(node.left, sign), text=turned),)
            bound = node.comparators[0]
            yield from (at.put(2.5, bound, f"{at.file.bracketed(bound)} {step}") for step in ("+ 1", "- 1"))


def operand_dropped(file: KernelFile) -> Iterator[Change]:
    """`valid` for `valid & (distance < window)`: one condition of a mask is missing."""
    for node in file.inside_kernels(ast.BinOp, ast.AugAssign):
        if isinstance(node, ast.BinOp) and _is_and(node):
            left, right = file.operands(node, "&")
            yield Change(_class_of(file, node.right), node, (file.replaced(node, left),))
            yield Change(_class_of(file, node.left), node, (file.replaced(node, right),))
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitAnd):
            yield Change("M1", node.value, (file.replaced(node, "pass"),))


def _class_of(file: KernelFile, node: ast.expr) -> str:
    """M3 for a bound of what there is, else M1."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return "M1"
    bound = node.comparators[0]
    is_position = isinstance(bound, ast.Subscript) or "offs" in file.text_of(bound)
    return "M1" if is_position or _SEEN.search(file.text_of(node)) else "M3"


def condition_added(at: Spot) -> Undone:
    """One more term in a mask; first the test that hides the kernel's scores, where pairs are decided over."""
    tests = [call.args[0] for call in at.calls("where") if call.args]
    masks = [node.value for node in at.nodes if isinstance(node, ast.keyword) and node.arg == "mask"]
    value = at.value
    if isinstance(value, ast.Compare) and not any(map(_is_position, ast.walk(value))):
        tests.append(value)
    elif value is not None and (isinstance(value, ast.Compare) or _is_and(value) or is_mask(at)):
        masks.append(value)
    hiding, terms = _hiding(at), [(1.5, term) for term in _terms(at)]
    for node, likely in [*((test, [*hiding, *terms]) for test in tests), *((mask, terms) for mask in masks)]:
        words = at.file.text_of(node)
        yield from (at.put(rank, node, f"({words}) & ({term})") for rank, term in likely if term not in words)


def _is_and(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd)


def is_mask(at: Spot) -> bool:
    """Whether a statement gives a mask its value, by the name."""
    return any(map(_MASK.search, at.targets))


def _is_position(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id.startswith(("off", "o_", "m_")))


def _terms(at: Spot) -> list[str]:
    """What a mask may lack: what the function calls a mask, along each axis, then what the file compares elsewhere.

    Of names those first that nothing reads, then those that have the most words of the statement.
    """
    names = [name for name in at.scope if _MASK.search(name) and name not in at.targets]
    here = {word for name in at.reads for word in name.lower().split("_")}
    names.sort(key=lambda name: (name not in at.unread, -len(here & set(name.lower().split("_")))))
    named = [f"{name}{axis}" for name in names[:_FEW_NAMES] for axis in ("[:, None]", "[None, :]", "")]
    known = {*at.scope, "tl"}
    return [*named, *[test for test, names in _conditions(at.file) if names <= known][:_FEW_TERMS]]


@lru_cache(maxsize=64)
def _conditions(file: KernelFile) -> list[tuple[str, set[str]]]:
    """The comparisons of positions in a file, each once, with their names."""
    nodes = [node for function in file.functions for node in inside(function, ast.Compare)]
    tests = dict.fromkeys(file.text_of(node) for node in nodes if any(map(_is_position, ast.walk(node))))
    return [(test, _names(test)) for test in tests]


def _names(words: str) -> set[str]:
    return names_in(ast.parse(words.strip().replace("\n", " "), mode="eval"))


def guard_dropped(file: KernelFile) -> Iterator[Change]:
    """`tl.where` taken away: what it guards from -inf, or the values that it hides."""
    for node in file.calls("where"):
        if len(node.args) == 3:
            test, value, other = node.args
            if isinstance(test, ast.Compare) and any(map(_is_infinite, (test.left, *test.comparators))):
                kept = other if isinstance(test.ops[0], ast.Eq) else value
                yield Change("N1", node, (file.replaced(node, file.text_of(kept)),))
            elif _is_infinite(other) or _is_zero(other):
                yield Change("M1", node, (file.replaced(node, file.text_of(value)),))


def guard_added(at: Spot) -> Undone:
    """`tl.where(rows >= keys, qk, float("-inf"))` for `qk`, with the test that another one has, or of two positions."""
    value = at.value
    if value is None or not isinstance(at.statement, ast.Assign) or not at.is_on_device:
        return
    words, targets = at.file.text_of(value), set(at.targets)
    if not isinstance(value, ast.Compare) and not calls_in(at.statement, "where", "load"):
        # A value that is assigned to itself, or a mere number, is what is left of a guard.
        sure = -1.0 if words in (*targets, "0.0", "float(0.0)") else 0.0
        for rank, test, hidden in _likely_guards(at, targets):
            yield at.put(sure + rank, value, f"tl.where({test}, {words}, {hidden})")
    for test, hidden in product(_terms(at), _HIDDEN):
        yield at.put(2.5, value, f"tl.where({test}, {words}, {hidden})")


def _likely_guards(at: Spot, targets: set[str]) -> Iterator[tuple[float, str, str]]:
    """(rank, test, what stands where it fails) of the guards that a value may have lost."""
    for test, hidden, of in _guards(at.file, at.file.tree):
        if _names(test) <= {*at.scope, "tl", "float"}:
            # After the other sign: what is left of a guard says so, and most lines have nothing to do with one.
            yield 1.0 if of & targets else 2.2, test, hidden
    is_score = any(map(_SCORES.search, targets))
    if not is_score:
        yield from ((rank, test, "0.0") for rank, test in _hiding(at))
    likely, other = _HIDDEN if is_score else _HIDDEN[::-1]
    for test in _rows_and_keys(at):
        yield 1.5, test, likely
        yield 2.5, test, other


@lru_cache(maxsize=256)
def _guards(file: KernelFile, within: ast.AST) -> list[tuple[str, str, frozenset[str]]]:
    """The guards in a file or a function: the test, what stands where it fails, and the names that are assigned."""
    found = dict[tuple[str, str, frozenset[str]], None]()
    for call in calls_in(within, "where"):
        if len(call.args) == 3:
            of = frozenset(bound_in([file.statement(call)]))
            found[file.text_of(call.args[0]), file.text_of(call.args[2]), of] = None
    return list(found)


def _hiding(at: Spot) -> list[tuple[float, str]]:
    """(rank, test) of the guards of a function that hide keys from rows: where they fail scores are -inf."""
    tests = dict.fromkeys(test for test, hidden, _ in _guards(at.file, at.function) if "inf" in hidden)
    return [(0.6 + 0.2 * number, test) for number, test in enumerate(tests)]


def _rows_and_keys(at: Spot) -> Iterator[str]:
    """Rows against keys, as the function has them beside one another: of the tile, and with where the tile begins."""
    loops = [each for each in at.file.above(at.statement) if isinstance(each, ast.For)]
    starts = [each.target.id for each in loops[:1] if isinstance(each.target, ast.Name)]
    rows, keys = ([name for name in _positions(at.function) if kind.search(name)] for kind in (_ROWS, _KEYS))
    text = at.file.text_of(at.function)
    for row, key in product(rows[-_FEW_VECTORS:], keys[-_FEW_VECTORS:]):
        down, across = ("[:, None]", "[None, :]")
        if f"{row}{across}" in text and f"{row}{down}" not in text:
            down, across = across, down
        yield f"{row}{down} >= {key}{across}"
        for start in starts:
            if start not in made_of(at.function, key):
                yield f"{row}{down} >= ({start} + {key}{across})"
            if start not in made_of(at.function, row):
                yield f"({start} + {row}{down}) >= {key}{across}"


@lru_cache(maxsize=256)
def _positions(function: ast.FunctionDef) -> list[str]:
    """The vectors of positions: what is made of tl.arange, or of one that is, but of no quotient or the head's dims."""
    found: dict[str, None] = {}
    for node in sorted(inside(function, ast.Assign), key=place_of):
        value, names = node.value, names_in(node.value)
        is_quotient = any(isinstance(each, (ast.Subscript, ast.Div)) for each in ast.walk(value))
        is_tile = is_quotient or calls_in(value, "load", "where")
        is_vector = names & found.keys() or calls_in(value, "arange")
        if is_vector and not is_tile and not any(map(_DIMS.search, names)):
            found |= dict.fromkeys(bound_in([node]))
    return list(found)


def mask_dropped(file: KernelFile) -> Iterator[Change]:
    """An access without its `mask=`, and without `other=`, which means nothing alone."""
    for node in file.calls(*_ACCESSES):
        words = [word for word in node.keywords if word.arg in ("mask", "other")]
        if any(word.arg == "mask" for word in words):
            yield Change("M3", node, tuple(_without(file, node, word) for word in words))


def _without(file: KernelFile, call: ast.Call, word: ast.keyword) -> Edit:
    """A keyword taken away, with the comma before it."""
    start, end = file.span(word)
    before = [other for other in (*call.args, *call.keywords) if file.span(other)[0] < start]
    return Edit(file.operator(max(before, key=file.span), ",").start, end, "")


def mask_put_on(at: Spot) -> Undone:
    """A mask on an access that has none."""
    for call in at.calls(*_ACCESSES):
        if not any(word.arg == "mask" for word in call.keywords):
            other, end = ", other=0.0" if called(call) == "load" else "", at.file.span(call)[1] - 1
            yield from ((1.5, (Edit(end, end, f", mask={term}{other}"),)) for term in _terms(at))


def padding_changed(file: KernelFile) -> Iterator[Change]:
    """Another `other=`: 1.0 for 0.0, and 0.0 for what is not 0."""
    for node in file.calls(*_ACCESSES):
        for word in (word for word in node.keywords if word.arg == "other"):
            yield Change("M3", node, (file.replaced(word.value, "1.0" if _is_zero(word.value) else "0.0"),))


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_infinite(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(operand=inner):
            return _is_infinite(inner)
        case ast.Call(ast.Name("float"), [ast.Constant(word)]):
            return "inf" in str(word)
        case ast.Attribute(attr="inf"):
            return True
    return False


MASKS = (
    Row("bound-off-by-one", "a bound is off: {old} for {new}", bound_off_by_one, (comparison_turned,), again=0.7),
    Row("operand-dropped", "a mask lacks a condition", operand_dropped, (condition_added,)),
    Row("guard-dropped", "nothing hides what this position may not see", guard_dropped, (guard_added,)),
    Row("mask-dropped", "an access has no mask", mask_dropped, (mask_put_on,)),
    Row("padding-changed", "what is masked off is read as {old} and not as {new}", padding_changed, again=1.0),
)  # fmt: skip
