"""Finds gradients that share memory with an input or with another gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cases.case import OUTPUTS
from ..intermediates import lookup
from .launches import storage_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Shared:
    """A gradient, some of whose elements lie in the memory of another tensor."""

    name: str
    other: str
    """An input or another gradient."""
    count: int
    """How many elements of the gradient."""


def shared(
    result: object, given: Mapping[str, Tensor], allowed: Collection[str], *, by_autograd: bool
) -> Iterator[Shared]:
    """What each gradient shares with the inputs and with later gradients. Disjoint parts of one buffer share nothing.

    Autograd may return one tensor as several gradients, or dO itself as the gradient of a summand. It clones them where
    they are kept. So its gradients are compared only with the inputs other than dO.

    Args:
        result: what a target returned.
        given: what it was given, including the tensors to write into.
        allowed: the inputs that it may write over.
    """
    gradients = {_intermediate(name): given[name] for name in OUTPUTS if name in given}
    returned = result.items() if isinstance(result, Mapping) else ()
    gradients |= {_intermediate(str(key)): tensor for key, tensor in returned if tensor is not None}
    gradients = {name: gradients[name] for name in map(_intermediate, OUTPUTS) if name in gradients}
    apart = {*OUTPUTS, *allowed, *(["do"] if by_autograd else [])}
    inputs = {name: tensor for name, tensor in given.items() if name not in apart}
    pairs = itertools.product(gradients, inputs)
    among = () if by_autograd else itertools.combinations(gradients, 2)
    every = {**inputs, **gradients}
    for name, other in itertools.chain(pairs, among):
        if count := _elements_of_both(every[name], every[other]):
            yield Shared(name, other, count)


def _intermediate(name: str) -> str:
    row = lookup(name)
    return row.name if row is not None else name


def _elements_of_both(one: Tensor, other: Tensor) -> int:
    """How many elements of one tensor share a byte with the other."""
    import torch

    if one.device != other.device or storage_of(one) != storage_of(other) or not (one.numel() and other.numel()):
        return 0
    unit = math.gcd(one.element_size(), other.element_size())
    (first, last), (start, end) = _reach(one, unit), _reach(other, unit)
    if last <= start or end <= first:
        return 0
    # The system maps zeroed memory only where something is written.
    held = torch.zeros(max(last, end) - min(first, start), dtype=torch.bool, device="cpu")
    _laid(other, held, unit, min(first, start)).fill_(True)
    return int(_laid(one, held, unit, min(first, start)).any(-1).sum())


def _reach(tensor: Tensor, unit: int) -> tuple[int, int]:
    """Where a tensor begins and ends in its storage, in units of `unit` bytes."""
    size = tensor.element_size() // unit
    first = int(tensor.storage_offset())
    furthest = first + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * size, (furthest + 1) * size


def _laid(tensor: Tensor, held: Tensor, unit: int, start: int) -> Tensor:
    """[*shape, units of one element] the tensor's elements in `held`, which begins at unit `start` of its storage."""
    size = tensor.element_size() // unit
    strides = [step * size for step in tensor.stride()]
    return held.as_strided([*tensor.shape, size], [*strides, 1], tensor.storage_offset() * size - start)
