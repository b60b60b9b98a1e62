"""Page: reports as one HTML file, with its style, its script and its maps inside."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.assignment import LAYOUTS
from ..model.documents import Reports
from ..model.layout_run import Element, Run
from ..model.number import plural, ratio
from ..model.report import Report, explained_diagnoses
from ..model.writing import visible
from . import layout_survey as survey
from .comparison import changes_of, counts_in_words, render_comparison
from .comparison import verdict_of as verdict_of_changes
from .console import first_line, verdict_words
from .notation import UTF8, cause_in_words, so_far, told_apart, value
from .pictures import SCALE, class_of, diff_lines, excerpts, maps_of, sign_of
from .reasons import render_reasons
from .screen import rendered
from .source_places import base_of, places_of, with_origin
from .tables import HeadTable, close_up_lines, head_cell
from .terminal import Terminal

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.text import Text

TEMPLATES = Path(__file__).with_name("templates")
MOST_CHECKS = 100
"""Of many checks how many are told in full, those that fail first: a page stays below 2 MB."""
_COLUMNS = 110
_TERMINAL = Terminal(100, None, utf8=True, details=True)
# Columns of a table of heads, of more those that are alike share one; and close-ups of one report.
_MOST_HEADS, _MOST_VIEWS = 24, 12


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    reports = so_far(several, code)
    return page_of(reports[0]) if len(reports) == 1 else page_of_several(several, reports)


def page_of(report: Report) -> str:
    """The page of one report, or of a survey of layouts."""
    (report,) = with_origin(Reports(reports=(report,))).reports
    is_survey = report.strides is not None and bool(report.runs)
    parts = survey_parts(report) if is_survey else {"parts": [parts_of(report, alone=True)]}
    return _written(report.verdict, report.name, {"footer": _footer(report), **parts})


def page_of_several(several: Reports, reports: Sequence[Report]) -> str:
    """The page of several checks: their causes, then each check that fails.

    Args:
        reports: those of `several`, and one that is not finished where more are to come.
    """
    reports = told_apart(sorted(reports, key=lambda report: report.number))
    ids = {report.title: f"check-{at}" for at, report in enumerate(reports, 1)}
    failing = [report for report in reports if report.failing or report.error][:MOST_CHECKS]
    groups = []
    for at, group in enumerate(several.groups, 1):
        first = next((report for report in reports if report.title == group.titles[0]), None)
        causes = tuple(map(cause_in_words, first.causes)) if first else ()
        titles = [(ids.get(title, ""), title) for title in group.titles]
        groups.append((f"cause-{at}", group, causes, titles))
    counts = Counter(report.verdict for report in reports)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    verdict = Reports(reports=tuple(reports), planned=several.planned).verdict
    parts = {
        "groups": groups,
        "checks": [(ids[report.title], report, report in failing) for report in reports],
        "parts": [parts_of(report, id=ids[report.title]) for report in failing],
        "not_taken": several.not_taken or (),
    }
    return _written(verdict, f"{plural(len(reports), 'check')}: {words}", parts)


def page_of_comparison(before: Reports, after: Reports) -> str:
    """The page of what changed from one to the other."""
    changes = changes_of(with_origin(before), with_origin(after))
    lines = _lines(render_comparison(changes, _COLUMNS))
    return _written(verdict_of_changes(changes), counts_in_words(changes), {"changed": lines})


def small_of(report: Report) -> str:
    """A piece of HTML for a notebook: what the first screen says, and below a click the page itself in a frame."""
    (report,) = with_origin(Reports(reports=(report,))).reports
    is_wrong = report.failing is not None and bool(report.measured)
    is_told = report.measured and report.error is None
    parts = {
        "headline": verdict_words(report) if is_told else report.name,
        "first_line": first_line(report) if is_wrong else "",
        "why": _lines(render_reasons(report, _COLUMNS)) if is_wrong else "",
        "error": report.error,
    }
    return _small(report.verdict, page_of(report), parts)


def small_of_several(several: Reports, headline: str, table: str) -> str:
    """The same of several reports, beside which the table of them stands."""
    parts = {"headline": headline, "first_line": "", "why": table, "error": None}
    return _small(several.verdict, page_of_several(several, with_origin(several).reports), parts)


def _small(verdict: str, page: str, parts: dict[str, Any]) -> str:
    template = _environment().get_template("small.html")
    return visible(template.render(verdict=verdict, page=page, **parts))


def _written(verdict: str, words: str, parts: dict[str, Any]) -> str:
    """A page, with all that it needs inside. Text in it is escaped."""
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts |= {"verdict": verdict, "words": words, "script": script}
    parts |= {"script_hash": f"sha256-{digest}"}
    parts |= {"style": (TEMPLATES / "page.css").read_text(encoding="utf-8")}
    return visible(_environment().get_template("page.html").render(**parts))


def _footer(report: Report) -> str:
    version = [f"gradprobe {report.origin.version}"] if report.origin else []
    named = (f"{k} {v}" for k, v in report.environment.items() if v and k != "gradprobe")
    return ", ".join([*version, *named])


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(TEMPLATES)
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"value": value, "plural": plural}
    made.globals |= {"diff_lines": diff_lines, "scale": SCALE}
    return made


def _lines(lines: Iterator[Text] | list[Text]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def parts_of(report: Report, *, alone: bool = False, id: str = "report") -> dict[str, Any]:
    """What `page.html` reads of a report.

    Args:
        alone: whether it is all of the page, which then has its maps, its close-ups and the terminal's words.
        id: what its ids on the page begin with.
    """
    base, run = base_of(report), report.shown if report.measured else None
    causes = explained_diagnoses(report.diagnoses)
    return {
        "id": id,
        "report": report,
        "alone": alone,
        "headline": verdict_words(report) if run is not None and report.error is None else "",
        "first_line": first_line(report) if run is not None else "",
        "facts": list(_facts(report)) if report.failing else [],
        "causes": [(cause, list(excerpts(report, cause, base))) for cause in causes],
        "heads": _head_table(report, run) if run is not None and run.compares else None,
        "maps": maps_of(run) if alone and run is not None else [],
        "views": list(_close_ups(report)) if alone else [],
        "terminal": _lines(rendered(report, _TERMINAL)) if alone else "",
    }


def _close_ups(report: Report) -> Iterator[tuple[str, str]]:
    """A title, and what the terminal shows of one intermediate of one head."""
    asked = [report.close_up] if report.close_up is not None else []
    views = [*asked, *(view for view in report.close_ups if view not in asked)]
    for view in views[:_MOST_VIEWS]:
        title = f"{view.element.title}: {view.mismatched:,} of {view.total:,} elements wrong"
        yield title, _lines(close_up_lines(view, _TERMINAL.columns, UTF8.tiles))


def _head_table(report: Report, run: Run) -> dict[str, Any]:
    """The worst error of each head, as the terminal's table has it."""
    table = HeadTable(report, run)
    columns, rows = table.columns(_MOST_HEADS), []
    for states, alike in table.rows:
        cells = [table.cell(states, alike, column) for column in columns]
        told = [(class_of(sign_of(one[1])), head_cell(*one, UTF8).plain) for one in cells]
        rows.append((table.label(alike), told))
    titles = list(map(table.title, columns))
    return {"layout": run.layout, "columns": titles, "rows": rows}


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """The first mismatch and its line, each with what it is."""
    element, base = report.first_mismatch, base_of(report)
    if element is not None:
        yield "intermediate", element.title
    causes = explained_diagnoses(report.diagnoses)
    if causes and causes[0].where:
        where = causes[0].where[0]
        yield "line", f"{base.short(where.file)}:{where.place}"
    elif places := places_of(report):
        yield "target", base.shorten(places[0])
    if element is not None:
        yield from _of_element(element)


