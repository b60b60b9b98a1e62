"""Whether a failing check of the battery counts: not what its target never declared to take, if it is seen at once.

A target that raises there, or returns another shape, is misused by nobody for long. Wrong numbers count: nobody would
notice them. What only an offset beyond 2^31 elements shows does not count either, where the same strides are right when
they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from ...model.assignment import SCALED
from ...model.failures import TargetFailure
from ...model.report import FAILED
from ...model.severity import HUGE, UNDECLARED, Warned
from .battery import Item
from .checked import Checked
from .table import words_of


def weighed(checked: Checked, entry: Item, made: Callable[[Mapping[str, Any]], Checked]) -> Checked:
    """The check; one that does not count, as a warning.

    Args:
        made: makes the check with other options.
    """
    if checked.verdict == "match":
        return checked
    if entry.options.get("layout") == [f"all={HUGE}"]:
        is_right = made({**checked.request.options, "layout": [f"all={SCALED}"]}).verdict == "match"
        return checked.as_warning(_overflow(checked)) if is_right else checked
    error = checked.report.error if checked.verdict == FAILED else None
    if entry.beyond and error is not None and error.kind == TargetFailure.__name__:
        return checked.as_warning(_undeclared(checked, entry))
    return checked


def hinted(checked: Checked, entry: Item) -> Checked:
    """The check; of wrong numbers where nothing says that the target takes such a case, with the way out."""
    if checked.verdict != "mismatch" or not entry.beyond:
        return checked
    way = f"not meant to take {entry.beyond}? let it raise a ValueError: what a target refuses counts nowhere"
    return replace(checked, report=structs.replace(checked.report, hints=(*checked.report.hints, way)))


def _overflow(checked: Checked) -> Warned:
    words = "right in the same strides when they are small, so an index is held in 32 bits"
    return Warned(HUGE, checked.title, f"{words}: {words_of(checked.report)}", (HUGE,))


def _undeclared(checked: Checked, entry: Item) -> Warned:
    words = f"given {entry.beyond}, which no parameter of it tells: {words_of(checked.report)}"
    return Warned(UNDECLARED, checked.title, words, ())
