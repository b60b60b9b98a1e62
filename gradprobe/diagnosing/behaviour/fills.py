"""N2: results that depend on what memory held before."""

from __future__ import annotations

from ...diagnosis import Diagnosis
from .again import Again, first_moved


def reads_what_was_never_written(again: Again) -> Diagnosis | None:
    """Two runs whose memory held NaN, and 7.0, before anything was written there."""
    with_nan, with_seven = again.run(unwritten=float("nan")), again.run(unwritten=7.0)
    if with_nan is None or with_seven is None:
        return None
    moved = again.moved(with_nan, with_seven)
    name = first_moved(moved)
    if not name:
        return None
    wrong = {each: where | ~again.seen.right[each] & ~again.came[each].isfinite() for each, where in moved.items()}
    count = int(moved[name].sum())
    return Diagnosis(
        f"unwritten/{name}",
        "N2",
        f"{name} depends on what memory held before the run: it, or scratch that it is made from, is read unwritten",
        again.share(wrong),
        (f"{count:,} elements of {name} differ between memory full of NaN and full of 7.0",),
        fix="allocate with torch.zeros what is added to, and store every element of what torch.empty gave",
    )
