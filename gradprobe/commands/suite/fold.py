"""Failures of several checks, folded by their cause: each once, with what sets its cases apart, and a smallest case."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, filterfalse
from operator import attrgetter

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import parse
from ...model.allowance import LAST_RESORT
from ...model.assignment import parse_run
from ...model.case import Case
from ...model.documents import FailureGroup
from ...model.failures import UsageFailure
from ...model.layout_run import CRASHED, FAILED, MATCH, MISMATCH
from ...model.report import Report
from ...model.resolution import resolve
from ...processes import run_each

# By name: the search is a plan of this folder's runner.
SHRINKER = "gradprobe.commands.shrink.shrinking:Shrinker"

Trait = tuple[str, str]
"""(axis, words that follow "all 14 failures have"). The last word of an axis is its subject."""
Instance = tuple[int, tuple[Trait, ...]]
"""A case in one of its layouts: the number of its check, and what is said of it."""
# The sizes of usual tiles.
_TILES = (16, 32, 64, 128)
# What one sentence joins at most, since no fault is known that needs four things at once; sentences of one kind.
_JOINED, _TOLD = 3, 3
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


def folded_by_cause(
    reports: Sequence[Report], closer: Report | None = None
) -> tuple[FailureGroup, ...]:
    """One group for each cause: the mismatches first, each kind in the order of the checks.

    Two failures have one cause where the same fault is named at the same line; where none is named, where the same
    intermediate is wrong first; and of errors, where the same happened at the same place.

    Args:
        closer: of one of them what came of a check that looked closer. A cause that it names is that of all that were
            like it before.
    """
    counted = sorted(filterfalse(attrgetter("is_warning"), reports), key=attrgetter("number"))
    found: dict[tuple[str, ...], list[Report]] = {}
    for report in counted:
        if report.verdict in (MISMATCH, FAILED):
            found.setdefault(_key(report), []).append(report)
    if closer is not None and closer.causes:
        named: dict[tuple[str, ...], list[Report]] = {}
        for key, those in found.items():
            looked = [closer if report.number == closer.number else report for report in those]
            named.setdefault(_key(closer) if closer in looked else key, []).extend(looked)
        found = named
    groups = sorted(found.values(), key=lambda those: those[0].verdict != MISMATCH)
    common = _common_traits(groups, counted)
    return tuple(map(_group, groups, common))


def _key(report: Report) -> tuple[str, ...]:
    """What failures of one cause have in common."""
    error = report.error
    if report.verdict != FAILED or error is None:
        return report.target.name, report.verdict, _cause(report)
    # What is the same but for its numbers is the same.
    words = re.sub(r"\d+", "0", error.words or error.message)
    return report.target.name, error.kind, str(error.file), str(error.line), words


def _cause(report: Report) -> str:
    """The fault with its line; else what is first wrong, or what the target's code raised, with its line."""
    error = report.error
    if report.causes:
        named = report.causes[0]
        where = named.where[0] if named.where else None
        at = f" at {os.path.basename(where.file)}:{where.line}" if where else ""
        return f"{named.fault}{at}"
    if report.verdict != FAILED:
        return f"{_first_wrong(report)}, no cause named"
    if error is None:
        return FAILED
    raised = re.search(r" raised (\w+)", error.message)
    place = error.details[0].partition(" in ")[0] if error.details else ""
    return f"{raised[1]} at {place}" if raised and place else error.kind


def _first_wrong(report: Report) -> str:
    """What is first wrong, in the words that follow a count of failures."""
    run, memory = report.failing, report.memory
    if run is not None and run.first_mismatch:
        return f"{run.first_mismatch.title} first"
    if run is not None and run.broken:
        return f"breaks {run.broken[0].name}"
    return f"{memory[0].kind} {memory[0].tensor}".strip() if memory else "an error after it"


def _group(reports: Sequence[Report], common: tuple[str, ...]) -> FailureGroup:
    first = reports[0]
    return FailureGroup(
        verdict=first.verdict,
        cause=_cause(first),
        summary=first.causes[0].summary if first.causes else "",
        titles=tuple(map(attrgetter("title"), reports)),
        numbers=tuple(map(attrgetter("number"), reports)),
        common=common,
    )


def with_smallest(
    groups: Sequence[FailureGroup],
    requests: Mapping[int, CheckRequest],
    tries: int,
    workers: int,
) -> tuple[FailureGroup, ...]:
    """The groups of mismatches with a smallest case each, as far as it is found in so many tries, shared by all."""
    found, wanted = list(groups), list[int]()
    for at, group in enumerate(groups):
        if group.is_mismatch and group.numbers[0] in requests:
            wanted.append(at)
    share = math.ceil(tries / max(1, len(wanted)))
    asked = [requests[groups[at].numbers[0]] for at in wanted] if share else []
    for ended in run_each(SHRINKER, share, asked, timeout=LAST_RESORT, workers=workers):
        at = wanted[ended.index]
        found[at] = structs.replace(found[at], shrunk=ended.result)
    return tuple(found)


