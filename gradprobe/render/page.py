"""Page: reports as one HTML file, with its style, its script and its maps inside."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.text import Text

from ..model.documents import Reports
from ..model.number import plural
from ..model.report import Report
from ..model.writing import visible
from .comparison import blocks_of, changes_of, counts_in_words
from .comparison import verdict_of as verdict_of_changes
from .console import layouts_of
from .details import all_of
from .notation import BAD, CAUTION, GOOD, UTF8, cause_in_words, so_far, told_apart
from .pictures import SCALE, maps_of
from .reasons import reasons
from .report_blocks import CommandLine, ReportBlock, TextLine, Words, sentences
from .source_places import with_origin
from .tables import close_up

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
MOST_CHECKS = 100
"""Of many checks how many are told in full, those that fail first: a page stays below 2 MB."""
_COLUMNS = 110
# Close-ups of one report.
_MOST_VIEWS = 12
_CLASSES = {
    BAD: "mismatch",
    GOOD: "match",
    "green": "match",
    CAUTION: "inherited",
    "dim": "soft",
    "bold": "strong",
}


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    reports = so_far(several, code)
    return page_of(reports[0]) if len(reports) == 1 else page_of_several(several, reports)


def page_of(report: Report) -> str:
    """The page of one report, or of a survey of layouts."""
    (report,) = with_origin(Reports(reports=(report,))).reports
    version = [f"gradprobe {report.origin.version}"] if report.origin else []
    named = (f"{k} {v}" for k, v in report.environment.items() if v and k != "gradprobe")
    parts = {
        "blocks": _grouped(_blocks(report)),
        "maps": maps_of(report.shown) if report.measured else [],
        "views": list(_close_ups(report)),
        "footer": ", ".join([*version, *named]),
    }
    return _written(report.verdict, report.name, parts)


def page_of_several(several: Reports, reports: Sequence[Report]) -> str:
    """The page of several checks: their causes, then each check that fails.

    Args:
        reports: those of `several`, and one that is not finished where more are to come.
    """
    reports = told_apart(sorted(reports, key=lambda report: report.number))
    ids = {report.title: f"check-{at}" for at, report in enumerate(reports, 1)}
    by_title = {report.title: report for report in reports}
    groups = []
    for group in several.groups:
        first = by_title.get(group.titles[0])
        causes = tuple(map(cause_in_words, first.causes)) if first else ()
        groups.append((group, group.common + causes, [(ids.get(t), t) for t in group.titles]))
    checks, left = list[Any](), MOST_CHECKS
    for report in reports:
        is_told = left > 0 and bool(report.failing or report.error)
        left -= is_told
        checks.append((ids[report.title], report, _grouped(_blocks(report)) if is_told else None))
    counts = Counter(report.verdict for report in reports)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    verdict = Reports(reports=tuple(reports), planned=several.planned).verdict
    parts = {"groups": groups, "checks": checks, "not_taken": several.not_taken or ()}
    return _written(verdict, f"{plural(len(reports), 'check')}: {words}", parts)


def page_of_comparison(before: Reports, after: Reports) -> str:
    """The page of what changed from one to the other."""
    changes = changes_of(with_origin(before), with_origin(after))
    verdict, words = verdict_of_changes(changes), counts_in_words(changes)
    return _written(verdict, words, {"blocks": _grouped(blocks_of(changes))})


def small_of(verdict: str, words: str, page: str) -> str:
    """A piece of HTML for a notebook: what the terminal shows, and below a click the page itself in a frame."""
    template = _environment().get_template("small.html")
    return visible(template.render(verdict=verdict, words=words, page=page))


def _written(verdict: str, words: str, parts: dict[str, Any]) -> str:
    """A page, with all that it needs inside. Text in it is escaped."""
    script, style = (
        (TEMPLATES / f"page.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts |= {"verdict": verdict, "words": words, "script": script, "style": style}
    parts |= {"script_hash": f"sha256-{digest}", "ids": count(1)}
    return visible(_environment().get_template("page.html").render(**parts))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(TEMPLATES)
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"plural": plural, "marked": _marked, "class_of": _class_of}
    made.globals |= {"scale": SCALE, "next": next}
    return made


def _blocks(report: Report) -> Iterator[ReportBlock]:
    """What a page shows of a report beside its maps and close-ups."""
    if error := report.error:
        yield Words(f"{error.message} {error.way_out}", error.kind, CAUTION)
        yield from sentences(error.details)
        if error.code:
            yield TextLine(Text(f"{error.file}:{error.line}  {error.code}"))
    is_survey = any(run.tried for run in report.runs)
    if report.measured or report.audit or is_survey:
        yield from all_of(report, _COLUMNS, UTF8)
    else:
        yield from reasons(report)
        yield from layouts_of(report, UTF8)
    is_told = is_survey or report.audit or (report.failing and report.measured)
    if report.reproduce and not is_told:
        yield CommandLine(report.reproduce)


def _grouped(blocks: Iterable[ReportBlock]) -> list[tuple[str, list[ReportBlock]]]:
    """The blocks, those of one kind that follow one another together."""
    return [(kind, list(those)) for kind, those in groupby(blocks, lambda block: block.kind)]


def _close_ups(report: Report) -> Iterator[tuple[str, list[tuple[str, list[ReportBlock]]]]]:
    """A title, and what the terminal shows of one intermediate of one head."""
    asked = [report.close_up] if report.close_up is not None else []
    views = [*asked, *(view for view in report.close_ups if view not in asked)]
    for view in views[:_MOST_VIEWS]:
        title = f"{view.element.title}: {view.mismatched:,} of {view.total:,} elements wrong"
        yield title, _grouped(close_up(view, _COLUMNS, UTF8.tiles))


def _class_of(style: object) -> str:
    return _CLASSES.get(str(style), "")


def _marked(text: Text | str) -> Markup:
    """Text with its styles as classes."""
    if isinstance(text, str):
        return Markup.escape(text)
    shape, parts, at = Markup('<span class="{}">{}</span>'), list[Markup | str](), 0
    for span in sorted(text.spans):
        parts += [text.plain[at : span.start]]
        parts += [shape.format(_class_of(span.style), text.plain[span.start : span.end])]
        at = span.end
    whole = Markup("").join([*parts, text.plain[at:]])
    return shape.format(name, whole) if (name := _class_of(text.style)) else whole
