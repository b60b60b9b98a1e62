"""Where a tap stores: float32 with a mark on every place that nothing has been stored to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# A NaN that no arithmetic yields.
_UNTOUCHED = 0x7FC5A5A5


@dataclass(frozen=True)
class Contents:
    """What was stored."""

    values: Tensor
    """0 where nothing was; in the dtype that the kernel held, which float32 holds exactly."""
    stored: Tensor
    """bool, of the same shape."""
    is_out_of_range: bool
    """Whether a scalar index, such as that of the head, lay outside the tensor."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """Room for one intermediate."""

    memory: Tensor
    shape: tuple[int, ...]

    def arguments(self) -> tuple[Any, ...]:
        """What the kernel is passed: the memory, and four sizes, the first of them 1 where there are fewer axes."""
        return (self.memory, *(1,) * (4 - len(self.shape)), *self.shape)

    def read(self) -> Contents:
        import torch

        from ...kernels.triton.tap import MARKS

        bits = self.memory.view(torch.int32)
        size = math.prod(self.shape)
        marks = dict(zip(MARKS, (bits[size:] != _UNTOUCHED).tolist(), strict=True))
        stored = bits[:size] != _UNTOUCHED
        values = torch.where(stored, self.memory[:size], 0.0)
        dtype = torch.bfloat16 if marks["bfloat16"] else torch.float16 if marks["float16"] else torch.float32
        return Contents(values.reshape(self.shape).to(dtype), stored.reshape(self.shape), marks["out of range"])


def new_buffer(shape: Sequence[int], device: str) -> Buffer:
    """A buffer that nothing has been stored to."""
    import torch

    from ...kernels.triton.tap import MARKS

    bits = torch.full((math.prod(shape) + len(MARKS),), _UNTOUCHED, dtype=torch.int32, device=device)
    return Buffer(bits.view(torch.float32), tuple(shape))
