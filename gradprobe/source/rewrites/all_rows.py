"""What plants each fault, and what may undo it."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..kernel_file import Change, KernelFile
from ..parameter_names import TENSORS, core, has_axis, has_strides, stride_by_name
from ..syntax import (
    Edit,
    Edits,
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
from . import grammar
from .patterns import (
    FAMILIES,
    Holes,
    Spot,
    Undone,
    fits,
    is_infinite,
    parsed,
    replaced,
    spots_in,
)

# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = {"arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to"}
# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)
Condition = Callable[[Spot, Holes], bool] | None
_RULE = re.compile(r"(?:([-\d.]+): )?(.+?) -> (.+?)(?: in (_\w+))?(?: as (\w+))?")


@dataclass(frozen=True)
class Swap:
    pattern: str
    # A template; ".name": another function of the same module.
    text: str
    rank: float = 0.0
    place: str = "_it"
    fault: str = ""
    when: Condition = None

    def edit(self, at: Spot, found: Holes) -> Edit | None:
        if self.when is not None and not self.when(at, found):
            return None
        if self.text[0] != ".":
            return replaced(at.file, found[self.place], self.text, found)
        match found["_it"]:
            case ast.Call(ast.Attribute(attr=name) as function):
                owner = at.file.text_of(function).removesuffix(name)
                return at.file.replaced(function, owner + self.text[1:])
        return None


Rule = Swap | Callable[[Spot], Undone]


def rules(text: str, when: Condition = None) -> tuple[Swap, ...]:
    """Of `RANK: PATTERN -> TEXT in PLACE as FAULT; ...`: rank, place and fault may be left out."""
    found = list[Swap]()
    for rule in text.split(";"):
        match = _RULE.fullmatch(rule.strip())
        assert match is not None, rule
        rank, pattern, template, place, fault = match.groups()
        found.append(
            Swap(pattern, template, float(rank or 0), place or "_it", fault or "", when)
        )
    return tuple(found)


def edits_of(several: tuple[Rule, ...], at: Spot) -> Iterator[tuple[float, Edits, str, ast.AST]]:
    """(rank, edits, class of fault or "", what is lost)."""
    swaps = _by_kind(several)
    for node in at.nodes:
        for swap in swaps.get(type(node), ()):
            found = {"_it": node}
            edit = swap.edit(at, found) if fits(parsed(swap.pattern), node, found) else None
            if edit is not None:
                yield swap.rank, (edit,), swap.fault, found.get("_lost", node)
    for rule in several:
        for rank, edits in () if isinstance(rule, Swap) else rule(at):
            yield rank, edits, "", at.root


@lru_cache(maxsize=64)
def _by_kind(several: tuple[Rule, ...]) -> dict[type[ast.AST], list[Swap]]:
    found = defaultdict[type[ast.AST], list[Swap]](list)
    for rule in several:
        if isinstance(rule, Swap):
            found[type(parsed(rule.pattern))].append(rule)
    return found


@dataclass(frozen=True)
class Row:
    name: str
    says: str = "{old} stands for {new}"
    fault: str = ""
    plants: tuple[Rule, ...] = ()
    undoes: tuple[Rule, ...] = ()
    # The rank at which what plants it undoes it too.
    again: float | None = None
    of_hosts: bool = False
    planted_in: str = "kernels"  # or "hosts", or "functions" for both

    def says_of(self, file: KernelFile, edits: Edits) -> str:
        texts = file.text[edits[0].start : edits[0].end], edits[0].text
        old, new = (" ".join(text.split()) or "nothing" for text in texts)
        return self.says.format(old=old, new=new)

    def changes(self, file: KernelFile) -> Iterator[Change]:
        seen = set[Edits]()
        for function in getattr(file, self.planted_in):
            for spot in spots_in(file, function):
                for _, edits, fault, lost in edits_of(self.plants, spot):
                    if edits not in seen:
                        seen.add(edits)
                        which = fault or self.fault or class_of(file, lost)
                        yield Change(which, spot.root, edits)


@lru_cache(maxsize=1024)  # the values of several lines come the same ways
def undone(spot: Spot) -> list[tuple[float, Edits, Row]]:
    """The last row that gives an edit says what it is."""
    found, last = list[tuple[float, Edits]](), dict[Edits, Row]()
    for row in ROWS:
        if spot.is_on_device or row.of_hosts:
            own = [(rank, edits) for rank, edits, *_ in edits_of(row.undoes, spot)]
            if row.again is not None:
                own += [(row.again, edits) for _, edits, *_ in edits_of(row.plants, spot)]
            found += own
            last |= {edits: row for _, edits in own}
    return [(rank, edits, last[edits]) for rank, edits in found]


# --- what is planted that no pattern says alone


def another_stride(at: Spot) -> Undone:
    known = parameters(at.function)
    for use in at.names:
        tensor, axis = stride_by_name(use.id)
        for other in known if tensor and use.id in known else ():
            of, its = stride_by_name(other)
            if of not in ("", tensor) and its == axis:
                yield 0.0, (at.file.replaced(use, other),)
                break


def other_owner(at: Spot) -> Undone:
    owners = filter(None, map(owner_of, calls_in(at.function, "stride")))
    named = [each.id for each in sorted(owners, key=place_of) if core(each.id) in TENSORS]
    for owner in filter(None, map(owner_of, at.nodes)):
        if core(owner.id) in TENSORS:
            other = next(filter(owner.id.__ne__, named), "")
            if other:
                yield 0.0, (at.file.replaced(owner, other),)


def own_strides_swapped(at: Spot) -> Undone:
    known, lines = parameters(at.function), dict[tuple[int, str], list[ast.Name]]()
    for use in at.names:
        if use.id in known and has_axis(use.id):
            lines.setdefault((use.lineno, stride_by_name(use.id)[0]), []).append(use)
    for _, (first, *rest) in sorted(lines.items(), key=lambda each: each[0]):
        second = next((each for each in rest if each.id != first.id), None)
        if second is not None:
            yield 0.0, (at.file.replaced(first, second.id), at.file.replaced(second, first.id))


def mask_dropped(at: Spot) -> Undone:
    """Also `other=`, which means nothing alone."""
    for node in calls_in(at.root, *FAMILIES["ACCESS"]):
        dropped = list[Edit]()
        for word in node.keywords:
            if word.arg in ("mask", "other"):
                dropped.append(at.file.replaced(word.value, "None"))
        if "mask" in keywords(node):
            yield 0.0, tuple(dropped)


# --- what patterns ask of what fills their holes


def class_of(file: KernelFile, node: ast.AST) -> str:
    """M3 for a bound of what there is, else M1."""
    match node:
        case ast.Compare(ops=[ast.Lt() | ast.LtE(), *_], comparators=[bound, *_]):
            is_seen = "offs" in file.text_of(bound) or _SEEN.search(file.text_of(node))
            return "M1" if is_seen or isinstance(bound, ast.Subscript) else "M3"
    return "M1"


def is_scalar_term(at: Spot, found: Holes) -> bool:
    term = found["_term"]
    is_product = isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult)
    if not is_product or not has_strides(term) or inside(term, ast.Subscript):
        return False
    is_helper = not calls_in(at.function, "program_id")
    return not is_helper and names_in(term).isdisjoint(_vectors_of(at.function))


@lru_cache(maxsize=256)
def _vectors_of(kernel: ast.FunctionDef) -> set[str]:
    found: set[str] = set()
    assigned: list[ast.Assign | ast.AugAssign] = [*inside(kernel, ast.Assign)]
    assigned += inside(kernel, ast.AugAssign)
    for node in sorted(assigned, key=place_of):
        if names_in(node.value) & found or calls_in(node.value, "arange", "zeros", "full"):
            found = found.union(*map(names_in, targets_of(node)))
    return found


def are_counts(at: Spot, found: Holes) -> bool:
    for side in (found["_a"], found["_b"]):
        if is_infinite(side) or isinstance(getattr(side, "value", None), float):
            return False
    return True


def is_sum(at: Spot, found: Holes) -> bool:
    name = at.file.text_of(found["_a"])
    if next(at.file.above(at.statement, ast.For), None) is None:
        return False
    for made in inside(at.function, ast.Assign):
        if name in bound_in(*made.targets) and called(made.value) in ("zeros", "full"):
            return True
    return False


def has_value(at: Spot, found: Holes) -> bool:
    name, bound = found["_a"], list[str]()
    for made in inside(at.function, ast.Assign):
        if made.lineno < at.statement.lineno:
            bound += bound_in(made)
    return isinstance(name, ast.Name) and name.id in bound


def is_statement(at: Spot, found: Holes) -> bool:
    return isinstance(at.statement, ast.Expr) and at.statement.value is found["_it"]


def is_clamp(at: Spot, found: Holes) -> bool:
    """Not `tl.max(s, 1)`, which is the largest along an axis."""
    return not at.file.text_of(found["_it"]).partition("(")[0].endswith((".min", ".max"))


def is_in_no_shape(at: Spot, found: Holes) -> bool:
    is_known = {"BLOCK_M", "BLOCK_N"} <= {*parameters(at.function)}
    return is_known and _SHAPES.isdisjoint(map(called, at.file.above(found["_it"])))


def is_passed(at: Spot, found: Holes) -> bool:
    """To a launch."""
    above = [found["_it"], *at.file.above(found["_it"])]
    return any(isinstance(getattr(each, "func", None), ast.Subscript) for each in above)


def is_no_address(at: Spot, found: Holes) -> bool:
    return not has_strides(at.statement)


# --- the table

# Each comparison with the one that differs in the bound itself, and the one that looks the other way.
_BOUNDS = rules(
    "_a >= _b -> _a > _b; _a > _b -> _a >= _b; _a <= _b -> _a < _b; _a < _b -> _a <= _b",
    are_counts,
)
_TURN = (
    "2: _a OLD _b -> _a NEW _b; 2.5: _a OLD _b -> _a OLD _b + 1; 2.5: _a OLD _b -> _a OLD _b - 1"
)
_TURNED = tuple[Swap, ...]()
for _old, _new in ((">=", "<="), (">", "<"), ("<=", ">="), ("<", ">")):
    _TURNED += rules(_TURN.replace("OLD", _old).replace("NEW", _new))
# A factor of both sides of a difference, or of one.
_FACTOR = """
    1.4: (_a - _b) * _c -> _a * _c - _b; 1.5: (_a - _b) * _c -> _a - _b * _c;
    1.5: _a * _c - _b -> (_a - _b) * _c; 1.5: _a - _b * _c -> (_a - _b) * _c
