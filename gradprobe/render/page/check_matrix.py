"""Matrix: what many checks or layouts came to, of which each cell leads to what stands behind it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations

from ...model.assignment import LAYOUTS, run_name
from ...model.case import Case
from ...model.layout_run import CRASHED, FAILED, INCOMPLETE, MATCH, MISMATCH, SKIPPED, Run
from ...model.number import plural
from ...model.report import Report
from .. import layout_survey as survey
from ..layout_survey import tried_as
from ..notation import UTF8

WARNED = "warned"
SIGNS = {MISMATCH: UTF8.mismatch, FAILED: "crash", INCOMPLETE: "…", WARNED: "!", SKIPPED: "-", MATCH: "="}
"""The sign of each verdict, the worst first."""
SAID = {
    MISMATCH: "wrong",
    FAILED: "not checked",
    INCOMPLETE: "not finished",
    WARNED: "a warning",
    SKIPPED: "refused",
    MATCH: "right",
}
_LENGTH = re.compile(r"\b([LMN])=(\d+)")
# Values of an axis that a matrix has room for.
_MOST = 12


@dataclass(frozen=True)
class Cell:
    """Where a row and a column meet."""

    sign: str
    verdict: str
    words: str
    """What it says to somebody who does not see it."""
    leads_to: str
    """The id of what stands behind it."""


@dataclass(frozen=True)
class Matrix:
    """Cells by row and column; None where nothing was tried."""

    caption: str
    corner: str
    """What its rows and columns are."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]

    @property
    def has_blanks(self) -> bool:
        """Whether nothing was tried somewhere."""
        return any(None in cells for _, cells in self.rows)


def verdict_of(made: Report | Run) -> str:
    """One of SIGNS."""
    if made.severity == "warning":
        return WARNED
    return FAILED if made.verdict == CRASHED else made.verdict


def cell_of(run: Run, words: str, leads_to: str) -> Cell:
    """That of one layout of a survey."""
    return Cell(survey.sign_of(run, UTF8), verdict_of(run), words, leads_to)


def of_layouts(report: Report, ids: Mapping[str, str]) -> Matrix:
    """Tensors and layouts of a survey.

    Args:
        ids: by layout, of what stands behind its cell.
    """

    def cell(row: str, run: Run | None) -> Cell | None:
        if run is None:
            return None
        return cell_of(run, f"{row} {tried_as(run).layout}: {run.verdict}", ids[run.layout])

    made = tuple((row, tuple(cell(row, run) for run in runs)) for row, runs in survey.cells_of(report).items())
    return Matrix("One tensor in each layout, the others contiguous; then all at once", "", LAYOUTS[1:], made)


def of_checks(reports: Sequence[Report], ids: Mapping[str, str], *, combined: bool) -> Matrix | None:
    """Checks along the two axes of their cases along which failures differ most; None where there is no such axis.

    Args:
        ids: by name, of what stands behind its cell.
        combined: whether they are of a battery of combinations, whose titles are the properties of their cases.
    """
    if combined:
        return _of_properties(reports, ids)
    axes = _axes(reports)
    if not axes:
        return None
    rows, columns = (sorted(axes, key=lambda axis: -_spread(axes[axis], reports)) * 2)[:2]
    if rows == columns:
        columns, axes = "", axes | {"": {report.name: "came out" for report in reports}}
    here: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        here.setdefault((axes[rows][report.name], axes[columns][report.name]), []).append(report)
    heads, sides = (tuple(dict.fromkeys(axes[axis].values())) for axis in (columns, rows))
    made = tuple(
        (side, tuple(_worst(f"{side}, {head}", here.get((side, head), ()), ids) for head in heads)) for side in sides
    )
    corner = " / ".join(axis.replace("_", " ") for axis in (rows, columns) if axis)
    return Matrix("The axes along which failures differ most", corner, heads, made)


