"""Strides by which their tensor is known: primes (or 16 times primes) beyond every size, none given out twice."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from ..cases.layouts import VECTOR, Inputs
from ..cases.placement import spanned
from ..failures import NoRoom
from ..running.allocations import factory_mode, is_plain

if TYPE_CHECKING:
    from torch import Tensor

# No size of a case that is read here has a prime factor as large, so no product of sizes is such a stride.
BEYOND = 64
# Elements before and behind each tensor.
_MARGIN = 128
# No tensor of more bytes is laid out in memory. Large strides make large tensors of small ones, and a wrapper that
# allocates by the extents of its inputs doubles them.
MOST = 1 << 26


class Strange:
    """Gives out strides, and remembers which it gave."""

    def __init__(self, *, unit: bool, bounded: bool = True) -> None:
        """
        Args:
            unit: whether every last stride is 1, and the others are multiples of what vector loads need.
            bounded: whether a tensor of more than MOST bytes is refused. Fake ones need no bound.
        """
        self._unit, self._bounded = unit, bounded
        self._made: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.given: set[int] = set()

    def placed(self, values: Mapping[str, Tensor]) -> Inputs:
        """The values, each tensor with strides that no other has.

        Raises:
            NoRoom: one takes more than MOST bytes.
        """
        name = "distinct-unit" if self._unit else "distinct"
        tensors = {key: self._laid(value, self._strides(tuple(value.shape))) for key, value in values.items()}
        return Inputs(name, dict(values), tensors)

    def allocating(self) -> Any:
        """A context in which what a caller allocates has such strides too.

        Tensors of one shape get the same strides, as they do otherwise. A kernel may take one's stride for another's.
        """
        return factory_mode(self._allocated, lambda _: None, copies=False)

    def _allocated(self, tensor: Tensor, has_values: bool) -> Tensor:  # noqa: ARG002
        if not is_plain(tensor) or not tensor.dim():
            return tensor
        shape = tuple(tensor.shape)
        if shape not in self._made:
            self._made[shape] = self._strides(shape)
        return self._laid(tensor, self._made[shape])

    def _laid(self, value: Tensor, strides: tuple[int, ...]) -> Tensor:
        size = 2 * _MARGIN + spanned(tuple(value.shape), strides)
        if self._bounded and size * value.element_size() > MOST:
            raise NoRoom(f"a tensor of {tuple(value.shape)} with strides {strides} takes more than {MOST >> 20} MiB")
        storage = value.new_zeros(size)
        return storage.as_strided(value.shape, strides, _MARGIN).copy_(value)

    def _strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        strides, span = [], 1
        for axis in reversed(range(len(shape))):
            last = self._unit and axis == len(shape) - 1
            strides.append(1 if last else self._next(span))
            span = strides[-1] * max(shape[axis], 1)
        return tuple(reversed(strides))

    def _next(self, span: int) -> int:
        step = VECTOR if self._unit else 1
        first = max(span // step + 1, BEYOND)
        found = next(step * prime for prime in count(first) if _is_prime(prime) and step * prime not in self.given)
        self.given.add(found)
        return found


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))