def _of_element(element: Element) -> Iterator[tuple[str, str]]:
    batch = "" if element.batch is None else f" of batch {element.batch}"
    yield "head", f"{element.head}{batch}"
    yield "tile", _indices(*element.tile)
    yield "row, col", _indices(element.row, element.col)
    yield "actual", value(element.actual)
    yield "expected", value(element.expected)
    is_finite = element.ratio != float("inf")
    words = f"{ratio(element.ratio)}x what is allowed" if is_finite else "beyond every bound"
    yield "error", words


def _indices(*indices: int | None) -> str:
    return ",".join("-" if index is None else str(index) for index in indices)


def survey_parts(report: Report) -> dict[str, Any]:
    """What `page.html` reads of a survey of layouts: the matrix, why, and each layout that is wrong."""
    ids = {run.layout: f"layout-{at}" for at, run in enumerate(report.runs, 1)}
    rows = []
    for row, runs in survey.cells_of(report).items():
        cells = [
            run and (survey.sign_of(run, UTF8), run.verdict, ids[run.layout]) for run in runs
        ]
        rows.append((row, cells))
    wrong, (_, _, words) = survey.wrong_layouts(report), survey.verdict_of(report)
    told = [words, *survey.culprits_of(report), *survey.memory_told(report, wrong)]
    for warned in report.warnings:
        told += survey.warning_told(report, warned)
    layouts = []
    for run in report.runs:
        words = survey.blame_in(run) or survey.words_of(run) or run.how or ""
        memory = [finding.sentence for finding in survey.memory_in(report, run)]
        layouts.append((ids[run.layout], run.layout, run.verdict, words, memory))
    legend = survey.legend(report, UTF8)
    return {
        "matrix": {"columns": LAYOUTS[1:], "rows": rows, "legend": legend},
        "told": told,
        "layouts": layouts,
        "parts": [parts_of(report)],
        "sentences": list(survey.sentences_of(report)),
    }
