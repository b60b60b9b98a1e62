"""The words of a report in the terminal: its verdict, its first line, its layouts, and what was compared."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from rich.text import Text

from ..model.case import Case
from ..model.layout_run import FAILED, Element, Error, Run
from ..model.memory_finding import (
    BARRIER,
    CHANGED,
    DTYPE,
    GUARD,
    MISALIGNED,
    OUTSIDE,
    RACE,
    SHARED,
    SHUFFLE,
    UNWRITTEN,
)
from ..model.number import LAMBDA, in_words, plural, ratio
from ..model.report import Report
from .notation import ASCII, CAUTION, UTF8, blame, greppable
from .rows import folded, headed, wrapped
from .source_places import Base, Place, base_of

_STRAYED = {
    RACE: "races",
    OUTSIDE: "reads or writes outside a tensor",
    GUARD: "reads or writes outside a tensor",
    UNWRITTEN: "reads memory that nothing has written",
    BARRIER: "has a barrier that not all threads reach",
    SHUFFLE: "shuffles with lanes that give no value",
    MISALIGNED: "makes a misaligned access",
    CHANGED: "writes over its inputs",
    SHARED: "returns a tensor that shares memory with another",
    DTYPE: "returns a coarser dtype than it was given",
}
# A fault of the formula moves an element by its own size, thousands of roundings. An accumulator of fewer bits than
# declared stays within the confidence factor of what was allowed, the room that a bound leaves beyond one rounding.
COARSE = LAMBDA


def headline(report: Report, width: int) -> list[Text]:
    """The verdict and the greppable line alone, to close a report that is taller than the screen."""
    if report.verdict == FAILED:
        return []
    return [
        *verdict_lines(report, width),
        *([Text(first_line(report), "bold")] if report.failing else []),
    ]


def first_line(report: Report) -> str:
    """The one line that names the first mismatch, identity broken or memory touched wrongly; "" where all matches."""
    run = report.failing
    return "" if run is None else greppable(report.shown, run.memory)


def verdict_lines(report: Report, width: int) -> Iterator[Text]:
    """The verdict in words, and what sets the case apart."""
    verdict, style = ("MISMATCH", "bold red") if report.failing else ("MATCH", "bold green")
    yield from headed(verdict, style, verdict_words(report), width)
    yield from (Text(line) for line in wrapped(beyond_the_case(report), width))


def beyond_the_case(report: Report) -> str:
    """What sets a second case that is wrong apart from the one that was asked for; of a match what was not checked."""
    if report.beyond:
        return f"right as it was asked for, wrong with {report.beyond}"
    if report.failing:
        return ""
    left = {
        "not checked": report.not_checked,
        "wrong, if it is meant to be taken so": report.undeclared,
    }
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in left.items() if names)


def verdict_words(report: Report) -> str:
    """What stands beside the verdict of a report that came to results."""
    target, first, run = report.chosen or report.target.name, report.measured[0], report.failing
    if run is not None:
        return f"{_blame_of(run)} ({target}, {run.layout})"
    count, runs = (
        plural(len(first.compares), "intermediate"),
        plural(len(report.measured), "layout"),
    )
    return f"{target}: {count} within budget in {runs} ({first.precision}){_idle(report)}"


def _idle(report: Report) -> str:
    """Says of a match that is none of the kernels that stand beside the target."""
    idle = [base_of(report).shorten(Place(file, None)) for file in report.target.idle]
    files = " and ".join(idle) if len(idle) < 3 else f"{len(idle)} files"
    return f"; torch alone ran: no kernel of {files} was launched" if idle else ""


def _blame_of(run: Run) -> str:
    if run.has_wrong_elements or run.broken:
        return blame(run)
    kinds = " and ".join(dict.fromkeys(_STRAYED[one.kind] for one in run.memory))
    whose = f"{run.memory[0].kernel or 'the target'} {kinds}"
    return f"every element is within budget, but {whose}{'' if run.compares else ' before the layout is refused'}"


def on_ranks(case: Case, element: Element) -> str:
    """`in the shard of rank 1, from step 2 of rank 3 (keys of rank 1)`, as far as that is known."""
    rank, step = element.rank, element.step
    words = f"in the shard of rank {element.shard}"
    if rank is None or step is None or case.ranks is None:
        return words if rank in (None, element.shard) else f"{words}, from rank {rank}"
    return f"{words}, from step {step} of rank {rank} (keys of rank {(rank - step) % case.ranks})"


def sources(run: Run) -> str:
    """Which intermediates were exported, tapped, seen or recovered, and which were not seen at all."""
    by_source: dict[str, list[str]] = {}
    for intermediate in run.compares:
        name = intermediate.name
        # What dP and delta come to lies in their budgets: it is large wherever P is small.
        if intermediate.reading_adds is not None and name in ("P", "dS"):
            name += f" (to {intermediate.reading_adds:.0e})"
        named = by_source.setdefault(intermediate.source or "", [])
        if name not in named:
            named.append(name)
    by_source["not exposed"] = list(run.absent)
    order = ("exported", "tapped", "seen", "recovered", "not exposed")
    return "; ".join(
        f"{source}: {', '.join(by_source[source])}" for source in order if by_source.get(source)
    )


def render_layouts(report: Report, width: int, *, utf8: bool = True) -> Iterator[Text]:
    """A line for each layout."""
    marks = UTF8 if utf8 else ASCII
    styles = {"match": "green", "mismatch": "bold red"}
    for run in report.runs:
        style = styles.get(run.verdict, CAUTION)
        if run.told_error:
            words = run.error.words if isinstance(run.error, Error) else ""
            words = words or re.sub(r"^target '.*?' ", "", run.told_error[1])
            yield from folded(f"{run.layout:<14} {run.verdict}: {words}", width, style)
        elif not run.is_judged:  # the target's words, of any length
            how = "mismatch, then refused" if run.verdict == "mismatch" else run.verdict
            yield from folded(f"{run.layout:<14} {how}: {run.skipped}", width, style)
        else:
            line = Text.assemble(f"  {run.layout:<14} ", (run.verdict, style))
            if worst := max(
                run.compares, key=lambda intermediate: intermediate.ratio, default=None
            ):
                line.append(f", worst {ratio(worst.ratio)}{marks.times} in {worst.title}")
            yield line


def coarse_words(report: Report) -> Iterator[str]:
    """Says of errors that are small in all layouts what they rather are than a wrong formula."""
    worst = max((one.ratio for run in report.measured for one in run.compares), default=0.0)
    if report.failing and not report.coarser and 1.0 < worst <= COARSE:
        name = report.shown.precision
        yield f"no error exceeds {COARSE:.0f}x: it looks like coarser arithmetic than {name}, not a wrong formula"


def wrong_rows(run: Run, first: Element) -> str:
    """The wrong rows of an element's head: `0-71 (72 of 72)`; "" of what has none."""
    intermediate = next(
        intermediate for intermediate in run.compares if intermediate.title == first.title
    )
    head = next(
        head
        for head in intermediate.heads
        if (head.batch, head.head) == (first.batch, first.head)
    )
    total = (
        f"{_count(intermediate.shown)} shown" if intermediate.shown else f"{intermediate.length}"
    )
    of_keys = f"; keys: {in_words(head.keys, 6)} ({_count(head.keys)})" if head.keys else ""
    return (
        f"{in_words(head.rows, 6)} ({_count(head.rows)} of {total}){of_keys}" if head.rows else ""
    )


def _count(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(last - start + 1 for start, last in ranges)


def receipt(report: Report) -> str:
    """What was compared."""
    counts, case, runs = report.compared, report.case, len(report.measured)
    seen = sorted({len(run.compares) for run in report.measured})
    names = (
        plural(seen[0], "intermediate")
        if len(seen) == 1
        else f"{seen[0]} to {plural(seen[-1], 'intermediate')}"
    )
    words = f"compared {plural(counts.elements, 'element')}: every one of {names} in {plural(runs, 'run')}"
    if case is None:
        return words
    heads = f"{plural(case.batch, 'batch')}, {plural(case.heads, 'head')}"
    return f"{words}, {heads} and {plural(case.seqlen_q, 'query row')}"


def unused(base: Base, shadow: str) -> str:
    """Says of a file that another search path would have found that it is not the one that ran."""
    return f"another file named {os.path.basename(shadow)} is on the path and was not used: {base.short(shadow)}"
