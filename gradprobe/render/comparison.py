"""What changed between two reports: verdicts, heads that became wrong or right, errors that moved, causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import msgspec
from msgspec import Struct

from ..model.documents import Reports
from ..model.number import plural
from ..model.report import Report
from ..model.run import MATCH, MISMATCH, NOT_EXPOSED, SKIPPED, Intermediate, Run
from .text import ratio

SCHEMA = "gradprobe.comparison/1"
WORSE, BETTER, SAME = "worse", "better", "same"
# Errors within this factor of one another are the same: another seed or device moves them so far.
MOVED = 2.0
# What is worse than what: a layout that is refused, or not run, is not known to be wrong.
_RANKS = {MATCH: 0, SKIPPED: 1, MISMATCH: 3}


class Change(Struct, frozen=True):
    """One thing that changed."""

    check: str
    """The target, and the title of its case."""
    what: str
    """A verdict, a layout, an intermediate in a layout, a cause, an option."""
    before: str
    after: str
    became: str = ""
    """WORSE or BETTER; "" of what is neither."""


def changes_of(before: Reports, after: Reports) -> list[Change]:
    """What changed, check by check: checks go by their target and title, runs by their layout."""
    old, new = ({report.name: report for report in reports.reports} for reports in (before, after))
    if len(old) == len(new) == 1:  # of one target under two names, as of two files
        new = dict(zip(old, new.values(), strict=True))
    found = [
        Change(name, "check", report.verdict, "not made", WORSE) for name, report in old.items() if name not in new
    ]
    for name, report in new.items():
        if name in old:
            found += _of_check(name, old[name], report)
        else:
            found.append(Change(name, "check", "not made", report.verdict, "" if report.verdict == MATCH else WORSE))
    return found


def verdict_of(changes: Sequence[Change]) -> str:
    """WORSE where anything is; else BETTER where anything is; else SAME."""
    became = {change.became for change in changes}
    return WORSE if WORSE in became else BETTER if BETTER in became else SAME


def comparison_as_json(changes: Sequence[Change]) -> dict[str, Any]:
    """All of it, ready for `json.dumps`."""
    return {"schema": SCHEMA, "verdict": verdict_of(changes), "changes": msgspec.to_builtins(list(changes))}


def render_comparison(changes: Sequence[Change]) -> Iterator[str]:
    """A line for each change, what is worse first, below one that counts them."""
    counts = [f"{sum(change.became == word for change in changes)} {word}" for word in (WORSE, BETTER)]
    yield f"{verdict_of(changes).upper()}  {plural(len(changes), 'change')}: {', '.join(counts)}"
    for change in sorted(changes, key=lambda change: (WORSE, BETTER, "").index(change.became)):
        yield f"  {change.became or 'other':<7} {change.check}, {change.what}: {change.before} -> {change.after}"


def _of_check(name: str, old: Report, new: Report) -> Iterator[Change]:
    yield from _of_cases(name, old, new)
    yield from _of_verdicts(name, "verdict", old.verdict, new.verdict)
    yield from _of_causes(name, old, new)
    before, after = ({run.layout: run for run in report.runs} for report in (old, new))
    for layout in dict.fromkeys((*before, *after)):
        if layout in before and layout in after:
            yield from _of_runs(name, before[layout], after[layout])
        else:
            old_verdict, verdict = (runs[layout].verdict if layout in runs else "not run" for runs in (before, after))
            worse = layout in after and _rank(verdict) > _rank(MATCH)
            yield Change(name, layout, old_verdict, verdict, WORSE if worse else "")


def _of_cases(name: str, old: Report, new: Report) -> Iterator[Change]:
    """Options in which two cases differ: then it is they that may have changed the rest."""
    if old.case is None or new.case is None:
        return
    for field in fields(old.case):
        before, after = (getattr(case, field.name) for case in (old.case, new.case))
        if before != after:
            yield Change(name, f"option {field.name}", str(before), str(after))


def _rank(verdict: str) -> int:
    return _RANKS.get(verdict, 2)


def _of_verdicts(name: str, what: str, before: str, after: str) -> Iterator[Change]:
    if before != after:
        yield Change(name, what, before, after, WORSE if _rank(after) > _rank(before) else BETTER)


def _of_causes(name: str, old: Report, new: Report) -> Iterator[Change]:
    before, after = ({cause.fault: cause.summary for cause in report.causes} for report in (old, new))
    for fault, summary in before.items():
        if fault not in after:
            yield Change(name, f"cause {fault}", summary, "gone", BETTER)
    for fault, summary in after.items():
        if fault not in before:
            yield Change(name, f"cause {fault}", "none", summary, WORSE)


def _of_runs(name: str, old: Run, new: Run) -> Iterator[Change]:
    yield from _of_verdicts(name, old.layout, old.verdict, new.verdict)
    before, after = ({one.name: one for one in run.intermediates} for run in (old, new))
    for known, one in after.items():
        if known in before:
            yield from _of_intermediates(name, f"{known} in {old.layout}", before[known], one)


def _of_intermediates(name: str, what: str, old: Intermediate, new: Intermediate) -> Iterator[Change]:
    if NOT_EXPOSED in (old.status, new.status):
        if old.status != new.status:
            yield Change(name, what, old.status, new.status)
        return
    before, after = ({(head.batch, head.head) for head in one.heads if head.mismatched} for one in (old, new))
    if before != after:
        then, now = (f"{plural(len(heads), 'head')} wrong" for heads in (before, after))
        yield Change(name, what, then, now, WORSE if after - before else BETTER)
    elif max(old.ratio, new.ratio) > MOVED * min(old.ratio, new.ratio):
        # Within its budget no error is worse than another.
        became = "" if max(old.ratio, new.ratio) <= 1 else WORSE if new.ratio > old.ratio else BETTER
        then, now = (f"worst {ratio(one.ratio)}x" for one in (old, new))
        yield Change(name, what, then, now, became)
