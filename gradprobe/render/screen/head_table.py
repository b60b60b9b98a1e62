"""The table of heads, in which heads that are alike share a column, and intermediates that are alike a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from ...model.layout_run import INHERITED, MATCH, MISMATCH, Intermediate, Run
from ...model.number import in_words, spans
from ...model.report import Report
from ..console import status_in, worst_in
from ..notation import STYLES, Signs, ratio

_TITLE = "worst error / allowed, by head"
_CELL, _LONGEST = 8, 40
# Ranges of heads in the title of a column.
_RANGES = 3
_Alike = Sequence[Intermediate]


def head_table(report: Report, run: Run, width: int, marks: Signs) -> Iterator[Text]:
    """A header, then a row for intermediates that are wrong in the same heads."""
    heads = report.case.heads if report.case else max(one.count for one in run.compares)
    rows = _rows(run, heads)
    labels = {states: _label(alike, run) for states, alike in rows.items()}
    name = max(len(_TITLE), *map(len, labels.values()))
    columns, cells = _fitting(list(rows), width - name - 2)
    titles = [_title(column, heads) for column in columns]
    header = "".join(f"{title:>{cell}}" for title, cell in zip(titles, cells, strict=True))
    yield Text(f"  {_TITLE:<{name}}{header}", "dim")
    for states, alike in rows.items():
        line = Text(f"  {labels[states]:<{name}}")
        for column, cell in zip(columns, cells, strict=True):
            status = next(known for known in (MISMATCH, INHERITED, MATCH) if known in {states[at] for at in column})
            worst = max((worst_in(one, heads, column) for one in alike), key=lambda by: (by != by, by))
            mark = {MISMATCH: marks.mismatch, INHERITED: marks.inherited, MATCH: ""}[status]
            line.append(f"{mark + ratio(worst) + marks.times:>{cell}}", STYLES.get(status, ""))
        yield line


def legend(marks: Signs) -> Text:
    """What the marks in the table mean."""
    return Text(
        f"  {marks.mismatch} wrong by itself   {marks.inherited} wrong, but right given its wrong inputs", "dim"
    )


def _rows(run: Run, heads: int) -> Mapping[tuple[str, ...], list[Intermediate]]:
    """Intermediates by their status in each query head, in the order of the dataflow."""
    found: dict[tuple[str, ...], list[Intermediate]] = {}
    for one in run.compares:
        found.setdefault(tuple(status_in(one, heads, [head]) for head in range(heads)), []).append(one)
    return found


def _label(alike: _Alike, run: Run) -> str:
    """`P dP delta in dq_kernel`: their names, each with its kernel where it is another's row in another kernel."""
    names: list[str] = []
    for intermediate in alike:
        everywhere = all(other in alike for other in run.compares if other.name == intermediate.name)
        names.append(intermediate.name if everywhere else intermediate.title)
    names = list(dict.fromkeys(names))
    between = ", " if any(" " in name for name in names) else " "
    label = between.join(names)
    while len(label) > _LONGEST and len(names) > 1:
        *names, _ = names
        label = f"{between.join(names)} and {len(alike) - len(names)} more"
    return label


def _fitting(rows: Sequence[tuple[str, ...]], room: int) -> tuple[list[list[int]], list[int]]:
    """As many columns as there is room for, and how wide each is."""
    for most in range(max(1, room // (_CELL + 2)), 0, -1):
        columns = _columns(rows, most)
        cells = [max(_CELL, len(_title(column, len(rows[0])))) + 2 for column in columns]
        if sum(cells) <= room:
            break
    return columns, cells


def _columns(rows: Sequence[tuple[str, ...]], most: int) -> list[list[int]]:
    """Heads that are alike in every row; where these are more groups than columns, the last ones share one."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for head, states in enumerate(zip(*rows, strict=True)):
        groups.setdefault(states, []).append(head)
    found = list(groups.values())
    if len(found) <= most:
        return found
    return [*found[: most - 1], sorted(head for group in found[most - 1 :] for head in group)]


def _title(heads: Sequence[int], count: int) -> str:
    """`0`, `1-3`, `0, 2, 4 ...`, `all`."""
    if len(heads) == count > 1:
        return "all"
    ranges = spans(heads)
    return in_words(ranges[:_RANGES]) + (" ..." if len(ranges) > _RANGES else "")
