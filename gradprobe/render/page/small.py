"""The page in small, for a notebook: what its first screen says, and below a click the page itself in a frame."""

from __future__ import annotations

from ...model.documents import Reports
from ...model.report import Report
from ..console import first_line, verdict_words
from ..excerpt import render_reasons
from ..source_places import with_origin
from .page import fragment, page_of, page_of_several

_COLUMNS = 110


def small_of(report: Report) -> str:
    """A piece of HTML. What stands outside the frame has no script, and colours that do on light and dark grounds."""
    (known,) = with_origin(Reports(reports=(report,))).reports
    is_wrong = known.failing is not None and bool(known.measured)
    why = render_reasons(known, _COLUMNS) if is_wrong else ()
    parts = {
        "headline": verdict_words(known) if known.measured and known.error is None else known.name,
        "first_line": first_line(known) if is_wrong else "",
        "why": "\n".join(line.plain for line in why),
        "page": page_of(known),
    }
    return fragment("small.html", {"report": known, **parts})


def small_of_several(several: Reports, headline: str, table: str) -> str:
    """The same of several reports, beside which the table of them stands."""
    known = with_origin(several)
    told = {"verdict": several.verdict, "error": None}
    parts = {"headline": headline, "first_line": "", "why": table, "page": page_of_several(known, known.reports)}
    return fragment("small.html", {"report": told, **parts})
