"""Slices: the lines that an address was made by, through offsets, pointers and block pointers.

They are kept in the `attr` of handles, as numbers of `Flow.lines`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ..operations import OF_BLOCKS, REARRANGING, Handle, Note, Operation
from .graph import Flow

_KEY = "gradprobe slice"
_NONE = frozenset[int]()
# The operations on whole numbers and pointers, whose lines belong to what they make; the others only hand lines on.
_STEPS = (
    "addptr add sub mul sdiv udiv srem urem and or xor shl ashr lshr minsi maxsi minui maxui make_block_ptr advance"
)
_HAND_ON = (*REARRANGING, "create_int_cast", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int")


def notes_of_slices(flow: Flow) -> Iterator[tuple[str, Note]]:
    """What is to be called after each operation by which addresses are made."""
    yield from ((f"create_{name}", partial(_step, flow)) for name in _STEPS.split())
    yield from ((name, _hand_on) for name in _HAND_ON)
    yield from ((name, _of_block) for name in OF_BLOCKS)


def _step(flow: Flow, step: Operation) -> None:
    """Takes the line into the slice of what it made."""
    result = step.result
    if not isinstance(result, Handle) or result.data.dtype.kind in "iu":
        _keep(result, slice_of(*step.args) | {flow.line()})


def _hand_on(step: Operation) -> None:
    found = slice_of(*step.args)
    for each in step.results if found else ():
        if isinstance(each, Handle):
            _keep(each, found)


def _of_block(step: Operation) -> None:
    pointers, _ = step.result
    _keep(pointers, slice_of(step.of, step.of.base, *step.of.strides, *step.args))


def slice_of(*values: Any) -> frozenset[int]:
    """The lines behind some handles, block pointers, or lists of them."""
    found = _NONE
    for value in values:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            kept = _notes(one).get(_KEY, _NONE)
            found = found | kept if found else kept
    return found


def _keep(value: Any, found: frozenset[int]) -> None:
    _notes(value)[_KEY] = found


def _notes(value: Any) -> dict[str, Any]:
    """Where a handle, or the handle of a block, keeps what is noted of it; of anything else nothing is."""
    if isinstance(value, Handle):
        return value.attr  # type: ignore[no-any-return]
    return vars(value) if hasattr(type(value), "materialize_pointers") else {}
