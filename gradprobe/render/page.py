"""Reports as one HTML file, with its style and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.text import Text

from ..model.documents import Reports
from ..model.number import plural
from ..model.report import Diagnosis, Report
from ..model.writing import visible
from .notation import BAD, CAUTION, GOOD, cause_in_words, group, so_far
from .rows import ReportBlock, TextLine, Words, sentences
from .screen import all_of
from .source_places import with_origin
from .tables import close_up

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
# Of many checks so many are told in full, and of one report so many close-ups: a page stays below 2 MB.
_MOST_CHECKS, _MOST_VIEWS = 100, 12
_COLUMNS = 110
_CLASSES = {
    BAD: "mismatch", GOOD: "match", "green": "match", CAUTION: "inherited", "dim": "soft", "bold": "strong",
}  # fmt: skip
_GroupedBlocks = list[tuple[str, list[ReportBlock]]]


def text(several: Reports, code: int | None) -> str:
    reports = so_far(with_origin(several), code)
    return _of_one(reports[0]) if len(reports) == 1 else _of_several(several, reports)


def _of_one(report: Report) -> str:
    versions = dict(report.environment)
    if report.origin:
        versions = {"gradprobe": report.origin.version} | versions
    footer = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    views = list(_close_ups(report))
    parts = {"blocks": _grouped(_blocks(report)), "views": views, "footer": footer}
    return _written(report.verdict, report.name, parts)


def _of_several(several: Reports, reports: list[Report]) -> str:
    reports.sort(key=lambda report: report.number)
    ids, causes = dict[str, str](), dict[str, Sequence[Diagnosis]]()
    groups, checks, left = list[Any](), list[Any](), _MOST_CHECKS
    for at, report in enumerate(reports, 1):
        ids[report.title], causes[report.title] = f"check-{at}", report.causes
        is_told = left > 0 and bool(report.failing or report.error)
        left -= is_told
        checks.append((f"check-{at}", report, _grouped(_blocks(report)) if is_told else None))
    for alike in several.groups:
        common = [*alike.common, *map(cause_in_words, causes.get(alike.titles[0], ()))]
        titles = list(zip(map(ids.get, alike.titles), alike.titles, strict=True))
        groups.append((alike, common, titles))
    counts = group(reports, lambda report: report.verdict)
    words = ", ".join(f"{len(those)} {verdict}" for verdict, those in counts.items())
    verdict = Reports(reports=tuple(reports), planned=several.planned).verdict
    parts = {"groups": groups, "checks": checks, "not_taken": several.not_taken or ()}
    return _written(verdict, f"{plural(len(reports), 'check')}: {words}", parts)


def small_of(several: Reports, verdict: str, words: str) -> str:
    """For a notebook: what the terminal shows, and the page behind a click."""
    template = _environment().get_template("small.html")
    return visible(template.render(verdict=verdict, words=words, page=text(several, 0)))


def _written(verdict: str, words: str, parts: dict[str, Any]) -> str:
    script = (TEMPLATES / "page.js").read_text("utf-8")
    style = (TEMPLATES / "page.css").read_text("utf-8")
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
    made.globals["next"] = next
    return made


def _blocks(report: Report) -> Iterator[ReportBlock]:
    if error := report.error:
        yield Words(f"{error.message} {error.way_out}", error.kind, CAUTION)
        yield from sentences(error.details)
        if error.code:
            yield TextLine(Text(f"{error.file}:{error.line}  {error.code}"))
    yield from all_of(report, _COLUMNS)


def _grouped(blocks: Iterable[ReportBlock]) -> _GroupedBlocks:
    kinds = groupby(blocks, lambda block: type(block).__name__)
    return [(kind, list(those)) for kind, those in kinds]


def _close_ups(report: Report) -> Iterator[tuple[str, _GroupedBlocks]]:
    views = [view for view in report.close_ups if view != report.close_up]
    views[:0] = [report.close_up] if report.close_up is not None else []
    for view in views[:_MOST_VIEWS]:
        title = f"{view.element.title}: {view.mismatched:,} of {view.total:,} elements wrong"
        yield title, _grouped(close_up(view, _COLUMNS))


def _class_of(style: object) -> str:
    return _CLASSES.get(str(style), "")


def _marked(text: Text | str) -> Markup:
    if isinstance(text, str):
        return Markup.escape(text)
    shape, whole, at = Markup('<span class="{}">{}</span>'), Markup(), 0
    for span in sorted(text.spans):
        piece = text.plain[span.start : span.end]
        whole += text.plain[at : span.start] + shape.format(_class_of(span.style), piece)
        at = span.end
    whole += text.plain[at:]
    return shape.format(name, whole) if (name := _class_of(text.style)) else whole
