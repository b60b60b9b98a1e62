"""Graph: the dataflow of a run as a picture, each intermediate in each kernel with what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from markupsafe import Markup

from ...model.intermediates import lookup
from ...model.run import INHERITED, MATCH, MISMATCH, NOT_EXPOSED, Intermediate, Run

# Column and row of each, so that every arrow runs to the right or down.
PLACES = {
    "LSE": (0, 1), "P": (1, 1), "dV": (1, 2), "O": (2, 0), "dP": (2, 2), "delta": (3, 0), "dTau": (3, 2),
    "dSink": (4, 0), "dS": (4, 1), "dQ": (5, 0), "dK": (5, 1), "dBias": (5, 2),
}  # fmt: skip
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
    for one in sorted(run.intermediates, key=lambda one: not one.kernel):
        found.setdefault(one.kernel or "", {})[one.name] = one
    return found


def graph(run: Run, family: str, ids: Mapping[str, str]) -> Markup:
    """The picture.

    Args:
        ids: where the maps of an intermediate stand, by its title.
    """
    parts, top = list[Markup](), 0
    by_kernel = lanes(run)
    for kernel, those in by_kernel.items():
        rows = sorted({PLACES[name][1] for name in those})
        parts.append(_lane(kernel or ("" if len(by_kernel) == 1 else "results"), top))
        at = {
            name: (PLACES[name][0] * _STEP[0], top + _LANE + rows.index(PLACES[name][1]) * _STEP[1]) for name in those
        }
        parts += [_arrow(at[parent], at[name]) for name in those for parent in _parents(name, family) if parent in at]
        parts += [_node(one, at[name], ids.get(one.title)) for name, one in those.items()]
        top += _LANE + len(rows) * _STEP[1]
    width = 5 * _STEP[0] + _BOX[0] + 2
    return Markup('<svg class="graph" viewBox="-1 0 {} {}" role="group" aria-label="{}">{}</svg>').format(
        width, top, "The dataflow: what became of each intermediate", Markup("").join(parts)
    )


def _parents(name: str, family: str) -> Iterator[str]:
    row = lookup(name)
    step = row.step(family) if row else None
    yield from step.parents if step else ()


def _lane(kernel: str, top: int) -> Markup:
    return Markup('<text class="lane" x="0" y="{}">{}</text>').format(top + 16, kernel) if kernel else Markup("")


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    """From one box to another: out of the right or the lower side, into the left or the upper one."""
    (width, height), is_below = _BOX, start[0] == end[0]
    x1, y1 = (start[0] + width // 2, start[1] + height) if is_below else (start[0] + width, start[1] + height // 2)
    x2, y2 = (end[0] + width // 2, end[1]) if is_below else (end[0], end[1] + height // 2)
    return Markup('<path class="arrow" d="M{} {}L{} {}"/>').format(x1, y1, x2, y2)


def _node(one: Intermediate, at: tuple[int, int], link: str | None) -> Markup:
    box = Markup(
        '<rect class="node s-{}" x="{}" y="{}" width="{}" height="{}" rx="5"/>'
        '<text class="name" x="{}" y="{}">{}</text><text class="word s-{}" x="{}" y="{}">{}</text>'
    ).format(
        one.status.replace(" ", "-"), *at, *_BOX, at[0] + 8, at[1] + 18, one.name,
        one.status.replace(" ", "-"), at[0] + 8, at[1] + 34, WORDS[one.status],
    )  # fmt: skip
    label = f"{one.title}: {WORDS[one.status]}"
    if link is None:
        return Markup('<g role="img" aria-label="{}">{}</g>').format(label, box)
    return Markup('<a href="#{}" aria-label="{}, to its maps">{}</a>').format(link, label, box)
