"""Two reports beside one another: what changed between them, and where two targets differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import msgspec
from msgspec import Struct
from rich.text import Text

from ..model.case import unlike
from ..model.documents import Reports
from ..model.layout_run import (
    FAILED,
    MATCH,
    MISMATCH,
    NOT_EXPOSED,
    SKIPPED,
    Difference,
    Head,
    Intermediate,
    Run,
)
from ..model.number import plural, ratio
from ..model.report import Report, SecondCheck
from .notation import (
    BAD,
    CAUTION,
    GOOD,
    blame,
    heads_by_batch,
    heads_in_words,
    place_in_words,
    quoted,
    value,
)
from .report_blocks import ReportBlock, TextLine, Words, lines_in

SCHEMA = "gradprobe.comparison/1"
WORSE, BETTER, SAME = "worse", "better", "same"
# Errors within this factor of one another are the same: another seed or device moves them so far.
MOVED = 2.0
NOT_RUN = "not run"
# What is worse than what: a layout that is refused, or not run, is not known to be wrong.
_RANKS = {MATCH: 0, SKIPPED: 1, MISMATCH: 3}
KINDS = {WORSE: WORSE, BETTER: BETTER, "": "other"}
"""What a change became, and the word for it; what is worse first."""
_STYLES = {WORSE: BAD, BETTER: GOOD, SAME: GOOD, "": CAUTION}


class ReportChange(Struct, frozen=True):
    """One thing that changed."""

    check: str
    """The target, and the title of its case."""
    what: str
    """A verdict, an intermediate, a cause, an option."""
    before: str
    after: str
    became: str = ""
    """WORSE or BETTER; "" of what is neither."""
    layout: str = ""
    """In which; "" of what is said of the check as a whole."""


def changes_of(before: Reports, after: Reports) -> list[ReportChange]:
    """What changed, check by check: checks go by their target and title, runs by their layout."""
    old, new = ({one.name: one for one in reports.reports} for reports in (before, after))
    if len(old) == len(new) == 1:  # of one target under two names, as of two files
        new = dict(zip(old, new.values(), strict=True))
    found = list[ReportChange]()
    for name in [*(name for name in old if name not in new), *new]:
        if name in old and name in new:
            found += _of_check(name, old[name], new[name])
        elif name in old:
            found.append(ReportChange(name, "check", old[name].verdict, "not made", WORSE))
        else:
            verdict = new[name].verdict
            became = "" if verdict == MATCH else WORSE
            found.append(ReportChange(name, "check", "not made", verdict, became))
    return found


def changes_since(before: Report | None, after: Report) -> list[ReportChange]:
    """What the last save of a file changed: layouts and intermediates that both checks have, then causes.

    Args:
        before: None where nothing was compared before.
    """
    if before is None:
        return []
    of_runs, causes = list[ReportChange](), list[ReportChange]()
    for change in _of_check(after.name, before, after):
        if change.layout and not {change.before, change.after} & {NOT_EXPOSED, NOT_RUN}:
            of_runs.append(change)
        # What is right, or not over yet, has no cause.
        elif before.causes and after.causes and change.what.startswith("cause "):
            causes.append(change)
    return sorted(of_runs, key=lambda change: change.what == "verdict") + causes


def verdict_of(changes: Sequence[ReportChange]) -> str:
    """WORSE where anything is; else BETTER where anything is; else SAME."""
    became = {change.became for change in changes}
    return WORSE if WORSE in became else BETTER if BETTER in became else SAME


def comparison_as_json(changes: Sequence[ReportChange]) -> dict[str, Any]:
    """The changes, ready for `json.dumps`."""
    verdict, plain = verdict_of(changes), msgspec.to_builtins(list(changes))
    return {"schema": SCHEMA, "verdict": verdict, "changes": plain}


def counts_in_words(changes: Sequence[ReportChange]) -> str:
    """`2 worse, 1 better`."""
    numbers = Counter(change.became for change in changes)
    words = [f"{numbers[kind]} {word}" for kind, word in KINDS.items() if numbers[kind]]
    return ", ".join(words) or "nothing changed"


def render_comparison(changes: Sequence[ReportChange], width: int) -> list[Text]:
    """What is worse first, below a line that counts it; the same change of several layouts is one."""
    return lines_in(blocks_of(changes), width)


def blocks_of(changes: Sequence[ReportChange]) -> Iterator[ReportBlock]:
    verdict = verdict_of(changes)
    counts = f"  {counts_in_words(changes)}"
    yield TextLine(Text.assemble((verdict.upper(), _STYLES[verdict]), counts))
    for check in dict.fromkeys(change.check for change in changes):
        yield TextLine(Text(f"{check}:", "bold"))
        for kind, word in KINDS.items():
            those = [one for one in changes if (one.check, one.became) == (check, kind)]
            for sentence in sentences_of(those):
                yield Words(sentence, f"  {word:<6}", _STYLES[kind])


def sentences_of(changes: Sequence[ReportChange]) -> Iterator[str]:
    """`dP and dV in distinct: right -> wrong in head 1`: what changed alike together."""
    layouts: dict[tuple[str, str, str, bool], list[str]] = {}
    for change in changes:
        key = (change.before, change.after, change.what, bool(change.layout))
        layouts.setdefault(key, []).append(quoted(change.layout))
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (before, after, what, in_layouts), names in layouts.items():
        where = f" in {', '.join(names)}" if in_layouts else ""
        alike.setdefault((before, after, where), []).append(what)
    for (before, after, where), those in alike.items():
        yield f"{', '.join(those)}{where}: {before} -> {after}"


def _of_check(name: str, old: Report, new: Report) -> Iterator[ReportChange]:
    yield from _of_cases(name, old, new)
    yield from _of_verdicts(name, "", old.verdict, new.verdict)
    yield from _of_causes(name, old, new)
    before, after = ({run.layout: run for run in report.runs} for report in (old, new))
    for layout in dict.fromkeys((*before, *after)):
        if layout in before and layout in after:
            yield from _of_runs(name, before[layout], after[layout])
        elif layout in before:
            yield ReportChange(name, "verdict", before[layout].verdict, NOT_RUN, "", layout)
        else:
            verdict = after[layout].verdict
            became = WORSE if _rank(verdict) > _rank(MATCH) else ""
            yield ReportChange(name, "verdict", NOT_RUN, verdict, became, layout)


def _of_cases(name: str, old: Report, new: Report) -> Iterator[ReportChange]:
    """The target and the options in which two cases differ: then it is they that may have changed the rest."""
    if old.target.name != new.target.name:
        yield ReportChange(name, "target", old.target.name, new.target.name)
    for field in fields(old.case) if old.case and new.case else ():
        before, after = (getattr(case, field.name) for case in (old.case, new.case))
        if before != after:
            yield ReportChange(name, f"option {field.name}", str(before), str(after))


def _rank(verdict: str) -> int:
    return _RANKS.get(verdict, 2)


def _of_verdicts(name: str, layout: str, before: str, after: str) -> Iterator[ReportChange]:
    if before != after:
        became = WORSE if _rank(after) > _rank(before) else BETTER
        yield ReportChange(name, "verdict", before, after, became, layout)


def _of_causes(name: str, old: Report, new: Report) -> Iterator[ReportChange]:
    before, after = ({one.fault: one.summary for one in each.causes} for each in (old, new))
    for fault, summary in before.items():
        if fault not in after:
            yield ReportChange(name, f"cause {fault}", summary, "gone", BETTER)
    for fault, summary in after.items():
        if fault not in before:
            yield ReportChange(name, f"cause {fault}", "none", summary, WORSE)


def _of_runs(name: str, old: Run, new: Run) -> Iterator[ReportChange]:
    yield from _of_verdicts(name, old.layout, old.verdict, new.verdict)
    before = {one.title: one for one in old.intermediates}
    for intermediate in new.intermediates:
        if known := before.get(intermediate.title):
            told = _of_intermediate(known, intermediate)
            if told is not None:
                yield ReportChange(name, intermediate.title, *told, old.layout)


def _of_intermediate(old: Intermediate, new: Intermediate) -> tuple[str, str, str] | None:
    """What it was, what it is and what became of it; None where that is the same."""
    if NOT_EXPOSED in (old.status, new.status):
        return None if old.status == new.status else (old.status, new.status, "")
    before, after = ({(one.batch, one.head) for one in _wrong(each)} for each in (old, new))
    was, now = wrong_heads(old), wrong_heads(new)
    # Where the words are the same still, one of the two has batches that the other has not.
    if before != after and was != now:
        return was, now, WORSE if after - before else BETTER
    least, most = sorted((old.ratio, new.ratio))
    if most <= MOVED * least:
        return None
    # Within its budget no error is worse than another.
    became = "" if most <= 1 else WORSE if new.ratio > old.ratio else BETTER
    return f"worst {ratio(old.ratio)}x", f"worst {ratio(new.ratio)}x", became


def _wrong(intermediate: Intermediate) -> list[Head]:
    return [head for head in intermediate.heads if head.mismatched]


def wrong_heads(intermediate: Intermediate) -> str:
    """`right`, `wrong in head 1`, `wrong in batch 0, heads 1-3; batch 1, head 2`."""
    wrong, batches = _wrong(intermediate), (head.batch for head in intermediate.heads)
    return f"wrong in {heads_by_batch(wrong, batches)}" if wrong else "right"


def against(report: Report, other: SecondCheck) -> Iterator[Words]:
    """What the other target came to, and the first place where both differ."""
    target, device = other.report.target, other.report.environment.get("device", "")
    where = " on ".join(filter(None, (target.backend, device)))
    who = f"{other.name} ({where})" if where else other.name
    style = {MATCH: GOOD, FAILED: f"bold {CAUTION}"}.get(other.report.verdict, BAD)
    words = f"{who} {_came_to(other.report)}; {_first_difference(other, report)}"
    yield Words(words, "AGAINST", style, hangs=True)


def beside(report: Report, other: SecondCheck) -> Iterator[str]:
    """Of each intermediate how far both differ; of a saved report what changed since."""
    alike: dict[str, list[str]] = {}
    for layout in dict.fromkeys(one.layout for one in other.differences):
        those = [one for one in other.differences if one.layout == layout]
        alike.setdefault(_differences(those), []).append(layout)
    for words, layouts in alike.items():
        yield f"beside {other.name}, in {', '.join(layouts)}: {words}"
    if other.is_saved:
        changes = changes_of(Reports(reports=(other.report,)), Reports(reports=(report,)))
        yield from (f"beside {other.name}: {sentence}" for sentence in sentences_of(changes))


def _came_to(report: Report) -> str:
    if report.verdict == MATCH:
        return "is right"
    if report.verdict == FAILED or report.failing is None:
        return "could not be checked"
    cause = f", since {report.causes[0].summary}" if report.causes else ""
    return f"is wrong: {blame(report.failing)}{cause}" if report.failing.compares else "is wrong"


def _first_difference(other: SecondCheck, report: Report) -> str:
    if other.is_saved:
        return "only what both reports hold is compared"
    if not other.differences:
        case, its = report.case, other.report.case
        names = unlike(case, its) if case and its else ()
        ran = [f"{name} {getattr(case, name)} and {getattr(its, name)}" for name in names]
        ran_with = f": they ran with {', '.join(ran)}" if ran else ""
        return f"nothing of both can be compared{ran_with}"
    found = next((one for one in other.differences if one.beyond), None)
    if found is not None and found.first is not None:
        first = found.first
        row = "" if first.row is None else f", row {first.row}"
        col = "" if first.col is None else f", col {first.col}"
        words = f"{found.name} ({found.layout}), {place_in_words(first)}{row}{col}"
        numbers = f"{value(first.actual)} here, {value(found.other)} there"
        return (
            f"they differ first in {words}: {numbers}, {value(first.expected)} by the reference"
        )
    if not any(one.differing for one in other.differences):
        return "they give the same bits"
    worst = max(other.differences, key=_ratio)
    most = f"{ratio(_ratio(worst))}x of that, in {worst.name}"
    return f"every difference is within what one of them may err; the largest is {most}"


def _ratio(difference: Difference) -> float:
    return difference.max_budget_ratio or 0.0


def _differences(those: Sequence[Difference]) -> str:
    """`differ: dQ in head 1 (3 of 96 elements, by up to 40x); the same bits: dK, dV`."""
    kinds = "differ", "differ within what one may err", "the same bits"
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    for difference in those:
        times = f"{ratio(_ratio(difference))}x"
        if difference.beyond:
            count = f"{difference.beyond:,} of {plural(difference.total, 'element')}"
            words = f"{difference.name} in {heads_in_words(difference.heads)} ({count}, by up to {times})"
            found[kinds[0]].append(words)
        elif difference.differing:
            found[kinds[1]].append(f"{difference.name} ({times})")
        else:
            found[kinds[2]].append(difference.name)
    return "; ".join(f"{kind}: {', '.join(words)}" for kind, words in found.items() if words)
