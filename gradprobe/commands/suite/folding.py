"""Failures of several checks, folded by their cause: each once, with what sets its cases apart, and a smallest case."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import parse
from ...model.allowance import LAST_RESORT
from ...model.assignment import run_name
from ...model.case import Case
from ...model.documents import AxisShare, FailureGroup
from ...model.failures import UsageFailure
from ...model.layout_run import CRASHED, FAILED, MATCH, MISMATCH, Error, Run
from ...model.report import Diagnosis, Report
from ...model.resolution import resolve
from ...processes import run_each
from .traits import Instance, set_apart

SHRINKER = f"{__name__}:Shrinker"
# Values of one axis that are told apart; of more, classes.
_FEW = 6


def folded_by_cause(reports: Sequence[Report], in_full: Report | None = None) -> tuple[FailureGroup, ...]:
    """One group for each cause: the mismatches first, each kind in the order of the checks.

    Two failures have one cause where the same fault is named at the same line; where none is named, where the same
    intermediate is wrong first; and of errors, where the same happened at the same place.

    Args:
        in_full: of one of them what came of a check that looked closer. A cause that it names is that of all that were
            like it before.
    """
    numbered = sorted((report for report in reports if not report.is_warning), key=lambda report: report.number)
    found: dict[tuple[str, ...], list[Report]] = {}
    for report in numbered:
        if report.verdict in (MISMATCH, FAILED):
            found.setdefault(_key(report), []).append(report)
    if in_full is not None and in_full.causes:
        found = _named(found, in_full)
    seen = _CheckedCases.of(numbered)
    groups = sorted(found.values(), key=lambda those: those[0].verdict != MISMATCH)
    return tuple(_group(those, seen) for those in groups)


def _named(found: Mapping[tuple[str, ...], list[Report]], in_full: Report) -> dict[tuple[str, ...], list[Report]]:
    named: dict[tuple[str, ...], list[Report]] = {}
    for key, those in found.items():
        closer = [in_full if one.number == in_full.number else one for one in those]
        named.setdefault(_key(in_full) if in_full in closer else key, []).extend(closer)
    return named


def _key(report: Report) -> tuple[str, ...]:
    target = report.target.name
    if report.verdict == FAILED:
        error = report.error
        words = "" if error is None else error.words or error.message
        return (target, *((error.kind, str(error.file), str(error.line)) if error else ()), re.sub(r"\d+", "0", words))
    if report.causes:
        first = report.causes[0]
        return target, first.fault, *((first.where[0].file, str(first.where[0].line)) if first.where else ())
    return target, _first_wrong(report)


def _first_wrong(report: Report) -> str:
    """What is first wrong, in the words that follow a count of failures."""
    run = report.failing
    if run is None or not (run.first_mismatch or run.broken):
        memory = report.memory
        return f"{memory[0].kind} {memory[0].tensor}".strip() if memory else "an error after it"
    return f"{run.first_mismatch.title} first" if run.first_mismatch else f"breaks {run.broken[0].name}"


def _group(reports: Sequence[Report], seen: _CheckedCases) -> FailureGroup:
    first = reports[0]
    cause = first.causes[0] if first.causes else None
    return FailureGroup(
        verdict=first.verdict,
        cause=_describe(first, cause),
        summary=cause.summary if cause else "",
        titles=tuple(report.title for report in reports),
        numbers=tuple(report.number for report in reports),
        common=seen.apart(reports),
    )


def _describe(report: Report, cause: Diagnosis | None) -> str:
    if cause is not None:
        at = f" at {os.path.basename(cause.where[0].file)}:{cause.where[0].line}" if cause.where else ""
        return f"{cause.fault}{at}"
    if report.verdict != FAILED:
        return f"{_first_wrong(report)}, no cause named"
    return _raised(report.error) if report.error else FAILED


def _raised(error: Error) -> str:
    """What the target's code raised, with its line; else what kind of failure it is."""
    raised = re.search(r" raised (\w+)", error.message)
    at = error.details[0].partition(" in ")[0] if error.details else ""
    return f"{raised[1]} at {at}" if raised and at else error.kind


