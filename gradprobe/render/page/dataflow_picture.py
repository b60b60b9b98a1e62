"""Graph: the dataflow of a run as a picture, each intermediate in each kernel with what became of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from markupsafe import Markup

from ...model.intermediates import GRADIENT_OF, TABLE, is_named_after, parents_of
from ...model.layout_run import INHERITED, MATCH, MISMATCH, NOT_EXPOSED, Intermediate, Run
from ...model.number import listed

PLACES = {row.name: row.place for row in TABLE}
WORDS = {
    MISMATCH: "✗ wrong by itself",
    INHERITED: "↳ inherited",
    MATCH: "✓ right",
    NOT_EXPOSED: "not exposed",
}
_STEP, _LANE, _BOX = (170, 62), 26, (128, 42)


def lanes(run: Run) -> dict[str, dict[str, Intermediate]]:
    """The intermediates of a run by name, kernel by kernel; what is of none comes last, under ""."""
    found: dict[str, dict[str, Intermediate]] = {}
    for intermediate in sorted(run.intermediates, key=lambda intermediate: not intermediate.kernel):
        found.setdefault(intermediate.kernel or "", {})[intermediate.name] = intermediate
    return found


def graph(run: Run, family: str, ids: Mapping[str, str]) -> Markup:
    """The picture: of one kernel all together, of several a lane each, and below them the results.

    Args:
        ids: where the maps of an intermediate stand, by its title.
    """
    by_kernel = lanes(run)
    kernels = [kernel for kernel in by_kernel if kernel]
    inside = {name: one for kernel in kernels for name, one in by_kernel[kernel].items()}
    if len(kernels) == 1 and not inside.keys() & by_kernel.get("", {}).keys():
        words = f"{listed([*inside])} as seen in {kernels[0]}"
        drawn = {words: [one for those in by_kernel.values() for one in those.values()]}
    else:
        drawn = {kernel or (kernels and "results") or "": [*those.values()] for kernel, those in by_kernel.items()}
    return _picture(drawn, list(_edges(by_kernel, family)), ids)


def _picture(
    drawn: Mapping[str, Sequence[Intermediate]], edges: Sequence[tuple[str, str]], ids: Mapping[str, str]
) -> Markup:
    """Lanes by their words, and edges between titles."""
    titles, nodes, at, top = list[Markup](), list[Markup](), dict[str, tuple[int, int]](), 0
    for words, those in drawn.items():
        titles.append(_lane(words, top))
        rows = sorted({PLACES[one.name][1] for one in those})
        for intermediate in those:
            column, row = PLACES[intermediate.name]
            at[intermediate.title] = (column * _STEP[0], top + _LANE + rows.index(row) * _STEP[1])
            nodes.append(_node(intermediate, at[intermediate.title], ids.get(intermediate.title)))
        top += _LANE + len(rows) * _STEP[1]
    # Boxes hide what runs behind them.
    arrows = [_arrow(at[start], at[end], at.values()) for start, end in edges]
    return Markup('<svg class="graph" viewBox="-1 0 {} {}" role="group" aria-label="{}">{}</svg>').format(
        5 * _STEP[0] + _BOX[0] + 2,
        top,
        "The dataflow: what became of each intermediate",
        Markup("").join([*titles, *arrows, *nodes]),
    )


def _edges(by_kernel: Mapping[str, Mapping[str, Intermediate]], family: str) -> Iterator[tuple[str, str]]:
    """What each intermediate is made of, by their titles."""
    for kernel, those in by_kernel.items():
        for name, intermediate in those.items():
            for parent in parents_of(name, family):
                having = [other for other, known in by_kernel.items() if parent in known]
                yield from (
                    (by_kernel[other][parent].title, intermediate.title) for other in _sources(kernel, name, having)
                )


def _sources(kernel: str, name: str, having: Sequence[str]) -> list[str]:
    """From which kernels ("" for the results) an intermediate of a kernel is made, of those that have what it is of.

    A gradient is of the kernels whose names say so. Where that leaves several of which none says it, no edge is drawn.
    What belongs to the forward is of no kernel that was seen: those are the backward's.
    """
    if kernel in having:
        return [kernel]
    if kernel or name not in GRADIENT_OF.values():
        return [""] if "" in having else [*having] if kernel and len(having) == 1 else []
    saying = [other for other in having if is_named_after(other, name)]
    silent = [other for other in having if not any(is_named_after(other, each) for each in GRADIENT_OF.values())]
    return saying or (silent if len(silent) == 1 else [])


def _lane(kernel: str, top: int) -> Markup:
    return Markup('<text class="lane" x="0" y="{}">{}</text>').format(top + 16, kernel) if kernel else Markup("")


def _arrow(start: tuple[int, int], end: tuple[int, int], boxes: Collection[tuple[int, int]]) -> Markup:
    """From one box to another: out of the right or the lower side, into the left or the upper one.

    On its way it runs at the height of its start, else of its end, else between rows: where it meets no other box. In a
    column it leads past the boxes between, at their left.
    """
    (x1, y1), (x2, y2) = ((x, y + _BOX[1] // 2) for x, y in (start, end))
    if x1 == x2 and y2 - y1 > _STEP[1]:
        return _along(f"M{x1} {y1}H{x1 - 20}V{y2}L{x2} {y2}")
    if x1 == x2:
        return _along(f"M{x1 + _BOX[0] // 2} {start[1] + _BOX[1]}L{x2 + _BOX[0] // 2} {end[1]}")
    x1 += _BOX[0]
    between = [y for x, y in boxes if x1 < x < x2]
    aisle = y2 + _STEP[1] // 2 if y1 > y2 else y2 - _STEP[1] // 2
    free = (level for level in (y1, y2) if not any(y <= level <= y + _BOX[1] for y in between))
    level, gap = next(free, aisle), _STEP[0] - _BOX[0]
    leave = "" if level == y1 else _bend(x1, y1, x1 + gap, level)
    return _along(f"M{x1} {y1}{leave}H{x2 - gap}{_bend(x2 - gap, level, x2, y2)}")


def _bend(x1: int, y1: int, x2: int, y2: int) -> str:
    middle = (x1 + x2) // 2
    return f"C{middle} {y1} {middle} {y2} {x2} {y2}"


def _along(path: str) -> Markup:
    return Markup('<path class="arrow" d="{}" marker-end="url(#arrow)"/>').format(path)


def _node(intermediate: Intermediate, at: tuple[int, int], link: str | None) -> Markup:
    box = Markup(
        '<rect class="node s-{}" x="{}" y="{}" width="{}" height="{}" rx="5"/>'
        '<text class="name" x="{}" y="{}">{}</text><text class="word s-{}" x="{}" y="{}">{}</text>'
    ).format(
        intermediate.status.replace(" ", "-"), *at, *_BOX, at[0] + 8, at[1] + 18, intermediate.name,
        intermediate.status.replace(" ", "-"), at[0] + 8, at[1] + 34, WORDS[intermediate.status],
    )  # fmt: skip
    label = f"{intermediate.title}: {WORDS[intermediate.status]}"
    if link is None:
        return Markup('<g role="img" aria-label="{}">{}</g>').format(label, box)
    return Markup('<a href="#{}" aria-label="{}, to its maps">{}</a>').format(link, label, box)
