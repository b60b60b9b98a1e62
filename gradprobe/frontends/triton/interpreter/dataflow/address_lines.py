"""Addresses: the lines that made those of each pointer, kept with the handles of the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..memory.stream import MOVES, OF_BLOCKS, POINTING, Note, Operation, Watcher
from ..plans import Handle
from .graph import Flow

_LINES = "gradprobe lines"
# The operations on whole numbers and pointers whose lines belong to the addresses that they make.
_STEPS = (
    "addptr add sub mul sdiv udiv srem urem and or xor shl ashr lshr minsi maxsi minui maxui "
    "make_block_ptr advance"
)


class AddressLines(Watcher):
    """Notes which lines made whole numbers and pointers."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def notes(self) -> Iterator[tuple[str, Note]]:
        for name in f"{MOVES} {POINTING} int_cast".split():
            yield name, self._moved
        for name in _STEPS.split():
            yield name, self._stepped
        for path in OF_BLOCKS:
            yield path, self._of_block

    def _moved(self, step: Operation) -> None:
        if lines := lines_behind(*step.args):
            for result in step.results:
                _kept(result)[_LINES] = lines

    def _stepped(self, step: Operation) -> None:
        (result,) = step.results
        if not isinstance(result, Handle) or result.data.dtype.kind in "iu":
            _kept(result)[_LINES] = lines_behind(*step.args) | {
                self._flow.line(step.site("").lines)
            }

    def _of_block(self, step: Operation) -> None:
        pointers, block = step.results[0], step.of
        pointers.attr[_LINES] = lines_behind(block, block.base, block.strides, *step.args)


def lines_behind(*values: Any) -> frozenset[int]:
    """The lines that made some handles, blocks, or lists of them."""
    found = frozenset[int]()
    for value in values:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            found |= _kept(each).get(_LINES, frozenset())
    return found


def _kept(value: Any) -> dict[str, Any]:
    """Where a handle, or that of a block, keeps what is noted of it."""
    if isinstance(value, Handle):
        return value.attr  # type: ignore[no-any-return]
    return vars(value) if hasattr(type(value), "materialize_pointers") else {}
