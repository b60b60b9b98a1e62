"""A unified diff of one file as replacements of its lines, and applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass
class Replacement:
    """Lines in the place of others."""

    line: int
    """The first one that goes, from 1; where none goes, the one before which the new ones stand."""
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def replacements_of(diff: str) -> Iterator[Replacement]:
    """What a diff replaces, in the order of the file."""
    at, current = 0, Replacement(0)
    for line in diff.split("\n")[2:]:
        head = _HUNK.match(line)
        if line[:1] in ("+", "-") and head is None:
            (current.new if line[0] == "+" else current.old).append(line[1:])
            at += line[0] == "-"
            continue
        if current.old or current.new:
            yield current
        # A hunk that takes no line stands behind the one that it names.
        at = int(head[1]) + (head[2] == "0") if head else at + 1
        current = Replacement(at)
    if current.old or current.new:
        yield current


def patched(text: str, diff: str) -> str:
    """The text with a diff applied.

    Raises:
        ValueError: a line that goes is not the one that the diff has there.
    """
    lines = text.split("\n")
    for change in reversed(list(replacements_of(diff))):
        first, last = change.line - 1, change.line - 1 + len(change.old)
        if [line.rstrip("\r") for line in lines[first:last]] != change.old:
            raise ValueError(f"line {change.line} has changed")
        end = "\r" if first < len(lines) and lines[first].endswith("\r") else ""
        lines[first:last] = [line + end for line in change.new]
    return "\n".join(lines)
