"""The score as text: the figures, a table by class, and every miss with what was said instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from gradprobe.model.report import Diagnosis
from tests.planted.figures import by_class, diagnosing, figures
from tests.planted.scoring import DIAGNOSES, Judged
from tests.planted.trials import Scored, Uncovered, Unflagged


def progress(total: int) -> Callable[[int, Judged], None]:
    """Tells on stderr how far it is, where that is a terminal."""

    def tell(done: int, judged: Judged) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(
                f"\r\x1b[K{done} of {total}  {judged.trial.name}",
                end=end,
                file=sys.stderr,
                flush=True,
            )

    return tell


def lines_of(judged: Sequence[Judged]) -> Iterator[str]:
    """All of it."""
    yield from _of_figures(judged)
    yield from _of_classes(judged)
    misses = [each for each in judged if not each.right]
    yield ""
    yield f"{len(misses)} missed" if misses else "none missed"
    for each in misses:
        yield from _of_miss(each)


def _of_figures(judged: Sequence[Judged]) -> Iterator[str]:
    for figure in figures(judged):
        if figure.of:
            mark = "✓" if figure.holds else "✗"
            yield (
                f"{mark} {figure.title:<40} {figure.count:>3} of {figure.of:>3}  {100 * figure.share:5.1f} %"
                f"  ({figure.bound})"
            )
    seconds = diagnosing(judged)
    if seconds:
        yield f"  seconds of a diagnosis: median {seconds[0]:.2f}, largest {seconds[1]:.2f}"
    if not DIAGNOSES:
        yield "  reports do not say why yet: causes are not counted"
    for each in judged:
        if not isinstance(each.trial, Unflagged) and not each.line:
            first = each.outcome.diagnoses[:1]
            told = [f"{where.kernel}:{where.line}" for one in first for where in one.where]
            changed = sorted(each.trial.changed.lines())
            yield f"  no line: {each.trial.name} {[one.fault for one in first]} {told} {changed[:6]}"
    uncovered = [each for each in judged if isinstance(each.trial, Uncovered)]
    if uncovered and DIAGNOSES:
        yield f"  of {len(uncovered)} uncovered faults nothing at all is said of {sum(e.is_silent for e in uncovered)}"


def _of_classes(judged: Sequence[Judged]) -> Iterator[str]:
    rows = by_class(judged)
    if not rows:
        return
    yield ""
    yield f"{'class':<7}{'faults':>7}{'found':>7}{'place':>7}" + (
        f"{'cause':>7}" if DIAGNOSES else ""
    )
    for row in rows:
        cause = f"{row.named:>7}" if DIAGNOSES else ""
        yield f"{row.fault_class:<7}{row.faults:>7}{row.found:>7}{row.placed:>7}{cause}"


def _of_miss(judged: Judged) -> Iterator[str]:
    trial, outcome = judged.trial, judged.outcome
    yield f"  {trial.name}"
    if outcome.failure:
        yield f"    no report: {outcome.failure}"
        return
    if isinstance(trial, Scored):
        yield f"    expected  {_place(trial.first, trial.batch, trial.head, trial.row)}; {trial.cause}"
    yield f"    came      {outcome.verdict}; {_place(outcome.first, outcome.batch, outcome.head, outcome.row)}"
    if outcome.memory:
        yield f"    memory    {', '.join(sorted(outcome.memory))}"
    for word, diagnosis in zip(("said", "runner-up"), outcome.diagnoses, strict=False):
        yield f"    {word:<9} {_said(diagnosis)}"
    yield from (f"    denied    {words}" for words in outcome.denied)
    if DIAGNOSES and not outcome.diagnoses:
        yield "    said      no hypothesis fits"


def _place(first: str | None, batch: int | None, head: int | None, row: int | None) -> str:
    known = [
        f"{axis} {at}"
        for axis, at in (("batch", batch), ("head", head), ("row", row))
        if at is not None
    ]
    return " ".join([first or "no wrong number", *known])


def _said(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.fault} {100 * diagnosis.explained:.0f} %: {diagnosis.summary}"
