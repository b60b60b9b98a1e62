"""Several checks on the console: a line each as it comes, the simplest failing one in full, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from ..report.text import CAUTION, ratio
from ..screen import Look
from ..severity import COUNTED, WARNING
from ..spans import plural
from .checked import Checked, Planned, Untaken
from .documents import CRASHED, LATE

# Beyond so many checks those that match are counted alone: they would take more than two screens.
LISTED = 40
_STYLES = {"match": "green", "mismatch": "bold red", "error": CAUTION, "warning": CAUTION}
_VERDICT, _SECONDS = 8, 7


class Table:
    """The lines of so many checks. On a terminal none is longer than it is wide; in a pipe nothing is cut."""

    def __init__(self, planned: Sequence[Planned], look: Look) -> None:
        self._look = look
        longest = max((len(one.title) for one in planned), default=4)
        self._title = max(4, min(longest, look.columns // 2 - 10)) if look.rows is not None else longest
        self._listed = len(planned) <= LISTED

    def head(self) -> list[Text]:
        """What stands above the lines."""
        words = (
            f"  {'verdict':<{_VERDICT}}  {'case':<{self._title}}  {'seconds':>{_SECONDS}}  first mismatch, or why not"
        )
        return [self._cut(Text(words, "dim"))]

    def line_of(self, checked: Checked) -> list[Text]:
        """One check; nothing where it matches and matches are only counted."""
        if not self._listed and checked.verdict == "match":
            return []
        title, word = self._shortened(checked.title, self._title), WARNING if checked.is_warning else checked.verdict
        line = Text.assemble(
            "  ", (f"{word.upper():<{_VERDICT}}", _STYLES[word]), f"  {title:<{self._title}}  ",
            f"{checked.document['seconds']['total']:>{_SECONDS}.1f}  {words_of(checked.document)}",
        )  # fmt: skip
        line.rstrip()
        return [self._cut(line)]

    def _cut(self, line: Text) -> Text:
        if self._look.rows is not None and len(line) > self._look.columns:
            end = self._end()
            line = line[: self._look.columns - len(end)]
            line.append(end)
        return line

    def _shortened(self, words: str, most: int) -> str:
        end = self._end()
        return words if len(words) <= most else words[: most - len(end)] + end

    def _end(self) -> str:
        return "…" if self._look.utf8 else "..."


def words_of(document: Mapping[str, Any]) -> str:
    """Where a check first goes wrong, or why it could not be made; "" of a match."""
    if document["verdict"] == "error":
        message = str(document["error"]["message"]).removeprefix(f"target {document['target']['name']!r} ")
        return " ".join(message.removeprefix(f"{CRASHED}: ").removeprefix(f"{LATE}: ").split())
    if document["verdict"] == "match":
        return ""
    wrong = next(run for run in _worst_first(document) if run["verdict"] == "mismatch")
    return _place(wrong) + (f", {wrong['layout']}" if wrong["layout"] != "contiguous" else "")


def _worst_first(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs; one with a wrong element before those in which an identity alone is broken."""
    return sorted(document["runs"], key=lambda run: run["first_mismatch"] is None)


def _place(run: Mapping[str, Any]) -> str:
    place = run["first_mismatch"]
    if place is None:
        broken = (one["name"] for one in run["invariants"] if one["of"] == "target" and not one["holds"])
        return f"breaks {next(broken, 'an identity')}"
    axes = " ".join(f"{axis}={place[axis]}" for axis in ("batch", "head", "row", "col") if place[axis] is not None)
    return f"{place['intermediate']} {axes} {ratio(_ratio(place))}x"


def _ratio(place: Mapping[str, Any]) -> float:
    actual, expected, budget = (place[name] for name in ("actual", "expected", "budget"))
    if actual is None or expected is None or not budget:
        return math.inf
    return float(abs(actual - expected) / budget)


def simplest(checks: Sequence[Checked]) -> Checked | None:
    """The first that mismatches, else the first error; None where all match."""
    for verdict in ("mismatch", "error"):
        for checked in checks:
            if checked.verdict == verdict:
                return checked
    return None


def in_full(checked: Checked) -> Iterator[str]:
    """Everything that one check has to say, as it is written."""
    yield f"{checked.title}:"
    if checked.verdict == "error":
        error = checked.document["error"]
        yield f"ERROR  {error['message']}"
        printed = str(error.get("stderr_tail", "")).splitlines()
        ways = [error["way_out"]] if error["way_out"] else []
        yield from (f"  {line}" for line in (*ways, *printed, *checked.left))
        yield from checked.lines
        yield f"  again: {checked.document['reproduce']}"
    else:
        yield from checked.lines


def not_taken(untaken: Sequence[Untaken]) -> list[Text]:
    """What a target does not take, one line for each reason."""
    return _with_reasons("not taken", [(one.title, one.why) for one in untaken], "dim")


def warnings(warned: Sequence[Checked]) -> list[Text]:
    """What is told and does not count, one line for each reason."""
    told = [(one.title, one.document["warnings"][0]["words"]) for one in warned]
    return _with_reasons(COUNTED, told, _STYLES[WARNING])


def _with_reasons(head: str, told: Sequence[tuple[str, str]], style: str) -> list[Text]:
    titles: dict[str, list[str]] = {}
    for title, why in told:
        titles.setdefault(why, []).append(title)
    lines = [Text(f"  {'; '.join(those)}: {why}", style) for why, those in titles.items()]
    return [Text(head, style), *lines] if lines else []


def summary(checks: Sequence[Checked], planned: int, seconds: float, warned: int = 0) -> Text:
    """What they come to, in one line, and how many more are warnings."""
    verdicts = [checked.verdict for checked in checks]
    words = ", ".join(
        f"{verdicts.count(verdict)} {verdict}" if verdict != "error" else plural(verdicts.count(verdict), verdict)
        for verdict in _STYLES if verdict in verdicts
    )  # fmt: skip
    words += f", {plural(warned, 'warning')}" if warned else ""
    missing = f", {planned - len(checks)} not made" if len(checks) < planned else ""
    return Text(f"{plural(planned, 'check')} in {seconds:.1f} s: {words or 'none made'}{missing}", "bold")
