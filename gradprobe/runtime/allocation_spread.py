"""What a target allocates, laid apart: contiguous buffers of one shape hide whose strides are used."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..frontends import replaced
from ..inputs.tensor_layouts import VECTOR
from ..processes.ended import is_users

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class AllocationSpread:
    """Lays allocations apart along the axes whose strides one run asks for."""

    asked: dict[str, set[int] | None] = field(default_factory=dict)
    """By place of an allocation, the axes; None where the strides of a view were asked for."""
    is_laid: bool = False
    _made: dict[int, tuple[str, Tensor]] = field(default_factory=dict)

    def lay(self) -> bool:
        """Begins to lay apart; whether there is anything to be laid so."""
        self.is_laid = True
        self._made.clear()
        return any(self.asked.values())

    def strides(self, place: str, tensor: Tensor) -> tuple[int, ...]:
        """The strides of an allocation, with a gap of its own along each axis that was asked for."""
        axes = self.asked.get(place) if self.is_laid else None
        if not axes or not tensor.is_contiguous():
            return tensor.stride()
        gap = VECTOR * (len(self._made) + 1)
        *outer, last = range(tensor.dim())
        strides, span = list(tensor.stride()), max(tensor.shape[last], 1)
        for axis in reversed(outer):
            strides[axis] = span + (gap if axis in axes else 0)
            span = strides[axis] * max(tensor.shape[axis], 1)
        return tuple(strides)

    def allocated(self, place: str, tensor: Tensor) -> None:
        self._made[tensor.untyped_storage().data_ptr()] = (place, tensor)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While open, notes the strides that the target asks for."""
        import torch

        plain = torch.Tensor.stride

        def stride(tensor: Tensor, *axis: Any, **named: Any) -> Any:
            if not self.is_laid and is_users(sys._getframe(1).f_code.co_filename):
                self._note(tensor, *axis, *named.values())
            return plain(tensor, *axis, **named)

        with replaced(torch.Tensor, "stride", stride):
            yield

    def _note(self, tensor: Tensor, *axis: int) -> None:
        place, made = self._made.get(tensor.untyped_storage().data_ptr(), ("", tensor))
        axes, rank = self.asked.get(place, set()), tensor.dim()
        if tensor.shape != made.shape:
            self.asked[place] = None
        elif place and axes is not None:
            axes.update(at % rank for at in axis or range(rank) if -rank <= at < rank)
            self.asked[place] = axes
