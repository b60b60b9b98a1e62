"""Spread: what a target allocates laid apart, along the axes whose strides it asks for, as inputs lie in `distinct`.

Contiguous buffers of one shape have equal strides, so one that is read by another's is right by coincidence. An axis
whose stride nobody asks for is taken for contiguous by right.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..inputs.tensor_layouts import VECTOR
from ..processes.attributes import replaced
from ..processes.ended import is_users

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class AllocationSpread:
    """What one run asks for, and how the next one finds it laid."""

    asked: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By FILE:LINE of an allocation, the axes whose strides were asked for."""
    viewed: set[str] = field(default_factory=set)
    """The allocations of which the strides of a view were asked for: which axes these are is not known."""
    is_laid: bool = False
    """Whether allocations are laid apart by now."""
    _count: int = 0
    _made: dict[int, tuple[str, Tensor]] = field(default_factory=dict)

    def lay(self) -> bool:
        """Lays what the target allocates from now on apart; whether there is anything to be laid so."""
        self.is_laid, self._count = True, 0
        self._made.clear()
        for place in self.viewed:
            self.asked.pop(place, None)
        return any(self.asked.values())

    def strides(self, place: str, tensor: Tensor) -> tuple[int, ...]:
        """The strides of what is allocated at a place: with a gap of its own along each axis that was asked for.

        The two outer axes of three or more lie in the other order. Of what is not to be laid apart, its own strides.
        """
        axes = self.asked.get(place) if self.is_laid else None
        if not axes or not tensor.is_contiguous():
            return tensor.stride()
        self._count += 1
        shape = tensor.shape
        order = list(range(len(shape)))
        if {0, 1} <= axes and len(shape) > 2:
            order[:2] = 1, 0
        strides, span = [0] * len(shape), 1
        for axis in reversed(order):
            is_apart = axis in axes and axis != len(shape) - 1
            strides[axis] = span + (VECTOR * self._count if is_apart else 0)
            span = strides[axis] * max(shape[axis], 1)
        return tuple(strides)

    def allocated(self, place: str, tensor: Tensor) -> None:
        """Notes what was allocated, which is kept so that no other has its address."""
        self._made[tensor.untyped_storage().data_ptr()] = (place, tensor)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While open, the strides are noted that the target asks for."""
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
        if tensor.shape != made.shape:
            self.viewed.add(place)
        every = range(tensor.dim())
        if place:
            self.asked[place] |= {every[at] for at in axis if -len(every) <= at < len(every)} if axis else set(every)
