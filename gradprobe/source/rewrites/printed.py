"""Printed: the edit that a cause prints, `h * stride_qh -> h * stride_doh`, made in all places that the cause names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...model.mechanisms import door
from ..kernel_file import KernelFile, arguments_of, calls_of, parameters
from ..text import Edit
from .address_rows import more_passed, more_taken

# The forms that steps of an edit have: see lint.
_REPLACED = re.compile(r"(?:in the launch: )?(?P<old>[^>]+?) -> (?P<new>.+?)(?: in (?P<kernels>[\w, ]+))?$")
_ADDED = re.compile(
    r"add a parameter (?P<name>\w+) after (?P<anchor>\w+) of (?P<kernel>\w+),"
    r" and pass (?P<passed>\S+) for it in the launch"
)
Place = tuple[int, int, int]
"""A line from 1, the column of a piece in the stripped line, and its length."""


@door("edits/printed", lambda *args: ())
def edits_printed(file: KernelFile, fix: str, places: Iterable[Place]) -> tuple[Edit, ...]:
    """The edits of a file that the words of a cause say; none where one of them cannot be told from the words."""
    steps, found = fix.split("; "), set[Edit]()
    added = [match for step in steps if (match := _ADDED.match(step))]
    replaced = [match for step in steps if (match := _REPLACED.match(step))]
    if not replaced or len(added) + len(replaced) < len(steps):
        return ()
    for line, column, length in places:
        text = file.lines[line - 1]
        start = file.offset(line, 0) + len(text) - len(text.lstrip()) + column
        new = _new(file.text[start : start + length], replaced)
        if new is None:
            return ()
        found.add(Edit(start, start + length, new))
    for match in added:
        more = _passed(file, match)
        if not more:
            return ()
        found |= set(more)
    return tuple(sorted(found, key=lambda edit: (edit.start, edit.end)))


def _new(piece: str, steps: Sequence[re.Match[str]]) -> str | None:
    """What is to stand in a piece's place: a step holds it, and differs in it alone."""
    for step in steps:
        before, found, after = step["old"].partition(piece)
        if found and step["new"].startswith(before) and step["new"].endswith(after):
            return step["new"][len(before) : len(step["new"]) - len(after)]
    return None


def _passed(file: KernelFile, step: re.Match[str]) -> list[Edit]:
    """A parameter more, behind another, and what every launch passes for it; none where one does not tell."""
    kernel = next((each for each in file.kernels if each.name == step["kernel"]), None)
    if kernel is None or step["anchor"] not in parameters(kernel):
        return []
    launches = [arguments_of(call, kernel) for call in calls_of(file, kernel.name)]
    if not launches or any(step["anchor"] not in given for given in launches):
        return []
    passed = [more_passed(file, given[step["anchor"]], step["name"], step["passed"]) for given in launches]
    return [more_taken(file, kernel, step["anchor"], step["name"]), *passed]
