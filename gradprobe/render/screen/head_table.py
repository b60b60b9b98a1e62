"""HeadTable: the worst error of each head, in which alike heads share a column, and alike intermediates a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ...model.layout_run import INHERITED, MATCH, MISMATCH, Head, Intermediate, Run
from ...model.number import in_words, ratio, spans
from ...model.report import Report
from ..notation import STYLES, Signs

_TITLE = "worst error / allowed, by head"
_CELL, _LONGEST = 8, 40
# Ranges of heads in the title of a column.
_RANGES = 3
_Alike = Sequence[Intermediate]
_States = tuple[str, ...]
"""The status of an intermediate in each query head."""


class HeadTable:
    """The rows of one run; its columns are as many as there is room for."""

    def __init__(self, report: Report, run: Run, *, each: bool = False) -> None:
        """
        Args:
            each: whether each intermediate has a row of its own.
        """
        self._run = run
        self.heads = report.case.heads if report.case else max(one.count for one in run.compares)
        self.rows: list[tuple[_States, list[Intermediate]]] = []
        """Intermediates by their status in each query head, in the order of the dataflow."""
        for intermediate in run.compares:
            states = tuple(self._status(intermediate, head) for head in range(self.heads))
            alike = next(
                (those for known, those in self.rows if known == states and not each), None
            )
            if alike is None:
                self.rows.append((states, [intermediate]))
            else:
                alike.append(intermediate)

    def _of_head(self, intermediate: Intermediate, head: int) -> list[Head]:
        """What an intermediate has of a query head, in every batch: the key head of dK and dV."""
        own = head // (self.heads // intermediate.count)
        return [one for one in intermediate.heads if one.head == own]

    def _status(self, intermediate: Intermediate, head: int) -> str:
        """The worst of them."""
        statuses = {one.status for one in self._of_head(intermediate, head)}
        return next(known for known in (MISMATCH, INHERITED, MATCH) if known in statuses)

    def columns(self, most: int) -> list[list[int]]:
        """Heads that are alike in every row; where these are more groups than columns, the last ones share one."""
        groups: dict[_States, list[int]] = {}
        for head, states in enumerate(zip(*(states for states, _ in self.rows), strict=True)):
            groups.setdefault(states, []).append(head)
        found = list(groups.values())
        if len(found) <= most:
            return found
        return [*found[: most - 1], sorted(head for group in found[most - 1 :] for head in group)]

    def cell(self, states: _States, alike: _Alike, column: Sequence[int]) -> tuple[str, float]:
        """The worst status of a row in some heads, and its worst error."""
        here = {states[at] for at in column}
        status = next(known for known in (MISMATCH, INHERITED, MATCH) if known in here)
        ratios = [part.ratio for one in alike for at in column for part in self._of_head(one, at)]
        return status, max(ratios, key=lambda by: (by != by, by))  # NaN is worse than any

    def title(self, column: Sequence[int]) -> str:
        """`0`, `1-3`, `0, 2, 4 ...`, `all`."""
        if len(column) == self.heads > 1:
            return "all"
        ranges = spans(column)
        return in_words(ranges[:_RANGES]) + (" ..." if len(ranges) > _RANGES else "")

    def label(self, alike: _Alike) -> str:
        """`P dP delta in dq_kernel`: their names, each with its kernel where it is another's row in another kernel."""
        names: list[str] = []
        for intermediate in alike:
            everywhere = all(
                other in alike for other in self._run.compares if other.name == intermediate.name
            )
            names.append(intermediate.name if everywhere else intermediate.title)
        names = list(dict.fromkeys(names))
        between = ", " if any(" " in name for name in names) else " "
        label = between.join(names)
        while len(label) > _LONGEST and len(names) > 1:
            *names, _ = names
            label = f"{between.join(names)} and {len(alike) - len(names)} more"
        return label


def head_table(
    report: Report, run: Run, width: int, marks: Signs, *, each: bool = False
) -> Iterator[Text]:
    """A header, then a row for intermediates that are wrong in the same heads."""
    table = HeadTable(report, run, each=each)
    labels = [table.label(alike) for _, alike in table.rows]
    name = max(len(_TITLE), *map(len, labels))
    columns, cells = _fitting(table, width - name - 2)
    header = "".join(
        f"{table.title(column):>{cell}}" for column, cell in zip(columns, cells, strict=True)
    )
    yield Text(f"  {_TITLE:<{name}}{header}", "dim")
    signs = {MISMATCH: marks.mismatch, INHERITED: marks.inherited, MATCH: ""}
    for label, (states, alike) in zip(labels, table.rows, strict=True):
        line = Text(f"  {label:<{name}}")
        for column, cell in zip(columns, cells, strict=True):
            status, worst = table.cell(states, alike, column)
            line.append(
                f"{signs[status] + ratio(worst) + marks.times:>{cell}}", STYLES.get(status, "")
            )
        yield line


def legend(marks: Signs) -> Text:
    """What the marks in the table mean."""
    words = f"  {marks.mismatch} wrong by itself   {marks.inherited} wrong, but right given its wrong inputs"
    return Text(words, "dim")


def _fitting(table: HeadTable, room: int) -> tuple[list[list[int]], list[int]]:
    """As many columns as there is room for, and how wide each is."""
    for most in range(max(1, room // (_CELL + 2)), 0, -1):
        columns = table.columns(most)
        cells = [max(_CELL, len(table.title(column))) + 2 for column in columns]
        if sum(cells) <= room:
            break
    return columns, cells
