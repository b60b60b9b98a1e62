"""Wholes: the whole reports behind the cells of a matrix, packed, of which the page unpacks those that are opened."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec import structs

from ...model.layout_run import MISMATCH, Run
from ...model.number import plural
from ...model.report import Diagnosis, Report

# Of each, its id, quotes and a comma.
_AROUND = 24
# What names an element of a page or refers to one; in text these quotes are escaped.
_ID = re.compile(r'(\s(?:id|href|aria-labelledby|data-copy|data-opens|data-head)=")(#?)([\w ./-]+)"')
_HEADING = re.compile(r"(</?h)([23])\b")


@dataclass(frozen=True)
class Wholes:
    """What stands on a page."""

    json: str = "{}"
    """By the id of a cell: its report as HTML, deflated, in base64."""
    words: str = ""
    """How many there was no room for; "" where all are there."""


def wholes(reports: Iterable[tuple[str, Report]], room: int, whole: Callable[[Report], str]) -> Wholes:
    """As many as take so many bytes, those that fail first.

    Args:
        reports: each with the id of its cell; those without results are told as a whole already.
        whole: makes the HTML of one.
    """
    packed = dict[str, str]()
    having = [(id, report) for id, report in reports if report.measured]
    for id, report in sorted(having, key=lambda pair: pair[1].verdict != MISMATCH):
        text = _packed(_below(id, whole(report)))
        if len(text) + _AROUND > room:
            break
        room -= len(text) + _AROUND
        packed[id] = text
    left = len(having) - len(packed)
    are = "is" if left == 1 else "are"
    words = f"{plural(left, 'report')} {are} told in short: the page has no room for more, and what fails comes first."
    return Wholes(json.dumps(packed), words if left else "")


def _packed(html: str) -> str:
    return base64.b64encode(zlib.compress(html.encode(), 9)).decode()


def _below(id: str, html: str) -> str:
    """A report's HTML as a part of a page: its ids begin with another, and its headings stand below that of a cell."""
    html = _ID.sub(lambda found: f'{found[1]}{_named(id, *found.groups()[1:])}"', html)
    html = html.replace("<section", '<div role="group"').replace("</section>", "</div>")  # of landmarks a page has few
    return _HEADING.sub(lambda found: f"{found[1]}{int(found[2]) + 1}", html)


def _named(id: str, sign: str, words: str) -> str:
    return sign + " ".join(f"{id}-{word}" for word in words.split())


def of_layouts(report: Report, ids: dict[str, str]) -> Iterator[tuple[str, Report]]:
    """Each layout of a survey as a report of its own.

    Args:
        ids: by layout, of what stands behind its cell.
    """
    for run in report.runs:
        causes = tuple(one for one in report.diagnoses if run.verdict == MISMATCH and _is_about(one, run))
        views = tuple(view for view in report.close_ups if view.layout == run.layout)
        changed = {"runs": (run,), "verdict": run.verdict, "first_mismatch": run.first_mismatch, "diagnoses": causes}
        yield ids[run.layout], structs.replace(report, strides=None, reproduce="", close_ups=views, known=(), **changed)


def _is_about(diagnosis: Diagnosis, run: Run) -> bool:
    """Whether a cause may be a layout's: the tensor that it says is misread does not lie contiguous there."""
    return diagnosis.misread is None or diagnosis.misread.tensor in {laid.name for laid in run.laid}
