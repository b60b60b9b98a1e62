"""What changed between two reports: verdicts, heads that became wrong or right, errors that moved, causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import fields
from typing import Any

import msgspec
from msgspec import Struct
from rich.text import Text

from ..model.documents import Reports
from ..model.layout_run import MATCH, MISMATCH, NOT_EXPOSED, SKIPPED, Head, Intermediate, Run
from ..model.number import in_words, ratio, spans
from ..model.report import Report
from .notation import CAUTION, quoted
from .rows import folded

SCHEMA = "gradprobe.comparison/1"
WORSE, BETTER, SAME = "worse", "better", "same"
# Errors within this factor of one another are the same: another seed or device moves them so far.
MOVED = 2.0
NOT_RUN = "not run"
# What is worse than what: a layout that is refused, or not run, is not known to be wrong.
_RANKS = {MATCH: 0, SKIPPED: 1, MISMATCH: 3}
KINDS = {WORSE: WORSE, BETTER: BETTER, "": "other"}
"""What a change became, and the word for it; what is worse first."""
_STYLES = {WORSE: "bold red", BETTER: "bold green", SAME: "bold green", "": CAUTION}


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
    found = list[ReportChange]()
    for name, old, new in pairs_of(before, after):
        if old is not None and new is not None:
            found += _of_check(name, old, new)
        elif old is not None:
            found.append(ReportChange(name, "check", old.verdict, "not made", WORSE))
        elif new is not None:
            found.append(
                ReportChange(
                    name, "check", "not made", new.verdict, "" if new.verdict == MATCH else WORSE
                )
            )
    return found


def changes_since(before: Report | None, after: Report) -> list[ReportChange]:
    """What the last save of a file changed: layouts and intermediates that both checks have, then causes.

    Args:
        before: None where nothing was compared before.
    """
    found = [] if before is None else [*_of_check(after.name, before, after)]
    of_runs = [
        one
        for one in found
        if one.layout and not {one.before, one.after} & {NOT_EXPOSED, NOT_RUN}
    ]
    has_causes = (
        before is not None and before.causes and after.causes
    )  # what is right, or not over yet, has none
    causes = [one for one in found if has_causes and one.what.startswith("cause ")]
    return sorted(of_runs, key=lambda change: change.what == "verdict") + causes


def pairs_of(before: Reports, after: Reports) -> list[tuple[str, Report | None, Report | None]]:
    """Each check by its name, old and new; None where it was not made. Those that are gone come first."""
    old, new = (
        {report.name: report for report in reports.reports} for reports in (before, after)
    )
    if len(old) == len(new) == 1:  # of one target under two names, as of two files
        new = dict(zip(old, new.values(), strict=True))
    names = [*(name for name in old if name not in new), *new]
    return [(name, old.get(name), new.get(name)) for name in names]


def verdict_of(changes: Sequence[ReportChange]) -> str:
    """WORSE where anything is; else BETTER where anything is; else SAME."""
    became = {change.became for change in changes}
    return WORSE if WORSE in became else BETTER if BETTER in became else SAME


def comparison_as_json(changes: Sequence[ReportChange]) -> dict[str, Any]:
    """All of it, ready for `json.dumps`."""
    return {
        "schema": SCHEMA,
        "verdict": verdict_of(changes),
        "changes": msgspec.to_builtins(list(changes)),
    }


def counts_in_words(changes: Sequence[ReportChange]) -> str:
    """`2 worse, 1 other`."""
    numbers = {word: sum(one.became == kind for one in changes) for kind, word in KINDS.items()}
    return (
        ", ".join(f"{number} {word}" for word, number in numbers.items() if number)
        or "nothing changed"
    )


def render_comparison(changes: Sequence[ReportChange], width: int) -> Iterator[Text]:
    """What is worse first, below a line that counts it; the same change of several layouts is one."""
    verdict = verdict_of(changes)
    yield Text.assemble((verdict.upper(), _STYLES[verdict]), f"  {counts_in_words(changes)}")
    for check in dict.fromkeys(change.check for change in changes):
        yield Text(f"{check}:", "bold")
        for kind, word in KINDS.items():
            for sentence in sentences_of(
                [one for one in changes if (one.check, one.became) == (check, kind)]
            ):
                first, *rest = folded(f"{word:<6}  {sentence}", width)
                first.stylize(_STYLES[kind], 2, 2 + len(word))
                yield from (first, *rest)


def sentences_of(changes: Sequence[ReportChange]) -> Iterator[str]:
    """`dP and dV in distinct: right -> wrong in head 1`: what changed alike together."""
    alike: dict[tuple[str, str, bool], dict[str, list[str]]] = {}
    for change in changes:
        key = (change.before, change.after, bool(change.layout))
        alike.setdefault(key, {}).setdefault(change.what, []).append(change.layout)
    for (before, after, _), layouts_of in alike.items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for what, layouts in layouts_of.items():
            groups.setdefault(tuple(filter(None, layouts)), []).append(what)
        for where, names in groups.items():
            places = f" in {', '.join(map(quoted, where))}" if where else ""
            yield f"{', '.join(names)}{places}: {before} -> {after}"


def _of_check(name: str, old: Report, new: Report) -> Iterator[ReportChange]:
    yield from _of_cases(name, old, new)
    yield from _of_verdicts(name, "", old.verdict, new.verdict)
    yield from _of_causes(name, old, new)
    before, after = ({run.layout: run for run in report.runs} for report in (old, new))
    for layout in dict.fromkeys((*before, *after)):
        if layout in before and layout in after:
            yield from _of_runs(name, before[layout], after[layout])
        else:
            old_verdict, verdict = (
                runs[layout].verdict if layout in runs else NOT_RUN for runs in (before, after)
            )
            worse = layout in after and _rank(verdict) > _rank(MATCH)
            yield ReportChange(
                name, "verdict", old_verdict, verdict, WORSE if worse else "", layout
            )


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
        yield ReportChange(
            name,
            "verdict",
            before,
            after,
            WORSE if _rank(after) > _rank(before) else BETTER,
            layout,
        )


def _of_causes(name: str, old: Report, new: Report) -> Iterator[ReportChange]:
    before, after = (
        {cause.fault: cause.summary for cause in report.causes} for report in (old, new)
    )
    for fault, summary in before.items():
        if fault not in after:
            yield ReportChange(name, f"cause {fault}", summary, "gone", BETTER)
    for fault, summary in after.items():
        if fault not in before:
            yield ReportChange(name, f"cause {fault}", "none", summary, WORSE)


def _of_runs(name: str, old: Run, new: Run) -> Iterator[ReportChange]:
    yield from _of_verdicts(name, old.layout, old.verdict, new.verdict)
    before, after = ({one.title: one for one in run.intermediates} for run in (old, new))
    for known, intermediate in after.items():
        if known in before:
            yield from _of_intermediates(name, old.layout, before[known], intermediate)


def _of_intermediates(
    name: str, layout: str, old: Intermediate, new: Intermediate
) -> Iterator[ReportChange]:
    if NOT_EXPOSED in (old.status, new.status):
        if old.status != new.status:
            yield ReportChange(name, new.title, old.status, new.status, "", layout)
        return
    before, after = (
        _places([head for head in one.heads if head.mismatched]) for one in (old, new)
    )
    was, now = wrong_heads(old), wrong_heads(new)
    if was == now and before != after and _places(old.heads) == _places(new.heads):
        now = _apart(new, before, after)
    # Where the words are the same still, one of the two has batches that the other has not.
    if before != after and was != now:
        became = WORSE if after - before else BETTER
        yield ReportChange(name, new.title, was, now, became, layout)
    elif max(old.ratio, new.ratio) > MOVED * min(old.ratio, new.ratio):
        # Within its budget no error is worse than another.
        became = (
            "" if max(old.ratio, new.ratio) <= 1 else WORSE if new.ratio > old.ratio else BETTER
        )
        then, now = (f"worst {ratio(one.ratio)}x" for one in (old, new))
        yield ReportChange(name, new.title, then, now, became, layout)


def _apart(
    intermediate: Intermediate,
    before: Set[tuple[int | None, int]],
    after: Set[tuple[int | None, int]],
) -> str:
    """Which heads became wrong, else which became right: where so many are that others alone are named."""
    came = after - before
    return (
        f"also wrong in {_in_words(intermediate, came)}"
        if came
        else f"no longer wrong in {_in_words(intermediate, before - after)}"
    )


def wrong_heads(intermediate: Intermediate) -> str:
    """`right`, `wrong in head 1`, `wrong in batch 0, heads 1-3; batch 1, head 2`."""
    told = _in_words(
        intermediate, _places([head for head in intermediate.heads if head.mismatched])
    )
    return f"wrong in {told}" if told else "right"


def _places(heads: Sequence[Head]) -> set[tuple[int | None, int]]:
    return {(head.batch, head.head) for head in heads}


def _in_words(intermediate: Intermediate, places: Set[tuple[int | None, int]]) -> str:
    """Some heads of an intermediate: `batch 0, heads 1-3; batch 1, head 2`; without a batch where all have the same."""
    heads: dict[int | None, list[int]] = {head.batch: [] for head in intermediate.heads}
    for head in intermediate.heads:
        heads[head.batch] += [head.head] if (head.batch, head.head) in places else []
    words = {
        batch: f"head{'s' * (len(wrong) > 1)} {in_words(spans(wrong))}"
        for batch, wrong in heads.items()
        if wrong
    }
    if len(words) == len(heads) and len(set(words.values())) == 1:  # the same in every batch
        words = {None: next(iter(words.values()))}
    return "; ".join(
        said if batch is None else f"batch {batch}, {said}" for batch, said in words.items()
    )
