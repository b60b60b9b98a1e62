"""Names, source and messages made safe to show: they move no cursor, turn no line and command no runner."""

from __future__ import annotations

import re

# What XML 1.0 cannot hold or advises against, what else ends a line, and what turns the order of what is read: controls
# but tab and newline, separators, halves of characters, non-characters, and marks of direction.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17))
    + "]"
)
# GitHub's runner obeys a line that begins with `::` after white space, and `##[` of its predecessor anywhere in a line.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|#(?=#\[)", re.MULTILINE)
# How a character is written where a person reads the text, in JSON, and in XML, HTML and Markdown.
PLAIN, IN_JSON, IN_MARKUP = "\\x{:02x}", "\\u{:04x}", "&#{};"


def visible(text: str) -> str:
    """The text with what no file of text should hold written as Python writes it: `\\x1b`, `\\ud800`, `\\u202e`."""
    return _UNSEEN.sub(lambda found: repr(found[0])[1:-1], text)


def inert(text: str, written: str = PLAIN) -> str:
    """The text without a command for the runner of a CI that shows it: the first sign of each is written otherwise.

    Args:
        written: how the format of the text writes a character by its number.
    """
    return _COMMAND.sub(lambda found: (found[1] or "") + written.format(ord(found[0][-1])), text)


def safe(text: str) -> str:
    """The text for a terminal and the log of a CI."""
    return inert(visible(text))
