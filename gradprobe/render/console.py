"""The words of a report: its verdict, its first line, its layouts, and what was compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.case import Case
from ..model.layout_run import FAILED, MATCH, MISMATCH, Element, Error, Run
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
from ..model.number import in_words, plural, ratio
from ..model.report import Report
from .notation import BAD, CAUTION, GOOD, Signs, blame, greppable, size_in_words
from .report_blocks import ReportBlock, TextLine, Words, lines_in
from .source_places import Place, base_of

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


def headline(report: Report, width: int) -> list[Text]:
    """The verdict and the greppable line alone, to close a report that is taller than the screen."""
    if report.verdict == FAILED:
        return []
    first = [Text(first_line(report), "bold")] if report.failing else []
    return [*lines_in(verdict_of(report), width), *first]


def first_line(report: Report) -> str:
    """The one line that names the first mismatch, identity broken or memory touched wrongly; "" where all matches."""
    run = report.failing
    return "" if run is None else greppable(report.shown, run.memory)


def verdict_of(report: Report) -> Iterator[ReportBlock]:
    """The verdict in words, and what sets the case apart."""
    verdict, style = ("MISMATCH", BAD) if report.failing else ("MATCH", GOOD)
    yield Words(verdict_words(report), verdict, style, hangs=True)
    if words := beyond_the_case(report):
        yield Words(words)


def beyond_the_case(report: Report) -> str:
    """What sets a second case that is wrong apart from the one that was asked for; of a match what was not checked."""
    if report.beyond:
        return f"right as it was asked for, wrong with {report.beyond}"
    words = []
    if report.not_checked:
        words.append(f"not checked: {', '.join(report.not_checked)}")
    if report.undeclared:
        words.append(f"wrong, if it is meant to be taken so: {', '.join(report.undeclared)}")
    return "" if report.failing else "; ".join(words)


def verdict_words(report: Report) -> str:
    """What stands beside the verdict of a report that came to results."""
    target, first, run = report.chosen or report.target.name, report.measured[0], report.failing
    if run is not None:
        return f"{_blame_of(run)} ({target}, {run.layout})"
    count, runs = plural(len(first.compares), "intermediate"), len(report.measured)
    words = f"{target}: {count} within budget in {plural(runs, 'layout')} ({first.precision})"
    if not (idle := report.target.idle):
        return words
    base = base_of(report)
    files = " and ".join(base.shorten(Place(file, None)) for file in idle)
    files = files if len(idle) < 3 else f"{len(idle)} files"
    return f"{words}; torch alone ran: no kernel of {files} was launched"


def _blame_of(run: Run) -> str:
    if run.has_wrong_elements or run.broken:
        return blame(run)
    kinds = " and ".join(dict.fromkeys(_STRAYED[one.kind] for one in run.memory))
    whose = f"{run.memory[0].kernel or 'the target'} {kinds}"
    return f"every element is within budget, but {whose}{'' if run.compares else ' before the layout is refused'}"


def _on_ranks(case: Case, element: Element) -> str:
    """`in the shard of rank 1, from step 2 of rank 3 (keys of rank 1)`, as far as that is known."""
    rank, step = element.rank, element.step
    words = f"in the shard of rank {element.shard}"
    if rank is None or step is None or case.ranks is None:
        return words if rank in (None, element.shard) else f"{words}, from rank {rank}"
    return f"{words}, from step {step} of rank {rank} (keys of rank {(rank - step) % case.ranks})"


def sources(run: Run) -> str:
    """Which intermediates were exported, tapped, seen or recovered, and which were not seen at all."""
    order = ("exported", "tapped", "seen", "recovered", "not exposed")
    by_source: dict[str, list[str]] = {source: [] for source in order}
    for intermediate in run.compares:
        name = intermediate.name
        # What reading dP and delta may add is large wherever P is small, and lies in their budgets.
        if intermediate.reading_adds is not None and name in ("P", "dS"):
            name += f" (to {intermediate.reading_adds:.0e})"
        named = by_source.setdefault(intermediate.source or "", [])
        if name not in named:
            named.append(name)
    by_source["not exposed"] = list(run.absent)
    found = (f"{source}: {', '.join(by_source[source])}" for source in order if by_source[source])
    return "; ".join(found)


def layouts_of(report: Report, signs: Signs) -> Iterator[ReportBlock]:
    """A line for each layout."""
    for run in report.runs:
        style = {MATCH: "green", MISMATCH: BAD}.get(run.verdict, CAUTION)
        if run.told_error:
            yield Words(f"{run.layout:<14} {run.verdict}: {error_words(run)}", "", style)
        elif not run.is_judged:  # the target's words, of any length
            how = "mismatch, then refused" if run.verdict == MISMATCH else run.verdict
            yield Words(f"{run.layout:<14} {how}: {run.skipped}", "", style)
        else:
            line = Text.assemble(f"  {run.layout:<14} ", (run.verdict, style))
            if worst := max(run.compares, key=lambda each: each.ratio, default=None):
                line.append(f", worst {ratio(worst.ratio)}{signs.times} in {worst.title}")
            yield TextLine(line)


def error_words(run: Run) -> str:
    """What ended a run."""
    words = run.error.words if isinstance(run.error, Error) else ""
    message = run.told_error[1] if run.told_error else ""
    return words or re.sub(r"^target '.*?' ", "", message)


def whereabouts(report: Report) -> Iterator[str]:
    """Where else: on which rank, in which rows, in which layouts."""
    first = report.shown.first_mismatch
    if first is not None and report.case is not None:
        if first.shard is not None:
            yield _on_ranks(report.case, first)
        if first.masked:
            yield "masked, so nothing may be there"
        yield from filter(None, [size_in_words(first)])
        axis = "keys" if first.intermediate in ("dK", "dV") else "rows"
        if rows := _wrong_rows(report.shown, first):
            yield f"wrong {axis}: {rows}"
    for verdict, word in ((MISMATCH, "wrong in"), (MATCH, "right in")):
        runs = [run for run in report.measured if run.verdict == verdict and run.is_plain]
        if runs:
            yield f"{word} {', '.join(run.layout for run in runs)}"


def _wrong_rows(run: Run, first: Element) -> str:
    """The wrong rows of an element's head: `0-71 (72 of 72)`; "" of what has none."""
    (intermediate,) = (one for one in run.compares if one.title == first.title)
    place = first.batch, first.head
    (head,) = (one for one in intermediate.heads if (one.batch, one.head) == place)
    if not head.rows:
        return ""
    shown = intermediate.shown
    total = f"{_count(shown)} shown" if shown else f"{intermediate.length}"
    keys = f"; keys: {in_words(head.keys, 6)} ({_count(head.keys)})" if head.keys else ""
    return f"{in_words(head.rows, 6)} ({_count(head.rows)} of {total}){keys}"


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - start + 1 for start, last in ranges)


def receipt(report: Report) -> str:
    """What was compared."""
    elements, case = plural(report.compared.elements, "element"), report.case
    counts = sorted({len(run.compares) for run in report.measured})
    names = plural(counts[-1], "intermediate")
    names = names if len(counts) == 1 else f"{counts[0]} to {names}"
    words = f"compared {elements}: every one of {names} in {plural(len(report.measured), 'run')}"
    if case is None:
        return words
    heads = f"{plural(case.batch, 'batch')}, {plural(case.heads, 'head')}"
    return f"{words}, {heads} and {plural(case.seqlen_q, 'query row')}"
