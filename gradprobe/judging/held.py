"""Findings about inputs that do not hold what they held, and about results that are not held as they must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..cases.outputs import coarser_than
from ..intermediates import slots
from ..running.changes import Change, Writer
from ..running.sharing import Shared
from ..running.trace import Trace, dtype_of
from .strays import CHANGED, DTYPE, SHARED, Stray

if TYPE_CHECKING:
    from torch import Tensor


def of_change(change: Change, axes: str, writer: Writer | None) -> Stray:
    """An input that the target wrote over.

    Args:
        axes: of the input, one letter each.
    """
    by = writer or Writer()
    if change.index is None:
        words = f"{change.tensor}, an input, is another view after the run: {change.after}; it had {change.before}"
        return Stray(CHANGED, change.tensor, words, by.kernel, by.file, by.line, by.code, access="store")
    at = f"{change.tensor}[{', '.join(map(str, change.index))}]"
    words = f"{change.tensor}, an input, is overwritten{_by(by)}: {at} was {change.before} and is {change.after}"
    return Stray(
        CHANGED, change.tensor, f"{words}; {change.count:,} of {change.total:,} elements differ",
        by.kernel, by.file, by.line, by.code, access="store", lanes=change.count,
        place=_placed(axes, change.index), stood=(change.after, change.before),
    )  # fmt: skip


def _by(writer: Writer) -> str:
    """Such as " by dq_kernel, line 31: `tl.store(...)`", " by mine.py:31: `q.zero_()`", or nothing."""
    place = f"line {writer.line}" if writer.kernel else f"{Path(writer.file).name}:{writer.line}"
    parts = [writer.kernel, place if writer.line else "", f"`{writer.code}`" if writer.code else ""]
    words = ", ".join(filter(None, parts))
    return f" by {words}" if words else ""


def _placed(axes: str, index: tuple[int, ...] | None) -> tuple[int | None, ...]:
    """Batch, head, row and column of an element of a tensor."""
    if index is None or not axes:
        return (None,) * 4
    padded = (index if axes[0] in "b1" else (0, *index)) + (0,) * 4
    return tuple(at if letter else None for at, letter in zip(padded, slots(axes), strict=False))


def of_shared(found: Shared) -> Stray:
    """A gradient that lies in the memory of another tensor."""
    sentence = f"{found.name} lies in the memory of {found.other}: {found.count:,} of its elements are also its own"
    return Stray(SHARED, found.name, f"{sentence}, and whatever changes one changes the other")


def of_dtypes(trace: Trace, values: Mapping[str, Tensor]) -> Iterator[Stray]:
    """The results that are returned in a dtype that cannot hold what it is to hold."""
    for name, tensor in trace.values.items():
        like = coarser_than(name, tensor.dtype, values) if trace.sources[name] == "exported" else None
        if like is not None:
            came, due = dtype_of(trace, name) or "", str(values[like].dtype).removeprefix("torch.")
            sentence = f"{name} came as {came}, which does not hold the numbers of {due}, the dtype of {like}"
            yield Stray(DTYPE, name, sentence, stood=(came, due))
