"""What changed between two reports, and where two targets differ."""

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
)
from ..model.number import ratio
from ..model.report import Report, SecondCheck
from .notation import (
    BAD,
    CAUTION,
    GOOD,
    blame,
    group,
    heads_in_words,
    place_in_words,
    quoted,
    value,
)
from .rows import Words, headed

SCHEMA = "gradprobe.comparison/1"
WORSE, BETTER, SAME = "worse", "better", "same"
# Errors within this factor of one another are the same: another seed or device moves them so far.
_GREW = 2.0
NOT_RUN, NOT_MADE = "not run", "not made"
# What is worse than what: a layout that is refused, or not run, is not known to be wrong.
_RANKS = {MATCH: 0, NOT_RUN: 0, NOT_MADE: 0, SKIPPED: 1, MISMATCH: 3}
_KINDS = {WORSE: WORSE, BETTER: BETTER, "": "other"}
Fact = str | Intermediate
_STYLES = {WORSE: BAD, BETTER: GOOD, SAME: GOOD, "": CAUTION}


class ReportChange(Struct, frozen=True):
    check: str
    what: str
    before: str
    after: str
    became: str = ""  # WORSE, BETTER or ""
    layout: str = ""


def changes_of(before: Reports, after: Reports) -> list[ReportChange]:
    """Checks go by their target and title, runs by their layout."""
    old, new = ({one.name: one for one in reports.reports} for reports in (before, after))
    if len(old) == len(new) == 1:
        new = dict(zip(old, new.values(), strict=True))
    found = list[ReportChange]()
    for name, report in old.items():
        if name not in new:
            found.append(ReportChange(name, "check", report.verdict, NOT_MADE, WORSE))
    for name, report in new.items():
        if name in old:
            found += _of_check(name, old[name], report)
        else:
            became = _became(NOT_MADE, report.verdict)
            found.append(ReportChange(name, "check", NOT_MADE, report.verdict, became))
    return found


def changes_since(before: Report | None, after: Report) -> list[ReportChange]:
    found = _of_check(after.name, before, after) if before is not None else ()
    both = [change for change in found if change.layout]
    both = [each for each in both if not {each.before, each.after} & {NOT_EXPOSED, NOT_RUN}]
    return sorted(both, key=lambda change: change.what == "verdict")


def verdict_of(changes: Sequence[ReportChange]) -> str:
    kinds = {change.became for change in changes}
    return next((kind for kind in (WORSE, BETTER) if kind in kinds), SAME)


def comparison_as_json(changes: Sequence[ReportChange]) -> dict[str, Any]:
    verdict, plain = verdict_of(changes), msgspec.to_builtins(list(changes))
    return {"schema": SCHEMA, "verdict": verdict, "changes": plain}


def render_comparison(changes: Sequence[ReportChange], width: int) -> list[Text]:
    verdict = verdict_of(changes)
    kinds = Counter(change.became for change in changes)
    counts = ", ".join(f"{kinds[kind]} {word}" for kind, word in _KINDS.items() if kinds[kind])
    head = f"  {counts or 'nothing changed'}"
    lines = [Text.assemble((verdict.upper(), _STYLES[verdict]), head)]
    for check, those in group(changes, lambda change: change.check).items():
        lines.append(Text(f"{check}:", "bold"))
        for kind, word in _KINDS.items():
            for sentence in sentences_of([each for each in those if each.became == kind]):
                lines += headed(f"  {word:<6}", _STYLES[kind], sentence, width, hangs=False)
    return lines


def sentences_of(changes: Sequence[ReportChange]) -> Iterator[str]:
    """`dP and dV in distinct: right -> wrong in head 1`."""
    alike = group(changes, lambda each: (each.before, each.after, each.what, bool(each.layout)))
    found: dict[str, list[str]] = {}
    for (before, after, what, in_layouts), those in alike.items():
        where = f" in {', '.join(quoted(one.layout) for one in those)}" if in_layouts else ""
        found.setdefault(f"{where}: {before} -> {after}", []).append(what)
    for change, names in found.items():
        yield ", ".join(names) + change


def _of_check(name: str, old: Report, new: Report) -> Iterator[ReportChange]:
    before, after = _facts(old), _facts(new)
    for layout, what in dict.fromkeys((*before, *after)):
        if change := _change(what, before.get((layout, what)), after.get((layout, what))):
            yield ReportChange(name, what, *change, layout)


def _facts(report: Report) -> dict[tuple[str, str], Fact]:
    facts: dict[tuple[str, str], Fact] = {("", "target"): report.target.name}
    for option in fields(report.case) if report.case else ():
        facts["", f"option {option.name}"] = str(getattr(report.case, option.name))
    facts["", "verdict"] = report.verdict
    for cause in report.causes:
        facts["", f"cause {cause.fault}"] = cause.summary
    for run in report.runs:
        facts[run.layout, "verdict"] = run.verdict
        for intermediate in run.intermediates:
            facts[run.layout, intermediate.title] = intermediate
    return facts