@dataclass(frozen=True)
class _CheckedCases:
    """The cases of all checks."""

    square: bool
    """Whether all have as many keys as rows."""
    family: str
    matching: tuple[tuple[str, Instance], ...] = ()
    """What matches, in each layout, with its target."""

    @classmethod
    def of(cls, reports: Sequence[Report]) -> _CheckedCases:
        family = next((report.case.family for report in reports if report.case), "softmax")
        cases = [case for report in reports if (case := _case(report, family))]
        seen = cls(all(case.seqlen_q == case.seqlen_k for case in cases), family)
        found = [(report.target.name, one) for report in reports for one in seen.instances(report, fail=False)]
        return replace(seen, matching=tuple(found))

    def instances(self, report: Report, *, fail: bool) -> Iterator[Instance]:
        """A report's case in each layout in which it fails, or matches; nothing where the case is not known."""
        case = _case(report, self.family)
        wrong = [_layout(run) for run in report.runs if run.verdict in (MISMATCH, FAILED, CRASHED)]
        right = [run.layout for run in report.runs if run.verdict == MATCH and run.layout not in wrong]
        # Of a check that came to no layout, which it was is not known.
        for layout in dict.fromkeys(wrong or [""] * (report.verdict == FAILED)) if fail else right:
            if case is not None:
                yield Instance.of(report.number, case, layout, square=self.square)

    def apart(self, failing: Sequence[Report]) -> tuple[str, ...]:
        """What sets these failures apart; nothing where the case of one is not known."""
        found = [list(self.instances(report, fail=True)) for report in failing]
        matching = [one for name, one in self.matching if name == failing[0].target.name]
        return set_apart([one for those in found for one in those], matching) if all(found) else ()


def _layout(run: Run) -> str:
    """The layout of a run, also of a second one in it."""
    return run.layout.partition(", ")[0]


def _case(report: Report, family: str) -> Case | None:
    """The case of a check, also of one that nobody got as far as making; None where there is none."""
    if report.case is not None:
        return report.case
    try:
        return resolve({**parse(report.options), "device": "cpu"}, report.target.family or family, takes_bias=False)
    except UsageFailure:
        return None


def by_axis(reports: Sequence[Report]) -> tuple[AxisShare, ...]:
    """How many checks fail for each value along each axis on which their cases differ; warnings are left out.

    Of an axis with many values, classes of them are counted; of axes that part the cases alike, the first.
    """
    counted = [report for report in reports if not report.is_warning]
    seen = _CheckedCases.of(counted)
    cases = [(case, report.verdict != MATCH) for report in counted if (case := _case(report, seen.family)) is not None]
    traits = [Instance.of(0, case, run_name(case.layouts), square=seen.square).traits for case, _ in cases]
    shares: dict[tuple[int, ...], list[AxisShare]] = {}
    for axis in dict.fromkeys(axis for told in traits for axis, _ in told):
        words = _at_one_level([[words for name, words in told if name == axis] for told in traits])
        values = sorted(set(words))
        failed = Counter(word for word, (_, fails) in zip(words, cases, strict=True) if fails)
        found = [AxisShare(axis=axis, value=one, failed=failed[one], made=words.count(one)) for one in values]
        if len(values) > 1:
            parts = tuple(words.index(word) for word in words)
            shares.setdefault(parts, found)
    return tuple(share for those in shares.values() for share in those)


def _at_one_level(levels: Sequence[Sequence[str]]) -> list[str]:
    """One trait of each case, all of one kind: the sharpest of which there are few."""
    for level in range(max(map(len, levels))):
        words = [told[min(level, len(told) - 1)] if told else "others" for told in levels]
        if len(set(words)) <= _FEW:
            return words
    return [told[-1] if told else "others" for told in levels]


@dataclass(frozen=True)
class ToShrink:
    """The simplest failing case of a group."""

    request: CheckRequest
    tries: int
    """How many smaller cases are tried at most."""


class Shrinker:
    """`Shrinker(None)(asked)` is the report of the smallest case that was found; None where nothing smaller was."""

    def __init__(self, setup: None) -> None:
        import torch  # noqa: F401 - outside the time of a search

    def __call__(self, asked: ToShrink) -> Report | None:
        from ..shrink.shrinking import shrink

        result = shrink(
            asked.request,
            most=asked.tries,
            scripted=False,
            alone=False,
            timeout=None,
            told=lambda *words: None,
            echo=sys.stderr.write,
        )
        return result.told.report if result.told and result.told.report.verdict == MISMATCH else None


def with_smallest(
    groups: Sequence[FailureGroup], requests: Mapping[int, CheckRequest], tries: int, workers: int
) -> tuple[FailureGroup, ...]:
    """The groups of mismatches with a smallest case each, as far as it is found in so many tries, shared by all.

    Args:
        requests: of each check, by its number.
    """
    wanted = [at for at, group in enumerate(groups) if group.numbers[0] in requests and group.is_mismatch]
    share = math.ceil(tries / max(1, len(wanted)))
    asked = [ToShrink(requests[groups[at].numbers[0]], share) for at in wanted]
    found = list(groups)
    for ended in run_each(SHRINKER, None, asked, timeout=LAST_RESORT, workers=workers) if share else ():
        at = wanted[ended.index]
        found[at] = structs.replace(found[at], shrunk=ended.result)
    return tuple(found)
