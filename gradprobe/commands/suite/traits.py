"""Traits: what is said of a case along each axis, and which of them set the cases that fail apart from the others."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ...model.assignment import parse_run
from ...model.case import Case
from ...model.failures import UsageFailure

Trait = tuple[str, str]
"""(axis, words that follow "all 14 failures have"). The last word of an axis is its subject."""
# The sizes of usual tiles.
_TILES = (16, 32, 64, 128)
# What one sentence joins at most: faults that need three things at once are known, and none that needs four.
_JOINED = 3
# Sentences of one kind at most.
_TOLD = 3
# How probable it may be that cases which fail at random have it in common: one sentence in twenty.
_CHANCE = 0.05
# What is on or off, and what has one of several values.
_SWITCHED = {
    "causal": "a causal mask", "window": "a window", "mask": "a mask", "seqlens": "padding", "cu_seqlens_q": "packing",
    "softcap": "a softcap", "bias": "a bias", "alibi": "alibi slopes", "sinks": "sinks", "dropout": "dropout",
    "poison": "poison",
}  # fmt: skip
_VALUED = (
    "dtype", "pattern", "mask", "window", "bias_axes", "align", "dots", "block_m", "block_n", "repeat", "batch",
)  # fmt: skip


@dataclass(frozen=True)
class Instance:
    """A case in one of its layouts."""

    number: int
    """Of its check."""
    traits: tuple[Trait, ...]
    """Of one axis the sharpest first."""

    @classmethod
    def of(cls, number: int, case: Case, layout: str, *, square: bool) -> Instance:
        """What is said of a case.

        Args:
            square: whether every case that it is set beside has as many keys as rows.
        """
        told = (_of_lengths(case, square), _of_heads(case), _of_options(case), _of_layout(layout))
        return cls(number, tuple(dict.fromkeys(itertools.chain(*told))))


def _compared(axis: str, name: str, size: int, other: str, than: int) -> Iterator[Trait]:
    """How one size stands to another."""
    if size != than:
        yield axis, f"{name} {'<' if size < than else '>'} {other}"
    yield axis, f"{name} {'=' if size == than else '!='} {other}"


def _of_lengths(case: Case, square: bool) -> Iterator[Trait]:
    rows, keys = case.seqlen_q, case.seqlen_k
    yield from _compared("shape", "Lq", rows, "Lk", keys)
    for name, length in (("L", rows),) if square else (("Lq", rows), ("Lk", keys)):
        axis = f"{name} length"
        yield axis, f"{name} = {length}"
        yield from (
            (axis, f"{name} {'no' if length % t else 'a'} multiple of {t}") for t in _TILES
        )
        yield from ((axis, f"{name} {'<' if length < tile else '>='} {tile}") for tile in _TILES)


def _of_heads(case: Case) -> Iterator[Trait]:
    grouped = case.heads != case.kv_heads
    if grouped and case.kv_heads == 1:
        yield "groups", "one key head for all heads"
    yield "groups", "fewer key heads than heads" if grouped else "as many key heads as heads"
    yield "heads", f"H = {case.heads}"
    yield "heads", "one head" if case.heads == 1 else "several heads"
    dim = case.head_dim
    yield "head dim", f"D = {dim}"
    yield "head dim", f"D {'no' if dim & (dim - 1) else 'a'} power of two"
    yield from (("head dim", f"D {'<' if dim < tile else '>='} {tile}") for tile in _TILES)
    yield from _compared("value dim", "Dv", case.head_dim_v, "D", dim)


def _of_options(case: Case) -> Iterator[Trait]:
    for name in _VALUED:
        value = getattr(case, name)
        if value is not None and (name != "bias_axes" or case.bias):
            axis, sign = name.replace("_", "-"), "" if isinstance(value, str) else "= "
            words = ",".join(map(str, value)) if isinstance(value, tuple) else value
            yield axis, f"{axis} {sign}{words}"
    for name, title in _SWITCHED.items():
        bare = title.removeprefix("a ")
        axis = bare.removesuffix(" mask") if name == "causal" else bare
        yield axis, title if getattr(case, name) else f"no {bare}"
    if case.dtype != "float32":
        yield "dtype", "a dtype of 16 bits"
    if not math.isclose(case.scale, float(case.head_dim) ** -0.5, rel_tol=1e-12):
        yield "scale", "a scale of its own"


def _of_layout(layout: str) -> Iterator[Trait]:
    try:
        placed = dict(parse_run(layout)) or {"all": "contiguous"}
    except UsageFailure:  # no layout of the case's own
        return
    if "all" in placed:
        yield "layout", f"layout {layout}"
    for tensor, title in (("do", "dO"), ("q", "q"), ("k", "k"), ("v", "v")):
        name = placed.get(tensor, placed.get("all", "contiguous"))
        yield f"{title} layout", f"{title} {name}"
        if name.startswith("distinct"):
            yield f"{title} layout", f"{title} in strides of its own"
        yield f"{title} layout", f"{title} {'' if name == 'contiguous' else 'not '}contiguous"


def set_apart(failing: Sequence[Instance], matching: Sequence[Instance]) -> tuple[str, ...]:
    """What all that fail have, and none, or surprisingly few, of what matches: sentences, none where nothing is.

    A single trait that no match has is a fact, and is told. What is joined of several, or is not of failures alone, is
    told where cases that fail at random would have it so in fewer than one of twenty such tables.
    """
    if not failing or not matching:
        return ()
    count, sharpest = _count(failing), _sharpest(failing, matching)
    having = {trait: _having(trait, matching) for trait in sharpest}
    head = f"all {count} failures have" if count > 1 else "the failure has"
    if sole := [trait for trait in sharpest if not having[trait]]:
        subjects = {axis.split()[-1]: words for axis, words in reversed(sole)}
        told = [words for _, words in sole if words in subjects.values()]
        return tuple(f"{head} {words}, no match has" for words in told[:_TOLD])
    # Of those that the same matches have, the first says it all.
    telling = list({having[trait]: trait for trait in reversed(sharpest)}.values())[::-1]
    if joined := _joined(telling, failing, matching):
        *others, last = (words for _, words in joined)
        both = "both" if len(joined) == 2 else "all"
        return (f"{head} {', '.join(others)} and {last}, no match has {both}",)
    matches, rare = _count(matching), []
    for trait in telling:
        few = _count([matching[at] for at in having[trait]])
        # Of all choices of so many failures, those in which each has the trait; and any of these traits would be told.
        chance = len(telling) * math.comb(count + few, count) / math.comb(count + matches, count)
        if chance < _CHANCE:
            rare.append((chance, f"{head} {trait[1]}, and {few} of {matches} matches"))
    return tuple(sentence for _, sentence in sorted(rare)[:_TOLD])


def _sharpest(failing: Sequence[Instance], matching: Sequence[Instance]) -> list[Trait]:
    """Of each axis the trait of all failures that the fewest matches have; none that all have."""
    common = list(failing[0].traits)
    for case in failing:
        common = [trait for trait in common if trait in case.traits]
    if _count(failing) == 1:  # a number of its own is nothing that it has in common
        common = [trait for trait in common if not re.search(r" = .*\d$", trait[1])]
    counts = {trait: len(_having(trait, matching)) for trait in common}
    found: dict[str, Trait] = {}
    for trait in sorted(common, key=lambda trait: counts[trait]):
        if counts[trait] < len(matching):
            found.setdefault(trait[0], trait)
    return [trait for trait in common if trait in found.values()]


def _having(trait: Trait, cases: Sequence[Instance]) -> tuple[int, ...]:
    return tuple(at for at, case in enumerate(cases) if trait in case.traits)


def _count(instances: Collection[Instance]) -> int:
    return len({case.number for case in instances})


def _joined(
    traits: Sequence[Trait], failing: Sequence[Instance], matching: Sequence[Instance]
) -> tuple[Trait, ...]:
    """The fewest traits that no match has together; none where chance, or another choice, would do as well."""
    # One table of all with so many failures among them.
    tables = math.comb(_count([*failing, *matching]), _count(failing))
    matches = [set(case.traits) for case in matching]
    for size in range(2, _JOINED + 1):
        choices = itertools.combinations(traits, size)
        found = [some for some in choices if not any(map(set(some).issubset, matches))]
        if found:
            is_told = len(found) == 1 and math.comb(len(traits), size) <= _CHANCE * tables
            return found[0] if is_told else ()
    return ()
