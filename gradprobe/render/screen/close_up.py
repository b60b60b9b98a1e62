"""One intermediate close up on one screen: the map of its tiles, its worst rows, the numbers around an element."""

from __future__ import annotations

from rich.text import Text

from ...model.layout_run import CloseUp
from ...model.report import Report
from ..excerpt import ASCII_SIGNS, UTF8_SIGNS, close_up_head, close_up_map, close_up_rows, window
from ..rows import MOST, MOST_OF_A_MATCH, Section
from .reasons import cause_lines
from .screen import closed

# `diff` says in a line or two which check it repeats.
_FIRST = 2


def close_up_screen(
    report: Report, view: CloseUp, width: int, *, utf8: bool = True
) -> list[Text]:
    """The close-up in at most 24 rows of 80 columns; one in which nothing is wrong in 10."""
    is_wrong = view.mismatched > 0
    head, *_ = close_up_head(view)
    title, *tiles, signs = close_up_map(view, width, UTF8_SIGNS if utf8 else ASCII_SIGNS)
    head.append(f" ({view.layout})")
    sections = [
        Section([head]),
        Section([title, *tiles], 3, "row"),
        Section([signs]),
        Section(list(close_up_rows(view)), 3 if is_wrong else 2, "row"),
        *([Section(list(window(view.element, width, one_row=True)))] if is_wrong else []),
        *([Section(list(cause_lines(report, width)))] if is_wrong else []),
    ]
    return closed(
        report,
        sections,
        (),
        (MOST if is_wrong else MOST_OF_A_MATCH) - _FIRST,
        width,
        is_again=False,
    )
