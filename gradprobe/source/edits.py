"""Edits of a text, each a span and what stands there afterwards; made in one place for whoever changes a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Text in the place of a span of characters; an insertion where `start == end`."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with every edit made; insertions at one place stand in the order given.

    Raises:
        ValueError: two edits overlap.
    """
    pieces, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise ValueError(f"two edits overlap at character {edit.start}: {edit.text!r} is the second")
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])