def _change(what: str, old: Fact | None, new: Fact | None) -> tuple[str, str, str] | None:
    if what == "verdict":
        was, now = str(old or NOT_RUN), str(new or NOT_RUN)
        return None if was == now else (was, now, _became(was, now))
    if what.startswith("cause ") and (old is None or new is None):
        return str(old or "none"), str(new or "gone"), BETTER if old else WORSE
    if isinstance(old, Intermediate) and isinstance(new, Intermediate):
        return _of_intermediate(old, new)
    is_other = old is not None and new is not None and not what.startswith("cause ")
    return (str(old), str(new), "") if is_other and old != new else None


def _became(before: str, after: str) -> str:
    change = _RANKS.get(after, 2) - _RANKS.get(before, 2)
    if change > 0:
        return WORSE
    return BETTER if change < 0 and after != NOT_RUN else ""


def _of_intermediate(old: Intermediate, new: Intermediate) -> tuple[str, str, str] | None:
    wrong, now_wrong = map(_wrong_heads, (old, new))
    was, now = _in_words(old), _in_words(new)
    if NOT_EXPOSED in (was, now):
        return None if was == now else (was, now, "")
    # Where the words are the same still, one of the two has batches that the other has not.
    if was != now and wrong != now_wrong:
        return was, now, BETTER if now_wrong <= wrong else WORSE
    least, most = sorted((old.ratio, new.ratio))
    if not most > max(1.0, _GREW * least):
        return None
    became = WORSE if new.ratio > old.ratio else BETTER
    return f"worst {ratio(old.ratio)}x", f"worst {ratio(new.ratio)}x", became


def _wrong_heads(intermediate: Intermediate) -> set[tuple[int | None, int]]:
    return {(head.batch, head.head) for head in intermediate.heads if head.mismatched}


def _in_words(intermediate: Intermediate) -> str:
    if intermediate.status == NOT_EXPOSED:
        return NOT_EXPOSED
    wrong = [head for head in intermediate.heads if head.mismatched]
    return f"wrong in {_heads_by_batch(wrong, intermediate)}" if wrong else "right"


def _heads_by_batch(heads: Sequence[Head], intermediate: Intermediate) -> str:
    """`batch 0, heads 1-3; batch 1, head 2`; without a batch where all have the same heads."""
    words = dict[int | None, str]()
    for batch, those in group(heads, lambda head: head.batch).items():
        words[batch] = heads_in_words((head.head for head in those), len(those))
    first, *others = {*words.values()}
    if not others and words.keys() == {head.batch for head in intermediate.heads}:
        return first
    return "; ".join(f"batch {batch}, {said}" for batch, said in words.items())


def against(report: Report) -> Iterator[Words]:
    other = report.against
    assert other is not None
    target, device = other.report.target, other.report.environment.get("device", "")
    where = " on ".join(filter(None, (target.backend, device)))
    who = f"{other.name} ({where})" if where else other.name
    style = {MATCH: GOOD, FAILED: f"bold {CAUTION}"}.get(other.report.verdict, BAD)
    words = f"{who} {_came_to(other.report)}; {_first_difference(other, report)}"
    yield Words(words, "AGAINST", style, hangs=True)


def beside(report: Report, other: SecondCheck) -> Iterator[str]:
    if other.is_saved:
        changes = changes_of(Reports(reports=(other.report,)), Reports(reports=(report,)))
        for sentence in sentences_of(changes):
            yield f"beside {other.name}: {sentence}"


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
        names = ", ".join(unlike(case, its)) if case and its else ""
        return f"nothing of both can be compared{f': other {names}' if names else ''}"
    for found in other.differences:
        if found.beyond and (first := found.first) is not None:
            at = (f", {axis} {getattr(first, axis)}" for axis in ("row", "col"))
            place = place_in_words(first) + "".join(each for each in at if "None" not in each)
            numbers = f"{value(first.actual)} here, {value(found.other)} there"
            words = f"they differ first in {found.name} ({found.layout}), {place}"
            return f"{words}: {numbers}, {value(first.expected)} by the reference"
    if not any(one.differing for one in other.differences):
        return "they give the same bits"
    worst = max(other.differences, key=_ratio)
    most = f"{ratio(_ratio(worst))}x of that, in {worst.name}"
    return f"every difference is within what one of them may err; the largest is {most}"


def _ratio(difference: Difference) -> float:
    return difference.max_budget_ratio or 0.0
