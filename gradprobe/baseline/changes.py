"""Two entries of one case -> Changes: what grew beyond its noise, what improved, what is new or gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..failures import UsageFailure
from .entry import Entry
from .noise import GROWN, IMPROVED, SAME, Growth, growth

FIGURES = ("rms", "worst")


@dataclass(frozen=True)
class Cell:
    """One intermediate in one layout."""

    layout: str
    name: str
    rms: Growth
    worst: Growth

    @property
    def verdict(self) -> str:
        """Grown where either figure is; else improved where either is."""
        verdicts = {self.rms.verdict, self.worst.verdict}
        return next((verdict for verdict in (GROWN, IMPROVED) if verdict in verdicts), SAME)


@dataclass(frozen=True)
class Changes:
    """What became of the errors of one entry."""

    before: Entry
    after: Entry
    cells: tuple[Cell, ...]
    gone: tuple[tuple[str, str], ...]
    """(layout, intermediate) that was saved and is not there any more; the intermediate "" for a whole layout."""
    new: tuple[tuple[str, str], ...]
    coarser: tuple[str, ...]
    """What is now rounded more coarsely than its contract allows, and was not before."""

    @property
    def grown(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.verdict == GROWN]

    @property
    def fails(self) -> bool:
        return bool(self.grown or self.gone or self.coarser)

    @property
    def notes(self) -> list[str]:
        """What else differs, so that errors may have changed for other reasons than the kernel."""
        old, now = self.before.environment, self.after.environment
        changed = [f"{name} {old.get(name)} -> {now[name]}" for name in now if old.get(name) != now[name]]
        notes = [f"the environment is another, and with it the noise may be: {', '.join(changed)}"] if changed else []
        kernels = [name for name, digest in self.after.kernels.items() if self.before.kernels.get(name) != digest]
        return notes + ([f"its kernels' file changed: {', '.join(kernels)}"] if kernels else [])


def compared(entry: Entry) -> int:
    """How many figures of an entry are compared."""
    return len(FIGURES) * len(entry.cells)


def changes(before: Entry, after: Entry, comparisons: int) -> Changes:
    """What became of the errors of an entry.

    Args:
        comparisons: how many figures are compared in all, in this entry and in others beside it.
    """
    now = set(after.cells)
    return Changes(
        before=before,
        after=after,
        cells=tuple(_cell(before, after, at, comparisons) for at in before.cells if at in now),
        gone=_without(before, after),
        new=_without(after, before),
        coarser=tuple(name for name in after.coarser if name not in before.coarser),
    )


def _cell(before: Entry, after: Entry, at: tuple[str, str], comparisons: int) -> Cell:
    old, now = (entry.errors[at[0]][at[1]] for entry in (before, after))
    rms, worst = (growth(getattr(old, figure), getattr(now, figure), comparisons) for figure in FIGURES)
    return Cell(*at, rms, worst)


def _without(entry: Entry, other: Entry) -> tuple[tuple[str, str], ...]:
    """The cells of an entry that another lacks; a layout that is missing as a whole counts once."""
    lacking = [at if at[0] in other.errors else (at[0], "") for at in entry.cells if at not in set(other.cells)]
    return tuple(dict.fromkeys(lacking))


def refuse_other(before: Entry, ran: str, case: Mapping[str, object]) -> None:
    """Refuses a comparison with an entry whose errors are not comparable.

    Raises:
        UsageFailure: the target ran on something else, or its case resolves to another one.
    """
    if ran != before.ran:
        raise UsageFailure(
            f"baseline of {before.words}: saved of {before.ran}, and this is {ran}, whose errors are others",
            "run it where it was saved (--device cpu runs Triton's interpreter), or keep a --file for each",
        )
    names = [name for name in {**before.case, **case} if before.case.get(name) != case.get(name)]
    if names:
        what = ", ".join(f"{name} {before.case.get(name)} -> {case.get(name)}" for name in names)
        raise UsageFailure(
            f"baseline of {before.words}: its case is another one now ({what})",
            f"save it anew: gradprobe baseline save {before.words}",
        )