"""
_FACTORS = rules(_FACTOR) + rules(_FACTOR.replace(" - ", " + "))
_OTHER_SIGN = rules("0.9: _a + _b -> _a - _b; 0.9: _a - _b -> _a + _b", is_no_address) + rules("""
    1.2: _a += _b -> _a -= _b; 1.2: _a -= _b -> _a += _b; 2: _a * _b -> _a / _b; 2: _a / _b -> _a * _b;
    1.2: _a *= _b -> _a /= _b; 1.2: _a /= _b -> _a *= _b
""")
# A row along the other axis, where a product or a difference takes it along the last one, or as another one does.
_AXES = rules("0.9: _row @ _b -> _row[:, None] in _row; 0.9: _a @ _row -> _row[:, None] in _row")
_AXES += rules("1.4: _a[:, None] -> _a[None, :]; 1.4: _a[None, :] -> _a[:, None]", is_no_address)
_PARTS = rules("0.5: CLAMP(_a, _b) -> _a; 0.5: CLAMP(_a, _b) -> _b", is_clamp) + rules("""
    1: _a @ _number -> _a; 1.4: _a @ _scale -> _a; 1.9: _a @ _b -> _a; 1.9: _a + _b -> _b; 1.9: _a * _b -> _b;
    1.9: _a & _b -> _b; 1.9: _a | _b -> _b; 2: -_a -> _a; 2: ~_a -> _a; 1: _a.to(*_) -> _a;
    -0.3: _a.to(*_).to(*_) -> _a; 1.5: where(_t, _a, _b) -> _a; 2: where(_t, _a, _b) -> tl.where(_t, _b, _a)
