"""CheckSummary: what stands behind a cell of a matrix, one layout of a survey or one of several checks, in short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...model.layout_run import MISMATCH, Element, Run
from ...model.memory_finding import MemoryFinding
from ...model.report import Report
from ..console import first_line
from ..layout_survey import memory_in, words_of
from ..notation import blame, greppable, heads_in_words, ratio
from .check_matrix import verdict_of
from .memory_map import LaidTensor, tensors


@dataclass(frozen=True)
class OpenedLine:
    """One intermediate of a run."""

    title: str
    status: str
    worst: str
    wrong: str
    """`72 of 1,728`; "" where none is."""
    heads: str


@dataclass(frozen=True)
class CheckSummary:
    """What one run or check came to."""

    id: str
    title: str
    verdict: str
    words: str
    """Why, in a sentence."""
    first_line: str = ""
    element: Element | None = None
    lines: tuple[OpenedLine, ...] = ()
    memory: tuple[MemoryFinding, ...] = ()
    runs: tuple[tuple[str, str], ...] = ()
    """Of a check: its layouts, and what each came to."""
    laid: tuple[LaidTensor, ...] = ()
    """Of a layout: how its tensors lay that did not lie contiguous."""
    cause: tuple[str, str] | None = None
    """The id of what tells its cause, and the cause in a sentence."""
    again: str = ""


def of_layout(report: Report, run: Run, id: str) -> CheckSummary:
    """One layout of a survey."""
    is_told = run.has_wrong_elements or bool(run.broken)
    return CheckSummary(
        id=id,
        title=run.layout,
        verdict=verdict_of(run),
        words=blame(run) if is_told else words_of(run) or (run.how or ""),
        first_line=greppable(run) if is_told else "",
        element=run.first_mismatch,
        lines=tuple(_lines(run)),
        memory=tuple(memory_in(report, run)),
        laid=tuple(tensors(run.laid)),
    )


def of_check(report: Report, id: str, cause: tuple[str, str] | None) -> CheckSummary:
    """One of several checks.

    Args:
        cause: what it fails for, where that is told once for several.
    """
    run = report.failing
    error = report.own_error
    return CheckSummary(
        id=id,
        title=report.title or report.name,
        verdict=verdict_of(report),
        words=error.message if error else blame(run) if run is not None and run.is_judged else "",
        first_line=first_line(report) if report.measured else "",
        element=None if run is None else run.first_mismatch,
        lines=tuple(_lines(report.shown)) if report.measured and run is not None else (),
        memory=report.memory,
        runs=tuple((one.layout, _outcome(one)) for one in report.runs),
        cause=cause,
        again=report.reproduce,
    )


def _lines(run: Run) -> Iterator[OpenedLine]:
    for intermediate in run.compares:
        wrong = f"{intermediate.mismatched:,} of {intermediate.total:,}" if intermediate.mismatched else ""
        heads = (
            heads_in_words(intermediate, intermediate.status) if intermediate.mismatched and intermediate.heads else ""
        )
        yield OpenedLine(intermediate.title, intermediate.status, f"{ratio(intermediate.ratio)}x", wrong, heads)


def _outcome(run: Run) -> str:
    worst = max(run.compares, key=lambda intermediate: intermediate.ratio, default=None)
    if run.verdict == MISMATCH and worst is not None:
        return f"{run.verdict}, worst {ratio(worst.ratio)}x in {worst.title}"
    return (
        f"{run.verdict}: {run.told_error[1] if run.told_error else run.skipped}" if not run.is_judged else run.verdict
    )


def ids_of(titles: Sequence[str], word: str) -> dict[str, str]:
    """An id for each title, none of which holds more than letters, digits and hyphens."""
    return {title: f"{word}-{number}" for number, title in enumerate(dict.fromkeys(titles), 1)}
