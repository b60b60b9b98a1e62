"""Slices: the lines that an address was made by, through offsets, pointers and block pointers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from triton.runtime import interpreter as shipped

from ..memory.views import BLOCKS, REARRANGING, Handle, Method
from .graph import Flow

_KEY = "gradprobe slice"
_NONE = frozenset[int]()
# The operations on whole numbers and pointers, whose lines belong to what they make; the others only hand lines on.
_STEPS = "addptr add sub mul sdiv udiv srem urem and or xor shl ashr lshr minsi maxsi minui maxui"
_DIVIDING = ("create_sdiv", "create_udiv", "create_srem", "create_urem")
_HAND_ON = (*REARRANGING, "create_int_cast", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int")


class Slices:
    """The lines behind each address, kept in the `attr` of handles as numbers of `Flow.lines`."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def patches(self) -> Iterator[tuple[Any, str, Callable[[Method], Method]]]:
        """(owner, method name, wrapper) of each method of the interpreter that is wrapped."""
        builder = shipped.InterpreterBuilder
        names = [f"create_{name}" for name in (*_STEPS.split(), "make_block_ptr", "advance")]
        yield from ((builder, name, partial(self._step, name)) for name in names if hasattr(builder, name))
        yield from ((builder, name, self._handing_on) for name in _HAND_ON if hasattr(builder, name))
        owners = [getattr(shipped, name) for name in BLOCKS if hasattr(shipped, name)]
        yield from ((owner, "materialize_pointers", self._of_block) for owner in owners)

    def _step(self, name: str, original: Method) -> Method:
        def method(builder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, *args, **kwargs)
            if not isinstance(result, Handle) or result.data.dtype.kind in "iu":
                self._flow.attempt(self._note, name, result, args)
            return result

        return method

    def _note(self, name: str, result: Any, args: Sequence[Any]) -> None:
        line = self._flow.line()
        _keep(result, slice_of(*args) | {line})
        if isinstance(result, Handle) and result.data.size > 1:
            self._flow.spread.add(line)
        if name in _DIVIDING:
            self._flow.divided.add(line)

    def _handing_on(self, original: Method) -> Method:
        def method(builder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, *args, **kwargs)
            self._flow.attempt(_hand_on, args, result)
            return result

        return method

    def _of_block(self, original: Method) -> Method:
        def materialize_pointers(block: Any, *args: Any, **kwargs: Any) -> Any:
            pointers, masks = original(block, *args, **kwargs)
            self._flow.attempt(lambda: _keep(pointers, slice_of(block, block.base, *block.strides, *args)))
            return pointers, masks

        return materialize_pointers


def _hand_on(args: Sequence[Any], result: Any) -> None:
    found = slice_of(*args)
    for each in result if isinstance(result, tuple) else (result,):
        if found and isinstance(each, Handle):
            _keep(each, found)


def slice_of(*values: Any) -> frozenset[int]:
    """The lines behind some handles, block pointers, or lists of them."""
    found = _NONE
    for value in values:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            kept = _kept(one)
            found = found | kept if found else kept
    return found


def _kept(value: Any) -> frozenset[int]:
    is_held = isinstance(value, Handle) or type(value).__name__ in BLOCKS
    return _notes(value).get(_KEY, _NONE) if is_held else _NONE


def _keep(value: Any, found: frozenset[int]) -> None:
    _notes(value)[_KEY] = found


def _notes(value: Any) -> dict[str, Any]:
    """Where a handle, or the handle of a block, keeps what is noted of it."""
    return value.attr if isinstance(value, Handle) else vars(value)  # type: ignore[no-any-return]
