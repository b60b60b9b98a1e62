"""A survey of layouts on one screen, where words say what the matrix shows; and all of it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ...model.layout_run import Run
from ...model.memory_finding import WarningNote
from ...model.number import listed
from ...model.report import Report
from ..excerpt import window
from ..layout_survey import (
    blame_in,
    cells_of,
    culprits_of,
    line_of,
    matrix_lines,
    memory_told,
    program_lines,
    sentences_of,
    tried_as,
    verdict_of,
    warning_told,
    wrong_layouts,
)
from ..notation import ASCII, CAUTION, UTF8
from ..rows import MOST, MOST_OF_A_MATCH, Section, folded, headed, headed_in, short
from .notes import in_short, target_warnings
from .reasons import cause_lines, edit_lines, render_reasons, second_cause
from .screen import closed


def survey_screen(report: Report, width: int) -> list[Text]:
    """The survey in at most 24 rows of 80 columns; one without a wrong layout in 10."""
    wrong = wrong_layouts(report)
    verdict, style, words = verdict_of(report)
    sections = [Section(headed_in(f"{verdict} ", style, words, width))]
    if wrong:
        edit = list(edit_lines(report, width))
        sections += [
            Section(_place(report, wrong[0], width)),
            Section(list(cause_lines(report, width))),
            Section(edit, min(len(edit), 4)),
            Section([line for words in culprits_of(report) for line in short(words, width)], 1),
            Section([line for words in _tensors(report) for line in short(words, width)], 2),
            Section(list(second_cause(report, width))),
        ]
    most = MOST if wrong else MOST_OF_A_MATCH
    return closed(report, sections, _sentences(report, wrong), most, width, is_again=bool(wrong))


def _place(report: Report, run: Run, width: int) -> list[Text]:
    blamed = blame_in(run)
    return [
        Text(line_of(report, run), "bold"),
        *short(f"with {run.layout}" + (f": {blamed}" if blamed else ""), width),
    ]


def _tensors(report: Report) -> Iterator[str]:
    """In which layouts each tensor comes out wrong, tensors that are alike together; then those that are right."""
    wrong = {run.layout for run in wrong_layouts(report)}
    alike: dict[tuple[str, ...], list[str]] = {}
    for row, runs in cells_of(report).items():
        failing = tuple(
            tried_as(run).layout for run in runs if run is not None and run.layout in wrong
        )
        alike.setdefault(failing, []).append(row)
    right = alike.pop((), [])
    for layouts, rows in alike.items():
        yield f"wrong with {listed(rows)} in {', '.join(layouts)}"
    if right:
        yield f"not wrong with {listed(right)} in any layout that was tried"


def _sentences(report: Report, wrong: list[Run]) -> list[str]:
    """What is told besides, the most important first."""
    causes = {cause.summary for cause in report.causes}
    told = [warning_told(report, one) for one in report.warnings]
    warned = [
        words for warning, seen in told for words in (f"WARNING  {warning}", in_short(seen))
    ]
    memory = [in_short(words) for words in memory_told(report, wrong) if words not in causes]
    return [*warned, *memory, *sentences_of(report), *target_warnings(report)]


def render_survey(report: Report, width: int, *, utf8: bool = True) -> list[Text]:
    """The survey as lines; the matrix fits 80 columns, sentences are folded to `width`."""
    marks, wrong = UTF8 if utf8 else ASCII, wrong_layouts(report)
    verdict, style, words = verdict_of(report)
    lines = [*headed(verdict, style, words, width)]
    if wrong:
        lines += _place_in_full(report, wrong[0], width)
        lines += render_reasons(report, width)
    for sentence in (*culprits_of(report), *memory_told(report, wrong)):
        lines += folded(sentence, width)
    lines += [line for warned in report.warnings for line in _warning(report, warned, width)]
    lines += [Text(), *matrix_lines(report, marks), Text(), *program_lines(report, marks)]
    lines += [line for sentence in sentences_of(report) for line in folded(sentence, width)]
    return [*lines, Text(f"  again: {report.reproduce}")]


def _place_in_full(report: Report, run: Run, width: int) -> Iterator[Text]:
    blamed = blame_in(run)
    yield Text(line_of(report, run), "bold")
    yield from folded(f"with {run.layout}" + (f": {blamed}" if blamed else ""), width)
    if run.first_mismatch is not None:
        yield from window(run.first_mismatch, width)


def _warning(report: Report, warned: WarningNote, width: int) -> Iterator[Text]:
    """What is told and does not count, and the first that was seen of it: a line, or what came out wrong."""
    words, seen = warning_told(report, warned)
    yield from headed("WARNING", CAUTION, words, width)
    yield from folded(seen, width)