""")
# The ends of a loop a step further or nearer, or without what is added to them; where that is a step, at once.
_ENDS = """
    1: RANGE(_a, _b) -> 0 in _a; 1.5: RANGE(_a, _b) -> _a + _c in _a; 1.5: RANGE(_a, _b) -> _a - _c in _a;
    1.5: RANGE(_a, _b) -> _b + _c in _b; 1.5: RANGE(_a, _b) -> _b - _c in _b;
    0.9: RANGE((_end := _a @ _x), _b) -> _a in _end; 0.9: RANGE(_a, (_end := _b @ _x)) -> _b in _end;
    0: RANGE((_end := _a @ _c), _b) -> _a in _end; 0: RANGE(_a, (_end := _b @ _c)) -> _b in _end
"""
_ENDS_OF_LOOPS = rules(_ENDS.replace("_c", "1")) + rules(_ENDS.replace(") ->", ", _c) ->"))

_ROUND = "_a = (_value := ROUNDED(*_)) -> _value.to(tl.bfloat16).to(tl.float32) in _value"

ROWS: tuple[Row, ...] = (
    Row("other-text", undoes=(
        grammar.of_siblings, *_FACTORS, *_OTHER_SIGN, grammar.moved, grammar.grown)),
    Row("another-stride", fault="S1", plants=(another_stride,), undoes=(grammar.another_name,), of_hosts=True),
    Row("other-tensors-strides", "the strides of {old} are passed for those of {new}", "S1",
        (other_owner,), planted_in="hosts"),
    Row("own-strides-swapped", "two strides of one tensor are swapped", "S3",
        (own_strides_swapped,), again=0.7),
    Row("term-dropped", "an offset lacks a term: {new}", "S3",
        rules("_a + _term -> _a; _term + _a -> _a; _a += _term -> _a += 0", is_scalar_term),
        (grammar.term_missing,)),
    Row("divisions-mixed-up", "an index is taken apart by {old} and not by {new}", "S3",
        rules("_a // _index -> _a % _index; _a % _index -> _a // _index"), again=0.7),
    Row("wide-offset-dropped", "an offset of 32 bits overflows", "I64",
        rules("_a.to(tl.int64, *_) -> _a")),
    Row("bound-off-by-one", "a bound is off: {old} for {new}", "", _BOUNDS, _TURNED, again=0.7),
    Row("operand-dropped", "a mask lacks a condition", "",
        rules("_a & _lost -> _a; _lost & _a -> _a; _a &= _b -> pass as M1"),
        (grammar.test_added,)),
    Row("guard-dropped", "nothing hides what this position may not see", "M1", rules("""
        where(_a == _inf, _x, _b) -> _b as N1; where(_a != _inf, _b, _x) -> _b as N1;
        where(_a > _inf, _b, _x) -> _b as N1; where(_t, _a, _inf) -> _a; where(_t, _a, _zero) -> _a
        """), (grammar.guard_added,)),
    Row("mask-dropped", "an access has no mask", "M3", (mask_dropped,), (grammar.mask_put_on,)),
    Row("padding-changed", "what is masked off is {old} and not {new}", "M3",
        rules("ACCESS(*_, other=_zero) -> 1.0 in _zero; ACCESS(*_, other=_other) -> 0.0 in _other"), again=1.0),
    Row("range-cut", "a loop leaves tiles out, or takes too many", "M2", rules("""
        RANGE(_a, _b, _c) -> _b // _c * _c in _b as M3; RANGE(_zero, _b, _c) -> _c in _zero;
        RANGE(_other, _b, _c) -> _other + _c in _other
        """), rules("_a // _b * _c -> _a") + _ENDS_OF_LOOPS, of_hosts=True),
    Row("last-tile-lost", "the last tile is lost, or one too many is begun", "M3",
        rules("cdiv(_a, _b) -> _a // _b"), rules("""
        0.4: cdiv(_a, _b) -> _a // _b; 0.4: (_a + _b - 1) // _b -> _a // _b; 0.4: _a // _b -> triton.cdiv(_a, _b)
        """), of_hosts=True, planted_in="functions"),
    Row("blocks-mixed-up", fault="M2",
        plants=rules("_rows -> BLOCK_N; _columns -> BLOCK_M", is_in_no_shape), again=1.0),
    Row("zeros-not-written", "memory that nobody wrote is added to", "N2",
        rules("zeros(*_) -> .empty; new_zeros(*_) -> .new_empty; zeros_like(*_) -> .empty_like"), rules("""
        0.5: empty(*_) -> .zeros; 0.5: new_empty(*_) -> .new_zeros; 0.5: empty_like(*_) -> .zeros_like
        """), of_hosts=True, planted_in="hosts"),
    Row("factor-dropped", "a factor is missing", "A",
        rules("_a * _scale -> _a; _scale * _a -> _a; _a *= _b -> _a *= 1.0"), (grammar.factor_added,)),
    Row("subtrahend-changed", "a row is not subtracted, or along the wrong axis", "A",
        rules("_a - _delta -> _a; _a - _delta -> _a + _delta"), (grammar.delta_taken, *_AXES)),
    Row("other-part", undoes=(grammar.constant_changed, *_PARTS), of_hosts=True),
    Row("other-base", "{old} stands for {new}: the other base", "A",
        rules("exp(*_) -> .exp2; exp2(*_) -> .exp; log(*_) -> .log2; log2(*_) -> .log"), again=0.7),
    Row("passed-otherwise", undoes=(
        grammar.exchanged, grammar.size_added, *rules("-2: not _a -> _a", is_passed)), of_hosts=True),
    Row("transpose-dropped", "a product takes {old} and not {new}", "A",
        rules("trans(_a, *_) -> _a; _a.trans() -> _a; _a.T -> _a"),
        rules("1.2: dot(_a, *_) -> tl.trans(_a) in _a; 1.2: dot(_a, _b, *_) -> tl.trans(_b) in _b"), again=2.0),
    Row("sum-overwritten", "a sum is overwritten, or the reverse", "ACC",
        rules("_a += _b -> _a = _b", is_sum),
        rules("0.9: _a = _b -> _a += _b", has_value) + rules("2.5: _a += _b -> _a = _b")),
    Row("atomic-stored", "programs overwrite one another's share of a sum, or add twice", "ACC",
        rules("atomic_add(*_) -> .store", is_statement), rules("1.4: store(*_) -> .atomic_add"), again=2.0),
    Row("barrier-dropped", "a barrier is missing", "RACE", rules("BARRIER(*_) -> pass", is_statement)),
    Row("rounded-early", "a value is rounded before it is used", "PREC",
        rules(_ROUND) + rules(_ROUND.replace("=", "+=", 1))),
)  # fmt: skip
OPERATORS = {row.name: row.changes for row in ROWS if row.plants}
