"""Overview: the worst error of every head of every intermediate, as one picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from ...model.layout_run import Head, Intermediate, Run
from ..notation import UTF8, ratio
from .dataflow_picture import WORDS
from .maps import Alike, id_of, places, shorts, words_of
from .scale import class_of, sign_of

_MARKS = {"mismatch": UTF8.mismatch, "inherited": UTF8.inherited}
# Cells that lead each to its map; of more, a row leads to the first.
MOST_LINKS = 2000
_TALL, _NAME = 22, 40
# How wide the columns are together. One of a head has room for a figure, a mark and five digits; one of several for
# their names. A letter of a row's name, in bold, is this wide at most on average.
_ALL, _WIDE, _FOLDED, _LETTER = 1040, 50.0, 130.0, 8.2
Ids = Mapping[tuple[str, int | None, int], str]
"""Of the map of each head, by title, batch and head."""


def overview(run: Run, ids: Ids) -> Markup:
    """Heads against intermediates: a row an intermediate, a column a head of each batch.

    Where columns of one head have no room for figures, those that are equal in every row stand together.
    """
    left = round(_LETTER * max(6, *(len(one.title) for one in run.compares)))
    columns, rows, widest = _table(run)
    step, is_linked = max(4.0, min(widest, _ALL / len(columns))), len(columns) * len(rows) <= MOST_LINKS
    parts = list(_names(columns, left, step))
    for y, (one, cells) in enumerate(zip(run.compares, rows, strict=True), 1):
        parts += _row(one, cells, ids, y * _TALL, (left, step * len(columns)), is_linked=is_linked)
    label = "The worst error of each head: rows are intermediates, columns are heads"
    return Markup(
        '<svg class="overview" viewBox="0 0 {0} {1}" width="{0}" role="group" aria-label="{2}">{3}</svg>'
    ).format(round(left + step * len(columns)), (len(rows) + 1) * _TALL, label, Markup("").join(parts))


def _table(run: Run) -> tuple[list[Alike], list[list[Alike]], float]:
    """Columns, the cells of each row, and how wide a column is at most."""
    longest = max(run.compares, key=lambda intermediate: len(intermediate.heads)).heads
    together = _together(run, longest) if len(longest) * _WIDE > _ALL else []
    if together:
        return together, [[_of(one, heads, longest) for heads in together] for one in run.compares], _FOLDED
    return [(head,) for head in longest], [[(head,) for head in one.heads] for one in run.compares], _WIDE


def _together(run: Run, columns: Sequence[Head]) -> list[Alike]:
    """Columns whose cells have the same state and colour in every row; none where their names have no room."""
    own = [_by_column(one, columns) for one in run.compares]
    found: dict[object, list[Head]] = {}
    for at, column in enumerate(columns):
        cells = (heads[at] for heads in own)
        key = tuple(head and (head.status, class_of(sign_of(head.ratio))) for head in cells)
        found.setdefault(key, []).append(column)
    return [tuple(heads) for heads in found.values()] if len(found) * _FOLDED <= _ALL else []


def _by_column(intermediate: Intermediate, columns: Sequence[Head]) -> list[Head | None]:
    """The head of an intermediate in each column; where heads are grouped its group's."""
    by_batch = {batch: list(heads) for batch, heads in groupby(intermediate.heads, key=lambda head: head.batch)}
    found = list[Head | None]()
    for batch, those in groupby(columns, key=lambda head: head.batch):
        count, own = len(batched := list(those)), by_batch.get(batch) or by_batch.get(None) or []
        found += [own[at * len(own) // count] if own else None for at in range(len(batched))]
    return found


def _of(intermediate: Intermediate, columns: Alike, every: Sequence[Head]) -> Alike:
    """Its heads in some of the columns."""
    known = dict(zip(((head.batch, head.head) for head in every), _by_column(intermediate, every), strict=True))
    heads = (known[column.batch, column.head] for column in columns)
    return tuple({(head.batch, head.head): head for head in heads if head is not None}.values())


def _names(columns: Sequence[Alike], left: int, step: float) -> Iterator[Markup]:
    """The names of columns, batch and head, of as many as there is room for."""
    every = math.ceil(_NAME / step)
    for at, heads in list(enumerate(columns))[::every]:
        yield Markup('<text class="column" x="{:.1f}" y="15">{}</text>').format(left + (at + 0.5) * step, shorts(heads))


def _row(
    intermediate: Intermediate, cells: Sequence[Alike], ids: Ids, y: int, span: tuple[int, float], *, is_linked: bool
) -> Iterator[Markup]:
    """Its name and its cells, from where on and how wide: each leads to its map, else the whole row does."""
    yield Markup('<text class="name" x="0" y="{}">{}</text>').format(y + 15, intermediate.title)
    left, step = span[0], span[1] / max(1, len(cells))
    if not is_linked:
        yield _row_of_many(intermediate, y, left, step)
        return
    for at, heads in enumerate(cells):
        if heads:
            yield _cell(intermediate, heads, ids, (left + at * step, y, step))


def _cell(intermediate: Intermediate, heads: Alike, ids: Ids, box: tuple[float, int, float]) -> Markup:
    """The worst of some heads."""
    worst, (x, y, step) = max(heads, key=lambda head: head.ratio), box
    kind, mark = class_of(sign_of(worst.ratio)), _MARKS.get(worst.status, "")
    text = f"{mark}{ratio(worst.ratio)}" if step >= _WIDE else mark if step >= 12 else ""
    shape = Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="20"/>').format(kind, x, y, step - 1)
    if text:
        middle = (kind, x + step / 2 - 0.5, y + 14, text)
        shape += Markup('<text class="in {}" x="{:.1f}" y="{}">{}</text>').format(*middle)
    rank = "worst " if len(heads) > 1 else ""
    label = f"{intermediate.title}, {places(heads)}: {WORDS[worst.status]}, {rank}{ratio(worst.ratio)}x"
    id = ids[intermediate.title, worst.batch, worst.head]
    return Markup('<a href="#{}" aria-label="{}">{}</a>').format(id, label, shape)


def _row_of_many(intermediate: Intermediate, y: int, left: int, step: float) -> Markup:
    """A path a class; the whole row leads to the maps."""
    paths: dict[str, list[str]] = {}
    for at, head in enumerate(intermediate.heads):
        kind = class_of(sign_of(head.ratio))
        paths.setdefault(kind, []).append(f"M{left + at * step:.1f} {y}h{step - 0.5:.1f}v20h-{step - 0.5:.1f}z")
    shapes = [Markup('<path class="{}" d="{}"/>').format(kind, "".join(path)) for kind, path in paths.items()]
    label = f"{intermediate.title}: {words_of(intermediate)}, to its maps"
    return Markup('<a href="#{}" aria-label="{}">{}</a>').format(id_of(intermediate), label, Markup("").join(shapes))
