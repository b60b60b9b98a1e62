"""Parts: what the page says of one report, as the words and maps that its template places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...model.assignment import LAYOUTS
from ...model.layout_run import Element, Run
from ...model.number import ratio
from ...model.report import Report, explained_diagnoses
from .. import layout_survey as survey
from ..console import first_line, verdict_words
from ..excerpt import render_close_up
from ..notation import UTF8, value
from ..screen.head_table import HeadTable
from ..source_places import base_of, places_of
from ..terminal import Terminal, rendered
from .maps import class_of, maps_of, sign_of
from .sources import excerpts

_TERMINAL = Terminal(100, None, utf8=True, details=True)
_COLUMNS = 100
# Columns of a table of heads: of more those that are alike share one.
_MOST_HEADS = 24
# Close-ups of one report.
_MOST_VIEWS = 12


def parts_of(report: Report, *, alone: bool = False, id: str = "report") -> dict[str, Any]:
    """What `page.html` reads of a report.

    Args:
        alone: whether it is all of the page, which then has its maps, its close-ups and the terminal's words.
        id: what its ids on the page begin with.
    """
    base = base_of(report)
    run = report.shown if report.measured else None
    has_results = run is not None and report.error is None
    return {
        "id": id,
        "report": report,
        "alone": alone,
        "headline": verdict_words(report) if has_results else "",
        "first_line": first_line(report) if run is not None else "",
        "facts": list(_facts(report)) if report.failing else [],
        "causes": [
            (cause, excerpts(report, cause, base))
            for cause in explained_diagnoses(report.diagnoses)
        ],
        "heads": _head_table(report, run) if run is not None and run.compares else None,
        "maps": maps_of(run) if alone and run is not None else [],
        "views": list(_close_ups(report)) if alone else [],
        "terminal": _lines(rendered(report, _TERMINAL)) if alone else "",
    }


def _lines(lines: list[Any]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def _close_ups(report: Report) -> Iterator[tuple[str, str]]:
    """A title, and what the terminal shows of one intermediate of one head."""
    asked = [report.close_up] if report.close_up is not None else []
    views = [*asked, *(view for view in report.close_ups if view not in asked)]
    for view in views[:_MOST_VIEWS]:
        title = f"{view.element.title}: {view.mismatched:,} of {view.total:,} elements wrong"
        yield title, _lines(render_close_up(view, _COLUMNS))


def _head_table(report: Report, run: Run) -> dict[str, Any]:
    """The worst error of each head, as the terminal's table has it."""
    table = HeadTable(report, run)
    columns = table.columns(_MOST_HEADS)
    rows = []
    for states, alike in table.rows:
        cells = []
        for column in columns:
            status, worst = table.cell(states, alike, column)
            kind = class_of(sign_of(worst))
            cells.append((kind, f"{_MARKS.get(status, '')}{ratio(worst)}x"))
        rows.append((table.label(alike), cells))
    return {
        "layout": run.layout,
        "columns": [table.title(column) for column in columns],
        "rows": rows,
    }


_MARKS = {"mismatch": UTF8.mismatch, "inherited": UTF8.inherited}


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """The first mismatch and its line, each with what it is."""
    element, base = report.first_mismatch, base_of(report)
    if element is not None:
        yield "intermediate", element.title
    causes = explained_diagnoses(report.diagnoses)
    if causes and causes[0].where:
        where = causes[0].where[0]
        yield "line", f"{base.short(where.file)}:{where.place}"
    elif place := next(iter(places_of(report)), None):
        yield "target", base.shorten(place)
    if element is not None:
        yield from _of_element(report, element)


def _of_element(report: Report, element: Element) -> Iterator[tuple[str, str]]:
    yield (
        "head",
        f"{element.head}"
        if element.batch is None
        else f"{element.head} of batch {element.batch}",
    )
    yield "tile", _indices(*element.tile)
    yield "row, col", _indices(element.row, element.col)
    yield "actual", value(element.actual)
    yield "expected", value(element.expected)
    is_finite = element.ratio != float("inf")
    yield (
        "error",
        f"{ratio(element.ratio)}x what is allowed" if is_finite else "beyond every bound",
    )


def _indices(*indices: int | None) -> str:
    return ",".join("-" if index is None else str(index) for index in indices)


def survey_parts(report: Report) -> dict[str, Any]:
    """What `page.html` reads of a survey of layouts: the matrix, why, and each layout that is wrong."""
    ids = {run.layout: f"layout-{at}" for at, run in enumerate(report.runs, 1)}
    wrong = survey.wrong_layouts(report)
    _, _, words = survey.verdict_of(report)
    rows = []
    for row, runs in survey.cells_of(report).items():
        rows.append((row, [_cell(run, ids) for run in runs]))
    told = [*survey.culprits_of(report), *survey.memory_told(report, wrong)]
    warnings = [
        words for warned in report.warnings for words in survey.warning_told(report, warned)
    ]
    return {
        "matrix": {"columns": LAYOUTS[1:], "rows": rows, "legend": survey.legend(report, UTF8)},
        "told": [words, *told, *warnings],
        "layouts": [_layout(report, run, ids[run.layout]) for run in report.runs],
        "parts": [parts_of(report)],
        "sentences": list(survey.sentences_of(report)),
    }


def _cell(run: Run | None, ids: dict[str, str]) -> tuple[str, str, str] | None:
    """Its sign, its verdict, and what it leads to."""
    if run is None:
        return None
    return survey.sign_of(run, UTF8), run.verdict, ids[run.layout]


def _layout(report: Report, run: Run, id: str) -> tuple[str, str, str, str, list[str]]:
    words = survey.blame_in(run) or survey.words_of(run) or run.how or ""
    memory = [finding.sentence for finding in survey.memory_in(report, run)]
    return id, run.layout, run.verdict, words, memory
