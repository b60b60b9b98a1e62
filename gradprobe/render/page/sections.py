"""Parts: what the page of one report says, as the words and pictures that its template places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...model.layout_run import Element
from ...model.report import Report, explained_diagnoses
from ..console import first_line, verdict_words
from ..notation import ratio, value
from ..source_places import Base, base_of, places_of
from ..terminal import Terminal, rendered
from .dataflow_picture import graph
from .maps import alike_heads, chapters, id_of, shared_ids
from .memory_map import parts_of_memory
from .overview import overview
from .scale import SCALE
from .sources import diff_lines, excerpts, whole_listings
from .tile_values import Values

_TERMINAL = Terminal(100, None, utf8=True, details=True)


def parts_of(
    report: Report,
    values: Values = Values(),  # noqa: B008 - it holds nothing
    *,
    in_words: bool = True,
) -> dict[str, Any]:
    """What `main.html` reads beside the report.

    Args:
        values: those of whole heads, where a file of them is there.
        in_words: whether all that the terminal shows stands there too.
    """
    base, run = base_of(report), report.shown if report.measured else None
    compared = run if run is not None and run.compares else None
    causes = explained_diagnoses(report.diagnoses)
    asked = (report.close_up,) if report.close_up is not None else ()
    views = [*asked, *(view for view in report.close_ups if view not in asked)]
    alike = alike_heads(compared, values.tiles.keys()) if compared else []
    return {
        "headline": verdict_words(report) if run is not None and report.error is None else "",
        "first_line": first_line(report) if run is not None else "",
        "facts": list(_facts(report, base)) if report.failing else [],
        "element": report.first_mismatch,
        "base": base,
        "causes": [(cause, excerpts(report, cause, base), whole_listings(report, cause, base)) for cause in causes],
        "diff_lines": diff_lines,
        "run": run,
        "graph": graph(compared, report.target.family, {one.title: id_of(one) for one in compared.compares})
        if compared
        else "",
        "overview": overview(compared, shared_ids(compared, alike)) if compared else "",
        "chapters": chapters(compared, alike, views, values.opens) if compared else [],
        "values": values,
        "scale": SCALE,
        "memory": parts_of_memory(report),
        "terminal": "\n".join(line.plain.rstrip() for line in rendered(report, _TERMINAL)) if in_words else "",
    }


def _facts(report: Report, base: Base) -> Iterator[tuple[str, str]]:
    """The first mismatch and its line, each with what it is."""
    element = report.first_mismatch
    if element is not None:
        yield "intermediate", element.title
    yield from _line(report, base)
    if element is not None:
        yield "head", f"{element.head}" if element.batch is None else f"{element.head} of batch {element.batch}"
        yield "tile", _tile(report, element)
        yield "row, col", ", ".join("-" if index is None else str(index) for index in (element.row, element.col))
        yield "actual", value(element.actual)
        yield "expected", value(element.expected)
        is_finite = element.ratio != float("inf")
        yield "error", f"{ratio(element.ratio)}x what is allowed" if is_finite else "beyond every bound"


def _line(report: Report, base: Base) -> Iterator[tuple[str, str]]:
    """The line that the first cause names; else the target, which accuses nobody."""
    causes = explained_diagnoses(report.diagnoses)
    if causes and causes[0].where:
        where = causes[0].where[0]
        yield "line", f"{base.short(where.file)}:{where.place}"
    elif place := next(iter(places_of(report)), None):
        yield "target", base.shorten(place)


def _tile(report: Report, element: Element) -> str:
    m, n = element.tile
    words = ",".join("-" if index is None else str(index) for index in element.tile)
    if report.case is None:
        return words
    case = report.case
    blocks = (("rows", m, case.block_m, case.seqlen_q), ("keys", n, case.block_n, case.seqlen_k))
    # Of a shard, whose length is not the case's, a tile may end before its span.
    spans = [f"{axis} {at * size}-{min((at + 1) * size, of) - 1}" for axis, at, size, of in blocks if at is not None]
    return f"{words} ({', '.join(spans)})" if spans else words
