"""Page: reports as one HTML file, with its style, its script and its pictures inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.documents import Reports
from ...model.layout_run import LEVELS
from ...model.number import plural
from ...model.report import Report
from ...model.writing import visible
from ..notation import so_far
from ..source_places import base_of, with_origin

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
MOST_BYTES = 1_950_000
"""Of a page, whatever it may hold."""


def text(several: Reports, code: int | None, evidence: str = "") -> str:
    """The document; as long as the command runs, with a check that is not finished.

    Args:
        evidence: the file of whole heads that was written beside the report of one check.
    """
    reports = so_far(several, code)
    return (
        page_of(reports[0], evidence)
        if len(reports) == 1
        else page_of_several(several, reports, ended=code is not None)
    )


def page_of(report: Report, evidence: str = "") -> str:
    """The page of one report.

    Raises:
        UsageFailure: the evidence cannot be read, or is another report's.
    """
    from .sections import parts_of
    from .surveys import parts_of_layouts

    title = f"{report.verdict}: {report.name}"
    if report.strides is not None and report.runs:
        return _with_wholes("layouts.html", title, parts_of_layouts(report))
    (report,) = with_origin(Reports(reports=(report,))).reports
    page = written("report.html", title, {"report": report, **parts_of(report)})
    if evidence and report.measured:
        from .tile_values import chosen

        values = chosen(evidence, report, MOST_BYTES - len(page.encode()))
        page = written("report.html", title, {"report": report, **parts_of(report, values)})
    return page


def page_of_several(several: Reports, reports: Sequence[Report], *, ended: bool = True) -> str:
    """The page of several checks.

    Args:
        reports: those of `several`, and one that is not finished where more are to come.
        ended: whether none are; before that each is told in short.
    """
    from .surveys import parts_of_checks

    parts = parts_of_checks(several, reports)
    title = f"{parts['verdict']}: {plural(len(reports), 'check')}"
    return _with_wholes("several.html", title, parts) if ended else written("several.html", title, parts)


def _with_wholes(template: str, title: str, parts: Mapping[str, Any]) -> str:
    """A page with the whole reports behind its cells, as many as it has room for."""
    from .wholes import wholes

    room = MOST_BYTES - len(written(template, title, parts).encode())
    return written(template, title, {**parts, "wholes": wholes(parts["each"], room, _whole)})


def _whole(report: Report) -> str:
    """All that the page of a report has below its verdict, but for the words of the terminal."""
    from .sections import parts_of

    return fragment("main.html", {"report": report, **parts_of(report, in_words=False)})


def page_of_comparison(before: Reports, after: Reports) -> str:
    """The page of what changed from one to the other, old beside new."""
    from .surveys import parts_of_comparison

    parts = parts_of_comparison(with_origin(before), with_origin(after))
    return written("comparison.html", f"{parts['verdict']}: {parts['words']}", parts)


def written(template: str, title: str, parts: Mapping[str, Any]) -> str:
    """A page by its template, which extends frame.html, with all that it needs inside. Text in it is escaped.

    Args:
        parts: what the template reads, by name.
    """
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    inside = {"title": title, "style": _file("page.css"), "script": script, "script_hash": f"sha256-{digest}"}
    return visible(_environment().get_template(template).render(**inside, **parts))


def fragment(template: str, parts: Mapping[str, Any]) -> str:
    """A piece of HTML by its template, to stand in a page of somebody else's. Text in it is escaped."""
    return visible(_environment().get_template(template).render(**parts))


@cache
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ..notation import cause_in_words, ratio, value
    from .scale import figure_of

    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"ratio": ratio, "value": value, "plural": plural, "cause": cause_in_words}
    made.globals |= {"base_of": base_of, "figures": [*map(figure_of, LEVELS)]}
    return made