def _common_traits(
    groups: Sequence[Sequence[Report]], reports: Sequence[Report]
) -> list[tuple[str, ...]]:
    """What sets each group apart from what matches of its target; nothing where the case of one is not known."""
    family = next((report.case.family for report in reports if report.case), "softmax")
    cases = {report.number: _case_of(report, family) for report in reports}
    square = all(case is None or case.seqlen_q == case.seqlen_k for case in cases.values())
    matching: dict[str, list[Instance]] = {}
    failing: dict[int, list[Instance]] = {}
    for report in reports:
        case, number, wrong = cases[report.number], report.number, list[str]()
        right = matching.setdefault(report.target.name, [])
        if case is None:
            continue
        for run in report.runs:
            if run.verdict in (MISMATCH, FAILED, CRASHED):
                wrong.append(run.layout.partition(", ")[0])
        # Of a check that came to no layout, which it was is not known.
        wrong = wrong or [""] * (report.verdict == FAILED)
        matched = [run.layout for run in report.runs if run.verdict == MATCH]
        for layout in dict.fromkeys((*wrong, *matched)):
            those = failing.setdefault(number, []) if layout in wrong else right
            those.append((number, traits_of(case, layout, square=square)))
    common = []
    for group in groups:
        instances = [failing.get(report.number, []) for report in group]
        flat = [*chain(*instances)] if all(instances) else []
        common.append(set_apart(flat, matching[group[0].target.name]))
    return common


def _case_of(report: Report, family: str) -> Case | None:
    """The case of a check, also of one that nobody got as far as making; None where there is none."""
    if report.case is not None:
        return report.case
    words = {**parse(report.options), "device": "cpu"}
    try:
        return resolve(words, report.target.family or family, takes_bias=False)
    except UsageFailure:
        return None


def traits_of(case: Case, layout: str, *, square: bool) -> tuple[Trait, ...]:
    """What is said of a case in a layout, the sharpest first; `square` where all cases have as many keys as rows."""
    said = [*_of_sizes(case, square), *_of_options(case), *_of_layout(layout)]
    return tuple(dict.fromkeys(said))


def _compared(axis: str, name: str, size: int, other: str, than: int) -> Iterator[Trait]:
    """How one size stands to another."""
    if size != than:
        yield axis, f"{name} {'<' if size < than else '>'} {other}"
    yield axis, f"{name} {'=' if size == than else '!='} {other}"


def _of_sizes(case: Case, square: bool) -> Iterator[Trait]:
    rows, keys, dim = case.seqlen_q, case.seqlen_k, case.head_dim
    yield from _compared("shape", "Lq", rows, "Lk", keys)
    for name, length in (("L", rows),) if square else (("Lq", rows), ("Lk", keys)):
        axis = f"{name} length"
        yield axis, f"{name} = {length}"
        for tile in _TILES:
            yield axis, f"{name} {'no' if length % tile else 'a'} multiple of {tile}"
        for tile in _TILES:
            yield axis, f"{name} {'<' if length < tile else '>='} {tile}"
    grouped = case.heads != case.kv_heads
    if grouped and case.kv_heads == 1:
        yield "groups", "one key head for all heads"
    yield "groups", "fewer key heads than heads" if grouped else "as many key heads as heads"
    yield "heads", f"H = {case.heads}"
    yield "heads", "one head" if case.heads == 1 else "several heads"
    yield "head dim", f"D = {dim}"
    yield "head dim", f"D {'no' if dim & (dim - 1) else 'a'} power of two"
    for tile in _TILES:
        yield "head dim", f"D {'<' if dim < tile else '>='} {tile}"
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
    """What all that fail have, and none of what matches: sentences, none where nothing is.

    A single trait is a fact, and is told. What is joined of several is told where cases that fail at random would have
    it so in fewer than one of twenty such tables.
    """
    if not failing or not matching:
        return ()
    count = _count(failing)
    head = f"all {count} failures have" if count > 1 else "the failure has"
    sole, telling = dict[str, str](), dict[tuple[int, ...], str]()
    for (axis, words), having in _sharpest(failing, matching).items():
        if not having:
            sole.setdefault(axis.split()[-1], words)
        # Of those that the same matches have, the first says it all.
        telling.setdefault(having, words)
    if sole:
        return tuple(f"{head} {words}, no match has" for words in [*sole.values()][:_TOLD])
    # One table of all with so many failures among them.
    tables = math.comb(_count([*failing, *matching]), count)
    for size in range(2, _JOINED + 1):
        choices = combinations(telling, size)
        found = [some for some in choices if not set(some[0]).intersection(*some[1:])]
        if len(found) == 1 and math.comb(len(telling), size) <= _CHANCE * tables:
            *others, last = map(telling.__getitem__, found[0])
            both = "both" if size == 2 else "all"
            return (f"{head} {', '.join(others)} and {last}, no match has {both}",)
        if found:  # chance, or another choice, would do as well
            break
    return ()


def _sharpest(
    failing: Sequence[Instance], matching: Sequence[Instance]
) -> dict[Trait, tuple[int, ...]]:
    """Of each axis the trait of all failures that the fewest matches have, with these; none that all have."""
    common, found = dict[Trait, tuple[int, ...]](), dict[str, Trait]()
    first, *others = (traits for _, traits in failing)
    for trait in first:
        # A number of a single failure is nothing that it has in common.
        is_own = _count(failing) == 1 and re.search(r" = .*\d$", trait[1])
        if not is_own and all(trait in traits for traits in others):
            having = [at for at, (_, traits) in enumerate(matching) if trait in traits]
            common[trait] = tuple(having)
    for trait in sorted(common, key=lambda trait: len(common[trait])):
        if len(common[trait]) < len(matching):
            found.setdefault(trait[0], trait)
    return {trait: having for trait, having in common.items() if trait in found.values()}


def _count(instances: Iterable[Instance]) -> int:
    return len(dict(instances))
