"""Where each tensor lies in memory: layouts, each inside guard bands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..model import assignment as lying
from ..model.assignment import Assigned, Sizes, dense_strides, run_name, spanned
from ..model.case import Case
from ..model.failures import refuse_if
from ..model.intermediates import OF_HEADS
from ..model.layout_run import TensorLayout
from .guard_bands import ORDINARY, guarded

if TYPE_CHECKING:
    from torch import Tensor

# One repeated value of these is another problem, and what is written needs a place for every element.
_LENGTHS = ("seqlens", "cu_seqlens_q", "cu_seqlens_k")
NEVER_EXPANDED = ("o", "lse", "delta", "mask", "keep", *_LENGTHS, *lying.OUTPUTS)
# One number a head or a sequence, which programs hold contiguous.
VECTORS = ("tau", "alibi", "sinks", *_LENGTHS, *map(str.lower, OF_HEADS))
_FOR_VECTORS = ("contiguous", "offset", lying.AS_SAVED)
# What one buffer holds, side by side in every row, where all of it is packed and of one shape.
_PACKED = (("q", "k", "v"), ("k", "v"), ("dq", "dk", "dv"), ("dk", "dv"))

# Elements of any dtype that every vector load is aligned to; one that is not leaves a process without its device.
VECTOR = 16
# Elements before each tensor; a multiple of 128 keeps the first element as aligned as an allocation's.
_FRONT = 1024
# As many before one of the layout `huge`, which offsets leave by its front that wrap around: a head's and a row's.
_LIMIT, _BEFORE_HUGE = 2**31, 2**32
# How far heads and rows each reach in the layouts that lie far apart.
_REACH = {"huge": _LIMIT, lying.SCALED: 2**20}
# In `distinct`, the axes before the last from the outermost to the innermost: of each tensor another order, since
# `empty_like` keeps it. That of v is the reverse of that of k, whatever size is 1.
_OUTER = {"k": (0, 2, 1), "v": (1, 2, 0), "do": (2, 1, 0), "o": (1, 0, 2), "delta": (1, 0)}
# Elements by which `offset` moves a tensor: odd, so that no vector alignment survives.
_OFFSET = 5
# The offset within an allocation keeps its place modulo this many elements, and with it every vector alignment.
ALIGNED = 128


@dataclass(frozen=True)
class Placement:
    strides: Sizes
    offset: int  # in elements, in its buffer
    buffer: str


def placements_of(tensors: Mapping[str, Tensor]) -> dict[str, Placement]:
    """Of each tensor none of whose elements overlap."""
    found = {}
    for name, tensor in tensors.items():
        if not overlaps(tensor.shape, tensor.stride()):
            strides = within(tensor.shape, tensor.stride())
            found[name] = Placement(strides, int(tensor.storage_offset()) % ALIGNED, name)
    return found


def within(shape: Sizes, strides: Sizes) -> Sizes:
    """Of axes of size 1 no longer than the tensor itself."""
    whole = spanned(shape, strides)
    axes = zip(shape, strides, strict=True)
    return tuple(min(step, whole) if size == 1 else step for size, step in axes)


def overlaps(shape: Sizes, strides: Sizes) -> bool:
    """Other than by a stride of 0."""
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
    found = {}
    for name, place in placements.items():
        if len(place.strides) == 4:
            inner = place.strides[1:]
            block = max(place.strides[0], spanned(shapes[name][1:], inner))
            found[name] = replace(place, strides=(block, *inner))
    return found


@dataclass(frozen=True)
class Inputs:
    layout: str
    values: Mapping[str, Tensor]
    """Contiguous; of outputs, what they hold before the run."""
    tensors: Mapping[str, Tensor]
    assigned: Assigned = ()
    fill: str = ORDINARY


def place(
    values: Mapping[str, Tensor], assigned: Assigned, saved: Mapping[str, Placement] | None = None,
    fill: str = ORDINARY, shapes: str = lying.PLAIN,
) -> Inputs:  # fmt: skip
    """The values laid out as assigned, where a read through any tensor's strides stays inside.

    Args:
        saved: where the tensors lay that `as-saved` puts back.
        fill: of the guard bands, one of `guard_bands.FILLS`.
        shapes: one of `assignment.SHAPES`.
    """
    chosen = {name: layout_of(name, assigned) for name in values}
    words = f"--layout: {lying.AS_SAVED} is how the tensors of a file lie, and there is none"
    refuse_if(saved is None and lying.AS_SAVED in chosen.values(), words, "add --inputs")
    values = effective_values(values, assigned)
    used: set[int] = set()
    places = dict[str, Placement]()
    for index, (name, value) in enumerate(values.items()):
        order = lying.memory_order(name, shapes)
        places[name] = _alone(name, tuple(value.shape), chosen[name], used, index, order)
        if saved and name in saved and chosen[name] == lying.AS_SAVED:
            places[name] = saved[name]
    places |= _packed(values, chosen)
    buffers: dict[str, list[str]] = {}
    for name, spot in places.items():
        buffers.setdefault(spot.buffer, []).append(name)
    found = dict[str, Any]()
    for names in buffers.values():
        found.update(_in_one_buffer(names, values, places, fill))
    tensors = {name: found[name] for name in places}
    return Inputs(run_name(assigned), values, tensors, assigned, fill)


def laid(case: Case, inputs: Inputs) -> tuple[TensorLayout, ...]:
    found = list[TensorLayout]()
    for name, tensor in inputs.tensors.items():
        axes, sizes = case.input_axes(name), tuple(tensor.shape)
        found.append(TensorLayout(name=name, axes=axes, sizes=sizes, strides=tensor.stride()))
    return tuple(found)


def effective_values(values: Mapping[str, Tensor], assigned: Assigned) -> dict[str, Tensor]:
    """`expanded` repeats the first one; of do 1, as `out.sum().backward()` gives."""
    left = dict(values)
    for name, value in values.items():
        if layout_of(name, assigned) == "expanded":
            element = value.new_ones(()) if name == "do" else value.flatten()[0]
            left[name] = element.expand(value.shape).contiguous()
    return left


def layout_of(name: str, assigned: Assigned) -> str:
    """VECTORS move by "all" only where they stay contiguous."""
    chosen = "contiguous"
    for tensor, layout in assigned:
        is_meant = tensor == "all" and (name not in VECTORS or layout in _FOR_VECTORS)
        chosen = layout if tensor == name or is_meant else chosen
    return "contiguous" if chosen == "expanded" and name in NEVER_EXPANDED else chosen


def _alone(
    name: str, shape: Sizes, layout: str, used: set[int], index: int, order: Sequence[int] | None
) -> Placement:  # fmt: skip
    """`order`: its axes, the outermost first, where it lies contiguous."""
    order, offset = tuple(range(len(shape)) if order is None else order), 0
    if layout == "expanded":
        strides = (0,) * len(shape)
    elif layout == "blhd" and len(shape) > 1:
        # [B, H, L, ...] as a view of [B, L, H, ...], or the reverse; of a matrix, its transpose.
        plain, swapped = tuple(range(len(shape))), (0, 2, 1, *range(3, len(shape)))
        swapped = swapped if len(shape) > 2 else (1, 0)
        strides = dense_strides(shape, plain if order == swapped else swapped)
    elif layout == "packed" and len(shape) == 4:
        strides, offset = _slot(shape, 1, 3)
    elif layout in ("distinct", "distinct-unit", lying.ORDERED):
        if layout != lying.ORDERED:
            own, (*outer, last) = _OUTER.get(name, ()), range(len(shape))
            order = (*(own if len(own) == len(outer) else outer), last)
        strides = _distinct(shape, used, index, order, unit=layout != "distinct")
    elif layout in _REACH:
        strides = _far_strides(shape, _REACH[layout])
    elif layout == "strided-last":
        strides = dense_strides(shape, order, last=2)
    else:
        strides, offset = dense_strides(shape, order), _OFFSET if layout == "offset" else 0
    return Placement(strides, offset, f"of {name} alone")


def _distinct(
    shape: Sizes, used: set[int], index: int, order: Sequence[int], *, unit: bool
) -> Sizes:
    """The smallest strides that no axis uses; `unit`: the innermost is 1, others multiples of VECTOR."""
    strides, step = [1] * len(shape), VECTOR if unit else 1
    *outer, last = order
    span = max(shape[last], 1) if unit else index + 1
    for axis in (*([] if unit else [last]), *reversed(outer)):
        free = count(span // step * step + step, step)
        strides[axis] = next(stride for stride in free if stride not in used)
        used.add(strides[axis])
        span = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def _far_strides(shape: Sizes, reach: int) -> Sizes:
    """Heads and rows each reach so many elements; a small step keeps heads apart."""
    inner = [axis for axis in range(len(shape)) if (axis == 0 and len(shape) > 2) or axis == 3]
    *heads, rows = (axis for axis in range(len(shape)) if axis not in inner)
    strides, step = [0] * len(shape), 1
    for axis in reversed(inner):
        strides[axis] = step
        step *= max(shape[axis], 1)
    rooms = math.prod(max(shape[axis], 1) for axis in heads)
    for axis in (*heads, rows):
        # The smallest multiple of a unit of which the last step lies at `reach` or beyond.
        unit = step * rooms
        crossing = -(-reach // (max(shape[axis] - 1, 1) * unit)) * unit
        strides[axis] = crossing if axis == rows else crossing + step
        step *= max(shape[axis], 1) if axis != rows else 1
    return tuple(strides)


def _packed(values: Mapping[str, Tensor], chosen: Mapping[str, str]) -> dict[str, Placement]:
    found: dict[str, Placement] = {}
    for names in _PACKED:
        packed = all(chosen.get(name) == "packed" and name not in found for name in names)
        if packed and len({values[name].shape for name in names}) == 1:
            for at, name in enumerate(names):
                slot = _slot(tuple(values[name].shape), at, len(names))
                found[name] = Placement(*slot, f"packed {names}")
    return found


def _slot(shape: Sizes, at: int, count: int) -> tuple[Sizes, int]:
    _, heads, length, dim = shape
    row = count * heads * dim
    return (length * row, dim, row, 1), at * heads * dim


def _in_one_buffer(
    names: list[str], values: Mapping[str, Tensor], places: Mapping[str, Placement], fill: str
) -> Iterator[tuple[str, Tensor]]:
    first, ends, reaches = values[names[0]], list[int](), list[int]()
    for name in names:
        shape, spot = values[name].shape, places[name]
        ends.append(spot.offset + spanned(shape, spot.strides))
        # As far as this shape reaches by the strides of any tensor with as many axes.
        alike = (each.strides for each in places.values() if len(each.strides) == len(shape))
        reaches += [spanned(shape, strides) for strides in alike]
    own, reach = max(ends), max(reaches)
    # An offset that wraps around at 2^31 reaches as far before the tensor as it should reach behind it.
    front = _BEFORE_HUGE if own > _LIMIT and first.device.type == "cpu" else _FRONT
    storage = guarded(front + own, first.dtype, first.device, fill, reserve=reach)
    for name in names:
        place = places[name]
        view = storage.as_strided(values[name].shape, place.strides, front + place.offset)
        write(view, values[name])
        yield name, view


def write(view: Tensor, values: Tensor) -> None:
    """Along an axis of stride 0 values are equal, and written only once."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in view.stride())
    view[once] = values[once]
