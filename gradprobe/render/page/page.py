"""Page: reports as one HTML file, with its style, its script and its maps inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.documents import Reports
from ...model.number import plural
from ...model.report import Report
from ...model.writing import visible
from ..comparison import changes_of, counts_in_words, render_comparison
from ..comparison import verdict_of as verdict_of_changes
from ..console import first_line, verdict_words
from ..notation import cause_in_words, so_far, told_apart, value
from ..screen.reasons import render_reasons
from ..source_places import with_origin

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
MOST_CHECKS = 100
"""Of many checks how many are told in full, those that fail first: a page stays below 2 MB."""
_COLUMNS = 110


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    reports = so_far(several, code)
    return page_of(reports[0]) if len(reports) == 1 else page_of_several(several, reports)


def page_of(report: Report) -> str:
    """The page of one report, or of a survey of layouts."""
    from .sections import parts_of, survey_parts

    (report,) = with_origin(Reports(reports=(report,))).reports
    is_survey = report.strides is not None and bool(report.runs)
    parts = survey_parts(report) if is_survey else {"parts": [parts_of(report, alone=True)]}
    return _written(report.verdict, report.name, {"footer": _footer(report), **parts})


def page_of_several(several: Reports, reports: Sequence[Report]) -> str:
    """The page of several checks: their causes, then each check that fails.

    Args:
        reports: those of `several`, and one that is not finished where more are to come.
    """
    from .sections import parts_of

    reports = told_apart(sorted(reports, key=lambda report: report.number))
    ids = {report.title: f"check-{at}" for at, report in enumerate(reports, 1)}
    failing = [report for report in reports if report.failing or report.error][:MOST_CHECKS]
    groups = []
    for at, group in enumerate(several.groups, 1):
        first = next((report for report in reports if report.title == group.titles[0]), None)
        causes = tuple(map(cause_in_words, first.causes)) if first else ()
        groups.append(
            (
                f"cause-{at}",
                group,
                causes,
                [(ids.get(title, ""), title) for title in group.titles],
            )
        )
    counted = Reports(reports=tuple(reports), planned=several.planned)
    counts = ", ".join(
        f"{sum(one.verdict == word for one in reports)} {word}" for word in _verdicts(reports)
    )
    parts = {
        "groups": groups,
        "checks": [(ids[report.title], report, report in failing) for report in reports],
        "parts": [parts_of(report, id=ids[report.title]) for report in failing],
        "not_taken": several.not_taken or (),
    }
    return _written(counted.verdict, f"{plural(len(reports), 'check')}: {counts}", parts)


def _verdicts(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(report.verdict for report in reports))


def page_of_comparison(before: Reports, after: Reports) -> str:
    """The page of what changed from one to the other."""
    changes = changes_of(with_origin(before), with_origin(after))
    lines = "\n".join(line.plain for line in render_comparison(changes, _COLUMNS))
    return _written(verdict_of_changes(changes), counts_in_words(changes), {"changed": lines})


def small_of(report: Report) -> str:
    """A piece of HTML for a notebook: what the first screen says, and below a click the page itself in a frame."""
    (report,) = with_origin(Reports(reports=(report,))).reports
    is_wrong = report.failing is not None and bool(report.measured)
    why = "\n".join(line.plain for line in render_reasons(report, _COLUMNS)) if is_wrong else ""
    parts = {
        "headline": verdict_words(report)
        if report.measured and report.error is None
        else report.name,
        "first_line": first_line(report) if is_wrong else "",
        "why": why,
        "error": report.error,
    }
    return _small(report.verdict, page_of(report), parts)


def small_of_several(several: Reports, headline: str, table: str) -> str:
    """The same of several reports, beside which the table of them stands."""
    parts = {"headline": headline, "first_line": "", "why": table, "error": None}
    return _small(several.verdict, page_of_several(several, with_origin(several).reports), parts)


def _small(verdict: str, page: str, parts: dict[str, Any]) -> str:
    return visible(
        _environment().get_template("small.html").render(verdict=verdict, page=page, **parts)
    )


def _written(verdict: str, words: str, parts: dict[str, Any]) -> str:
    """A page, with all that it needs inside. Text in it is escaped."""
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    inside = {"style": (TEMPLATES / "page.css").read_text(encoding="utf-8"), "script": script}
    template = _environment().get_template("page.html")
    page = template.render(
        verdict=verdict, words=words, script_hash=f"sha256-{digest}", **inside, **parts
    )
    return visible(page)


def _footer(report: Report) -> str:
    named = {
        name: words for name, words in report.environment.items() if words and name != "gradprobe"
    }
    version = [f"gradprobe {report.origin.version}"] if report.origin else []
    return ", ".join([*version, *(f"{name} {words}" for name, words in named.items())])


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader

    from .maps import SCALE
    from .sources import diff_lines

    loader = FileSystemLoader(TEMPLATES)
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"value": value, "plural": plural}
    made.globals |= {"diff_lines": diff_lines, "scale": SCALE}
    return made
