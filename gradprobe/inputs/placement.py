"""Placement: where a tensor lies, without its storage, so that the layout can be saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..model.assignment import Sizes, dense_strides, spanned

if TYPE_CHECKING:
    from torch import Tensor

# The offset within an allocation keeps its place modulo this many elements, and with it every vector alignment.
ALIGNED = 128


@dataclass(frozen=True)
class Placement:
    strides: Sizes
    offset: int  # in elements, from the start of its buffer
    buffer: str  # tensors with one word here lie in one buffer, as the parts of packed qkv do


def placements_of(tensors: Mapping[str, Tensor]) -> dict[str, Placement]:
    """Where tensors lie: strides, alignment, and which of them interleave in one storage.

    One whose own elements overlap, other than by a stride of 0, is left out: it cannot be written by elements.
    """
    found = {}
    for names in _interleaved(tensors):
        first = min(int(tensors[name].storage_offset()) for name in names)
        for name in names:
            tensor = tensors[name]
            if not overlaps(tensor.shape, tensor.stride()):
                offset = int(tensor.storage_offset()) - first + first % ALIGNED
                strides = within(tensor.shape, tensor.stride())
                found[name] = Placement(strides, offset, "+".join(sorted(names)))
    return found


def _interleaved(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names in groups, those whose spans overlap in one storage together."""
    groups: list[tuple[Any, int, list[str]]] = []
    for name in sorted(tensors, key=lambda name: tensors[name].storage_offset()):
        tensor = tensors[name]
        storage = (tensor.untyped_storage().data_ptr(), tensor.dtype, tensor.device)
        start = int(tensor.storage_offset())
        end = start + spanned(tensor.shape, tensor.stride())
        for at, (other, reach, names) in enumerate(groups):
            if other == storage and start < reach:
                groups[at] = (storage, max(end, reach), [*names, name])
                break
        else:
            groups.append((storage, end, [name]))
    return [names for _, _, names in groups]


def within(shape: Sizes, strides: Sizes) -> Sizes:
    """The strides, those of axes of size 1, which address nothing, no longer than the tensor itself."""
    whole = spanned(shape, strides)
    axes = zip(shape, strides, strict=True)
    return tuple(min(step, whole) if size == 1 else step for size, step in axes)


def overlaps(shape: Sizes, strides: Sizes) -> bool:
    """Whether two indices may name one element, other than by a stride of 0."""
    reach = 0
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and step:
            if step <= reach:
                return True
            reach += step * (size - 1)
    return False


def for_more_batches(
    placements: Mapping[str, Placement], shapes: Mapping[str, Sizes]
) -> dict[str, Placement]:
    """The placements for any number of batches: each as it was, with the batches of a buffer end to end."""
    four = {name: place for name, place in placements.items() if len(place.strides) == 4}
    first: dict[str, int] = {}
    blocks: dict[str, int] = {}
    for place in four.values():
        first[place.buffer] = min(place.offset, first.get(place.buffer, place.offset))
    for name, place in four.items():
        inside = place.offset - first[place.buffer] + spanned(shapes[name][1:], place.strides[1:])
        blocks[place.buffer] = max(blocks.get(place.buffer, 0), inside, place.strides[0])
    return {
        name: replace(place, strides=(blocks[place.buffer], *place.strides[1:]))
        for name, place in four.items()
    }


def in_words(shape: Sizes, place: Placement | None) -> str:
    """How a tensor lies: contiguous, blhd (heads inside rows), expanded or strided."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if place is None or not axes:
        return "contiguous"
    strides = [place.strides[axis] for axis in axes]
    for name, order in (("contiguous", range(len(shape))), ("blhd", (0, 2, 1, 3))):
        if len(order) == len(shape):
            dense = dense_strides(shape, order)
            if strides == [dense[axis] for axis in axes]:
                return name
    return "strided" if any(strides) else "expanded"
