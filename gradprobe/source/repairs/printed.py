"""Printed: the edit that a cause prints, `h * stride_qh -> h * stride_doh`, made in all places that the cause names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...model.mechanisms import door
from ..kernel_file import KernelFile
from ..operators.addresses import parameters
from ..text import Edit
from .spots import calls_of

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
        start = _start(file, line) + column
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


def _start(file: KernelFile, line: int) -> int:
    text = file.lines[line - 1]
    return file.offset(line, 0) + len(text) - len(text.lstrip())


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
    if kernel is None or step["anchor"] not in (names := parameters(kernel)):
        return []
    node = next(each for each in (*kernel.args.args, *kernel.args.kwonlyargs) if each.arg == step["anchor"])
    at = file.span(node)[1]
    edits = [Edit(at, at, f", {step['name']}")]
    for call in calls_of(file, kernel.name):
        by_name = {word.arg: word for word in call.keywords if word.arg}
        given = dict(zip(names, call.args, strict=False))
        beside = by_name.get(step["anchor"], given.get(step["anchor"]))
        if beside is None or any(type(one).__name__ == "Starred" for one in call.args):
            return []
        end = file.span(beside)[1]
        word = f"{step['name']}={step['passed']}" if step["anchor"] in by_name else step["passed"]
        edits.append(Edit(end, end, f", {word}"))
    return edits if len(edits) > 1 else []
