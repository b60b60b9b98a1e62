"""All of a report: what stands on one screen, with every cause, sentence and file."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ...model.case import Case
from ...model.layout_run import FAILED, Element, Run
from ...model.report import Report, Source
from ..console import (
    beyond_the_case,
    first_line,
    headline,
    on_ranks,
    receipt,
    render_layouts,
    sources,
    verdict_lines,
    wrong_rows,
)
from ..excerpt import window
from ..notation import ASCII, UTF8, place_in_words, size_in_words
from ..rows import folded
from ..source_places import base_of
from .head_table import head_table, legend
from .notes import all_notes
from .reasons import render_reasons


def render(
    report: Report,
    width: int,
    *,
    utf8: bool = True,
    is_said: bool = False,
    rows: int | None = None,
) -> list[Text]:
    """The report as lines; tables fit `width`, sentences are folded to it. Nothing where nothing was measured.

    Args:
        is_said: whether what ended it stands there already.
        rows: of the terminal; where it is too short to show the first line still, the verdict stands once more below.
    """
    layouts = list(render_layouts(report, width, utf8=utf8))
    if report.verdict == FAILED or not report.measured:
        if report.error is None or not report.runs:
            return []
        head = [] if is_said else [Text(f"ERROR  {report.error.message}")]
        head += folded(beyond_the_case(report), width) if report.beyond else []
        return [*head, *layouts, Text(f"  again: {report.reproduce}")]
    lines = list(verdict_lines(report, width))
    if report.against is not None:
        from ..target_pair import render_against

        lines += render_against(report, width)
    if report.failing:
        lines += [*_place(report, width), *render_reasons(report, width)]
    run, marks = report.shown, UTF8 if utf8 else ASCII
    if run.compares:
        lines += [Text(), *head_table(report, run, width, marks, each=True)]
        lines += [legend(marks)] if run.first_mismatch else []
        lines += folded("; ".join([sources(run), *_dtypes(run)]), width, "dim")
    lines += [Text(), *layouts]
    for sentence in (*_rows_told(report), *all_notes(report), receipt(report)):
        lines += folded(sentence, width)
    lines += _provenance(report, width)
    return (
        [*lines, *headline(report, width)] if rows is not None and len(lines) >= rows else lines
    )


def _place(report: Report, width: int) -> Iterator[Text]:
    """Where the first mismatch is, and the numbers around it."""
    yield Text(first_line(report), "bold")
    first, case = report.shown.first_mismatch, report.case
    if first is None:
        return
    if case is not None:
        yield from folded(_whereabouts(case, first), width, "dim")
    # Beside the cause one row of numbers is enough.
    yield from window(first, width, one_row=bool(report.causes))


def _whereabouts(case: Case, element: Element) -> str:
    m, n = element.tile
    parts = [on_ranks(case, element)] if element.shard is not None else []
    if m is not None:
        parts.append(f"row tile {m} (of {case.block_m} rows)")
    if n is not None:
        parts.append(f"key tile {n} (of {case.block_n} keys)")
    if element.masked is not None:
        parts.append("masked, so nothing may be there" if element.masked else "not masked")
    return ", ".join([*parts, *filter(None, [size_in_words(element)])])


def _dtypes(run: Run) -> list[str]:
    """In which dtypes it came; what was recovered has none."""
    names: dict[str, list[str]] = {}
    for intermediate in run.compares:
        if intermediate.dtype:
            names.setdefault(intermediate.dtype, []).append(intermediate.name)
    if len(names) == 1:
        return [f"all results are {next(iter(names))}"]
    return [f"{dtype}: {', '.join(of_it)}" for dtype, of_it in names.items()]


def _rows_told(report: Report) -> Iterator[str]:
    run = report.shown
    if not (report.failing and run.compares):
        return
    first = run.first_mismatch
    if first is None:
        yield "no single element is out of bounds"
    elif rows := wrong_rows(run, first):
        yield f"wrong rows: {first.title} {place_in_words(first)}: {rows}"


def _provenance(report: Report, width: int) -> Iterator[Text]:
    """What ran, in which files, and the command that repeats it."""
    target, base = report.target, base_of(report)
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    yield from folded(
        f"ran {target.backend} on {report.environment.get('device')}; seconds: {seconds}", width
    )
    files: dict[tuple[str, str], list[str]] = {}
    own = Source(name=target.function, file=target.file, line=target.line, sha256=target.sha256)
    for source in target.kernels or (own,):
        files.setdefault((source.file, source.sha256), []).append(f"{source.name}:{source.line}")
    for (file, digest), names in files.items():
        yield Text(f"  {base.short(file)} sha256 {digest[:12]}", "dim", overflow="ignore")
        yield from folded("  " + " ".join(names), width)
    if cache := report.environment.get("triton_cache"):
        yield Text(f"  Triton's cache: {base.short(cache)}", "dim")
    if report.failing and report.reproduce:
        yield Text(f"  again: {report.reproduce}")
