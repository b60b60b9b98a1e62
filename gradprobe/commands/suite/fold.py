"""Failures of several checks, folded by their cause."""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, filterfalse
from operator import attrgetter

from msgspec import structs

from ...inputs.history import CheckRequest
from ...model.allowance import LAST_RESORT
from ...model.assignment import parse_run
from ...model.case import Case, flag_of
from ...model.documents import FailureGroup
from ...model.failures import UsageFailure
from ...model.layout_run import CRASHED, FAILED, MATCH, MISMATCH
from ...model.report import Report
from ...processes import run_each

# By name: the search is a plan of this folder's runner.
SHRINKER = "gradprobe.commands.shrink.shrinking:Shrinker"

Trait = tuple[str, str]
"""(axis, words that follow "all 14 failures have"). The last word of an axis is its subject."""
Instance = tuple[int, tuple[Trait, ...]]
"""The number of a check, and what is said of one of its layouts."""
# The sizes of usual tiles.
_TILES = (16, 32, 64, 128)
# What one sentence joins at most, since no fault is known that needs four things at once; sentences of one kind.
_JOINED, _TOLD = 3, 3
# How probable it may be that cases which fail at random have it in common: one sentence in twenty.
_CHANCE = 0.05
_BAD = (MISMATCH, FAILED, CRASHED)
# What a case has or has not, or in one of several ways.
_OPTIONS = (
    "dtype", "pattern", "causal", "window", "mask", "seqlens", "cu_seqlens_q", "softcap", "bias", "alibi", "sinks",
    "dropout", "poison", "bias_axes", "align", "dots", "block_m", "block_n", "repeat", "batch", "scale",
)  # fmt: skip


def folded_by_cause(
    reports: Sequence[Report], closer: Report | None = None
) -> tuple[FailureGroup, ...]:
    """One group for each cause: the mismatches first, each kind in the order of the checks.

    Two failures have one cause where the same fault is named at the same line; where none is named, where the same
    intermediate is wrong first; and of errors, where the same happened at the same place. A cause that a `closer` look
    at one names is that of all that were like it before.
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
    several = sorted(found.values(), key=lambda those: those[0].verdict != MISMATCH)
    return tuple(_group(those, counted) for those in several)


def _group(those: Sequence[Report], counted: Sequence[Report]) -> FailureGroup:
    first = those[0]
    return FailureGroup(
        verdict=first.verdict,
        cause=_cause(first),
        summary=first.causes[0].summary if first.causes else "",
        titles=tuple(map(attrgetter("title"), those)),
        numbers=tuple(map(attrgetter("number"), those)),
        common=_common_traits(those, counted),
    )


def _key(report: Report) -> tuple[str, ...]:
    key, error = (report.target.name, report.verdict, _cause(report)), report.error
    if report.verdict != FAILED or error is None:
        return key
    # What is the same but for its numbers is the same.
    return *key, re.sub(r"\d+", "0", error.words or error.message)


def _cause(report: Report) -> str:
    """The fault with its line; else what is first wrong, or what the target's code raised."""
    error = report.error
    if report.causes:
        named = report.causes[0]
        where = named.where[0] if named.where else None
        at = f" at {os.path.basename(where.file)}:{where.line}" if where else ""
        return f"{named.fault}{at}"
    if report.verdict != FAILED or error is None:
        run, memory = report.failing, report.memory
        first = f"{memory[0].kind} {memory[0].tensor}".strip() if memory else "an error after it"
        if run is not None and run.broken:
            first = f"breaks {run.broken[0].name}"
        if run is not None and run.first_mismatch:
            first = f"{run.first_mismatch.title} first"
        return f"{first}, no cause named"
    raised = re.search(r" raised (\w+)", error.message)
    place = error.details[0].partition(" in ")[0] if error.details else ""
    return f"{raised[1]} at {place}" if raised and place else error.kind


def with_smallest(
    groups: Sequence[FailureGroup],
    requests: Mapping[int, CheckRequest],
    tries: int,
    workers: int,
) -> tuple[FailureGroup, ...]:
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


def _common_traits(group: Sequence[Report], reports: Sequence[Report]) -> tuple[str, ...]:
    cases = [report.case for report in reports if report.case]
    square = all(case.seqlen_q == case.seqlen_k for case in cases)
    failing, matching = list[Instance](), list[Instance]()
    numbers = set(map(attrgetter("number"), group))
    for report in reports:
        if report.case is None or report.target.name != group[0].target.name:
            continue
        wrong = {run.layout.partition(", ")[0] for run in report.runs if run.verdict in _BAD}
        matched = {run.layout for run in report.runs if run.verdict == MATCH} - wrong
        # Of a check that came to no layout, which it was is not known.
        wrong = wrong or ({""} if report.verdict == FAILED else set())
        for layout in wrong | matched:
            instance = report.number, traits_of(report.case, layout, square=square)
            if layout in matched:
                matching.append(instance)
            elif report.number in numbers:
                failing.append(instance)
    return set_apart(failing, matching) if all(report.case for report in group) else ()


def traits_of(case: Case, layout: str, *, square: bool) -> tuple[Trait, ...]:
    said = [*_of_sizes(case, square), *_of_options(case), *_of_layout(layout)]
    return tuple(dict.fromkeys(said))


def _of_sizes(case: Case, square: bool) -> Iterator[Trait]:
    rows, keys, dim = case.seqlen_q, case.seqlen_k, case.head_dim
    for axis, name, size, other, than in (
        ("shape", "Lq", rows, "Lk", keys),
        ("groups", "Hkv", case.kv_heads, "H", case.heads),
        ("value dim", "Dv", case.head_dim_v, "D", dim),
    ):
        if size != than:
            yield axis, f"{name} {'<' if size < than else '>'} {other}"
        yield axis, f"{name} {'=' if size == than else '!='} {other}"
    yield "heads", f"H = {case.heads}"
    yield "heads", "one head" if case.heads == 1 else "several heads"
    lengths = {"L": rows} if square else {"Lq": rows, "Lk": keys}
    for name, size in {**lengths, "D": dim}.items():
        axis = "head dim" if name == "D" else f"{name} length"
        yield axis, f"{name} = {size}"
        for tile in _TILES:
            yield axis, f"{name} {'no' if size % tile else 'a'} multiple of {tile}"
        for tile in _TILES:
            yield axis, f"{name} {'<' if size < tile else '>='} {tile}"


def _of_options(case: Case) -> Iterator[Trait]:
    for name in _OPTIONS:
        value, flag = getattr(case, name), flag_of(name.removesuffix("_q"))
        words = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if value and not isinstance(value, bool):
            yield flag, f"{flag} {words}"
        yield flag, flag if value else f"no {flag}"


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
        yield f"{title} layout", f"{title} {'' if name == 'contiguous' else 'not '}contiguous"


def set_apart(failing: Sequence[Instance], matching: Sequence[Instance]) -> tuple[str, ...]:
    """What all that fail have, and no match; joined where chance gives that in fewer than one of twenty tables."""
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
    """Of each axis the trait of all failures that the fewest matches have, with these."""
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
