"""Gradients that lie in the memory of an input, or of one another."""

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
    """A gradient of which elements are elements of another tensor too."""

    name: str
    other: str
    """An input or another gradient."""
    count: int
    """How many elements of the first."""


def shared(
    result: object, given: Mapping[str, Tensor], allowed: Collection[str], *, by_autograd: bool
) -> Iterator[Shared]:
    """What each gradient shares with the inputs, and with the gradients after it. Parts of one buffer share nothing.

    Autograd hands one tensor on as the gradient of several, and dO as that of what is only added, and clones it where
    it is kept. So what it returns is held against the other inputs alone.

    Args:
        result: what a target returned.
        given: what it was given, the tensors to write into among it.
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
    """How many elements of a tensor hold a byte of another's."""
    import torch

    if one.device != other.device or storage_of(one) != storage_of(other) or not (one.numel() and other.numel()):
        return 0
    unit = math.gcd(one.element_size(), other.element_size())
    (first, last), (start, end) = _reach(one, unit), _reach(other, unit)
    if last <= start or end <= first:
        return 0
    # Memory of zeros is not there before something is written to it.
    held = torch.zeros(max(last, end) - min(first, start), dtype=torch.bool, device="cpu")
    _laid(other, held, unit, min(first, start)).fill_(True)
    return int(_laid(one, held, unit, min(first, start)).any(-1).sum())


def _reach(tensor: Tensor, unit: int) -> tuple[int, int]:
    """From where to where in its storage a tensor reaches, in units of so many bytes."""
    size = tensor.element_size() // unit
    first = int(tensor.storage_offset())
    furthest = first + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * size, (furthest + 1) * size


def _laid(tensor: Tensor, held: Tensor, unit: int, start: int) -> Tensor:
    """[*shape, units of one element] the units of a tensor among those that begin at one of its storage."""
    size = tensor.element_size() // unit
    strides = [step * size for step in tensor.stride()]
    return held.as_strided([*tensor.shape, size], [*strides, 1], tensor.storage_offset() * size - start)