def _of_properties(reports: Sequence[Report], ids: Mapping[str, str]) -> Matrix:
    """Every two properties that stand in a case together, and each beside itself where it stands alone."""
    words = {report.name: _properties(report.title) for report in reports}
    alone = {own[0] for own in words.values() if len(own) == 1}
    counts = Counter(word for own in words.values() for word in own)
    names = tuple(word for word, count in counts.items() if count > 1 or word in alone)
    here: dict[frozenset[str], list[Report]] = {}
    for report in reports:
        own = [word for word in words[report.name] if word in names]
        for pair in [*combinations(own, 2), *([(own[0],)] if len(own) == 1 else [])]:
            here.setdefault(frozenset(pair), []).append(report)
    made = tuple(
        (row, tuple(_worst(f"{row}, {name}", here.get(frozenset({row, name}), ()), ids) for name in names[: at + 1]))
        for at, row in enumerate(names)
    )
    return Matrix("Two properties in one case; on the diagonal one alone", "", names, made)


def _properties(title: str) -> list[str]:
    """The properties in the title of a combined case; of its lengths, of which few are alike, which is longer."""
    prefix, _, words = title.partition("battery: ")
    lengths = dict(_LENGTH.findall(words))
    rows, keys = (int(lengths.get(name, 0)) for name in "MN")
    longer = ["M < N" if rows < keys else "M > N"] if rows != keys else ["L"] if lengths else []
    return [] if prefix else [*dict.fromkeys([*_LENGTH.sub("", words).split(), *longer])]


def _worst(where: str, reports: Sequence[Report], ids: Mapping[str, str]) -> Cell | None:
    """What checks came to together: the worst of them, the first of those that are as bad."""
    if not reports:
        return None
    counts = Counter(map(verdict_of, reports))
    worst = next(verdict for verdict in SIGNS if counts[verdict])
    first = next(report for report in reports if verdict_of(report) == worst)
    sign = SIGNS[worst] if len(reports) == 1 else f"{SIGNS[worst]} {counts[worst]}/{len(reports)}"
    words = f"{where}: {counts[worst]} of {plural(len(reports), 'check')} {SAID[worst]}"
    return Cell(sign, worst, words, ids[first.name])


def _axes(reports: Sequence[Report]) -> dict[str, dict[str, str]]:
    """By axis, in which not all cases are equal, the value of each check by its title; of axes that go together one."""
    found: dict[str, dict[str, str]] = {}
    for name in (field.name for field in fields(Case)):
        values = {report.name: _value(report, name) for report in reports}
        if 1 < len(set(values.values())) <= _MOST:
            found[name] = values
    seen = set[tuple[tuple[str, ...], ...]]()
    return {name: values for name, values in found.items() if not _is_seen(values, seen)}


def _is_seen(values: Mapping[str, str], seen: set[tuple[tuple[str, ...], ...]]) -> bool:
    parts: dict[str, list[str]] = {}
    for title, value in values.items():
        parts.setdefault(value, []).append(title)
    key = tuple(sorted(map(tuple, parts.values())))
    known = key in seen
    seen.add(key)
    return known


def _value(report: Report, name: str) -> str:
    value = report.options.get(name, "-") if report.case is None else getattr(report.case, name)
    if report.case is not None and name == "runs":
        return " ".join(map(run_name, report.case.runs)) or "default"
    if report.case is not None and name == "layouts":
        return run_name(report.case.layouts) if report.case.layouts else "default"
    return str(value)


def _spread(values: Mapping[str, str], reports: Sequence[Report]) -> float:
    """How much more failures differ along an axis than they would by chance, then how many values it has."""
    wrong = {report.name for report in reports if report.verdict != MATCH}
    rate, chi = len(wrong) / len(reports), 0.0
    for value in set(values.values()):
        of_value = [title for title, other in values.items() if other == value]
        expected = rate * len(of_value)
        chi += (len(wrong & set(of_value)) - expected) ** 2 / expected if expected else 0.0
    return chi + len(set(values.values())) / (10.0 * _MOST)
