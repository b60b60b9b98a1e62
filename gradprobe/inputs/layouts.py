"""Where each tensor lies in memory: nine layouts and that of a file, every one inside a guard band of known values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from ..model.assignment import AS_SAVED, SCALED, Assigned, run_name
from ..model.case import OUTPUTS
from ..model.failures import UsageFailure
from ..model.shapes import PLAIN, memory_order
from .guards import ORDINARY, guarded
from .placement import Placement, spanned

if TYPE_CHECKING:
    from torch import Tensor

# What the others determine, or what is no gradient's business: one repeated value of these is another problem. And what
# is written needs a place for every element.
NEVER_EXPANDED = ("o", "lse", "delta", "mask", "keep", "seqlens", "cu_seqlens_q", "cu_seqlens_k", *OUTPUTS)
# One number a head or a sequence. Programs hold them contiguous, and right kernels take them so.
VECTORS = ("tau", "alibi", "sinks", "seqlens", "cu_seqlens_q", "cu_seqlens_k", "dtau", "dsink")
# What leaves them so, wherever it moves them.
_FOR_VECTORS = ("contiguous", "offset", AS_SAVED)
# Tensors that one buffer holds, side by side in every row, where all of them are packed and of one shape: what one
# projection to q, k and v gives, or one to k and v, and autograd for its gradient.
_PACKED = (("q", "k", "v"), ("k", "v"), ("dq", "dk", "dv"), ("dk", "dv"))

# Elements of whatever dtype that every vector load is aligned to: kernels that take no last stride but 1 load rows so,
# and one that is not aligned is an error of the device, which leaves a process without it.
VECTOR = 16
# Elements before each tensor; a multiple of 128 keeps the first element as aligned as an allocation's.
_FRONT = 1024
# As many before one of the layout `huge`, which offsets leave by its front that wrap around: a head's and a row's.
_LIMIT, _BEFORE_HUGE = 2**31, 2**32
# How far heads and rows each reach in the layouts that lie far apart.
_REACH = {"huge": _LIMIT, SCALED: 2**20}
# Elements by which `offset` moves a tensor: odd, so that no vector alignment survives.
_OFFSET = 5


@dataclass(frozen=True)
class Inputs:
    """What one run is given."""

    layout: str
    """The name of the run, e.g. "contiguous" or "do=expanded"."""
    values: Mapping[str, Tensor]
    """The values by tensor name, contiguous; of outputs, what they hold before the run."""
    tensors: Mapping[str, Tensor]
    """The same values as they lie in memory."""


@dataclass(frozen=True)
class _Plan:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def extent(self) -> int:
        return spanned(self.shape, self.strides)


def place(
    values: Mapping[str, Tensor],
    assigned: Assigned,
    saved: Mapping[str, Placement] | None = None,
    fill: str = ORDINARY,
    shapes: str = PLAIN,
) -> Inputs:
    """The values laid out as assigned; later assignments win over earlier ones.

    "all" means every tensor, but of VECTORS only where they stay contiguous: such a one lies otherwise if it is named.
    Every storage is filled with known values first, wide enough that a read through any tensor's strides stays inside.

    Args:
        saved: where the tensors lay that `as-saved` puts back; one that is not in it lies contiguous.
        fill: what the guard bands hold, one of guards.FILLS.
        shapes: in which the target takes the tensors, one of shapes.SHAPES: contiguous is what is contiguous to it.

    Raises:
        UsageFailure: a tensor is to lie as saved, and nothing was.
    """
    chosen = {name: layout_of(name, assigned) for name in values}
    if saved is None and AS_SAVED in chosen.values():
        raise UsageFailure(f"--layout: {AS_SAVED} is how the tensors of a file lie, and there is none", "add --inputs")
    values = effective_values(values, assigned)
    used: set[int] = set()
    plans = {
        name: _plan(tuple(value.shape), chosen[name], used, index, memory_order(name, shapes))
        for index, (name, value) in enumerate(values.items())
    }
    back = {name: spot for name, spot in (saved or {}).items() if chosen.get(name) == AS_SAVED}
    plans |= {name: _Plan(plans[name].shape, spot.strides, spot.offset) for name, spot in back.items()}
    buffers: dict[str, list[str]] = {}
    for slots in _packed_slots(plans, chosen):
        plans |= slots
        buffers["packed " + " ".join(slots)] = list(slots)
    for name in plans.keys() - {name for names in buffers.values() for name in names}:
        buffers.setdefault(back[name].buffer if name in back else f"of {name} alone", []).append(name)
    found = {name: tensor for names in buffers.values() for name, tensor in _in_one_buffer(names, values, plans, fill)}
    return Inputs(run_name(assigned), values, {name: found[name] for name in plans})


def effective_values(values: Mapping[str, Tensor], assigned: Assigned) -> dict[str, Tensor]:
    """The values that a layout leaves: `expanded` changes them, since stride 0 repeats one element.

    That element is 1 for do, as `out.sum().backward()` gives, and the first one for any other tensor.
    """
    return {
        name: _repeated(name, value) if layout_of(name, assigned) == "expanded" else value
        for name, value in values.items()
    }


def layout_of(name: str, assigned: Assigned) -> str:
    """The layout that a tensor has in a run: what is assigned to it by its name, or to all of its kind."""
    chosen = "contiguous"
    for tensor, layout in assigned:
        is_meant = tensor == "all" and (name not in VECTORS or layout in _FOR_VECTORS)
        chosen = layout if tensor == name or is_meant else chosen
    return "contiguous" if chosen == "expanded" and name in NEVER_EXPANDED else chosen


def _repeated(name: str, value: Tensor) -> Tensor:
    element = value.new_ones(()) if name == "do" else value.flatten()[0]
    return element.expand(value.shape).contiguous()


def _plan(shape: tuple[int, ...], layout: str, used: set[int], index: int, order: Sequence[int] | None = None) -> _Plan:
    """One tensor alone.

    Args:
        order: its axes from the outermost to the innermost where it lies contiguous; None: as they are.
    """
    order = tuple(range(len(shape)) if order is None else order)
    if layout == "expanded":
        return _Plan(shape, (0,) * len(shape))
    if layout == "blhd" and len(shape) > 1:
        return _Plan(shape, _dense_strides(shape, _other_order(order)))
    if layout == "packed" and len(shape) == 4:
        return _slot(shape, 1, 3)
    if layout in ("distinct", "distinct-unit"):
        return _distinct(shape, used, index, unit=layout == "distinct-unit")
    if layout in _REACH:
        return _Plan(shape, _far_strides(shape, _REACH[layout]))
    if layout == "strided-last":
        return _Plan(shape, _dense_strides(shape, order, last=2))
    return _Plan(shape, _dense_strides(shape, order), _OFFSET if layout == "offset" else 0)


def _dense_strides(shape: tuple[int, ...], order: Sequence[int], last: int = 1) -> tuple[int, ...]:
    """The strides of axes that lie in some order, without gaps but for those that the innermost stride makes."""
    strides = [0] * len(shape)
    for axis in reversed(order):
        strides[axis] = last
        last *= max(shape[axis], 1)
    return tuple(strides)


def _other_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """Heads inside rows: [B, H, L, ...] as a view of [B, L, H, ...]; of a matrix, its transpose.

    Of what lies so where it is contiguous, rows inside heads.
    """
    plain = tuple(range(len(order)))
    swapped = (0, 2, 1, *plain[3:]) if len(order) > 2 else (1, 0)
    return plain if order == swapped else swapped


def _distinct(shape: tuple[int, ...], used: set[int], index: int, *, unit: bool) -> _Plan:
    """The smallest strides that no tensor and no axis uses yet, each beyond what the axes inside it span.

    `unit`: but the last stride of every tensor is 1, and the others are multiples of what vector loads need.
    """
    strides: list[int] = [1] if unit else []
    span, step = (max(shape[-1], 1), VECTOR) if unit else (index + 1, 1)
    for size in reversed(shape[:-1] if unit else shape):
        stride = next(stride for stride in count(span // step * step + step, step) if stride not in used)
        used.add(stride)
        strides.append(stride)
        span = stride * max(size, 1)
    return _Plan(shape, tuple(reversed(strides)))


def _far_strides(shape: tuple[int, ...], reach: int) -> tuple[int, ...]:
    """Strides with which heads and rows each reach so many elements or more, as those of long sequences reach 2^31.

    Each stays below that where three or more steps are taken, so that it passes for a 32-bit integer itself. Batches
    and head dims lie packed inside; heads are told apart by a small step, so that no two elements share a place.
    """
    inner = [axis for axis in range(len(shape)) if (axis == 0 and len(shape) > 2) or axis == 3]
    outer = [axis for axis in range(len(shape)) if axis not in inner]
    strides, step = [0] * len(shape), 1
    for axis in reversed(inner):
        strides[axis] = step
        step *= max(shape[axis], 1)
    rooms = math.prod(max(shape[axis], 1) for axis in outer[:-1])
    for axis in outer:
        # The smallest multiple of a unit of which the last step lies at `reach` or beyond.
        unit = step * rooms
        crossing = -(-reach // (max(shape[axis] - 1, 1) * unit)) * unit
        strides[axis] = crossing + (step if axis != outer[-1] else 0)
        step *= max(shape[axis], 1) if axis != outer[-1] else 1
    return tuple(strides)


def _packed_slots(plans: Mapping[str, _Plan], chosen: Mapping[str, str]) -> Iterator[dict[str, _Plan]]:
    """The plans of the tensors that share a buffer, one buffer at a time."""
    placed: set[str] = set()
    for names in _PACKED:
        packed = all(chosen.get(name) == "packed" and name not in placed for name in names)
        if packed and len({plans[name].shape for name in names}) == 1:
            placed.update(names)
            yield {name: _slot(plans[name].shape, at, len(names)) for at, name in enumerate(names)}


def _slot(shape: tuple[int, ...], at: int, count: int) -> _Plan:
    """One of `count` slots [B, L, at, H, D] as [B, H, L, D]."""
    _, heads, length, dim = shape
    row = count * heads * dim
    return _Plan(shape, (length * row, dim, row, 1), at * heads * dim)


def _in_one_buffer(
    names: list[str], values: Mapping[str, Tensor], plans: Mapping[str, _Plan], fill: str
) -> Iterator[tuple[str, Tensor]]:
    """Tensors as views of one storage; most often one alone."""
    own = max(plans[name].offset + plans[name].extent for name in names)
    reach = max(_reach(plans[name], plans) for name in names)
    first = values[names[0]]
    # An offset that wraps around at 2^31 reaches as far before the tensor as it should reach behind it.
    front = _BEFORE_HUGE if own > _LIMIT and first.device.type == "cpu" else _FRONT
    storage = guarded(front + own, first.dtype, first.device, fill, reserve=reach)
    for name in names:
        plan = plans[name]
        view = storage.as_strided(plan.shape, plan.strides, front + plan.offset)
        write(view, values[name])
        yield name, view


def write(view: Tensor, values: Tensor) -> None:
    """Puts values into memory. Along an axis of stride 0 they are equal, and may be written only once."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in view.stride())
    view[once] = values[once]


def _reach(plan: _Plan, plans: Mapping[str, _Plan]) -> int:
    """The furthest element that this tensor's indices reach through the strides of any tensor with as many axes."""
    like = [other.strides for other in plans.values() if len(other.shape) == len(plan.shape)]
    return max(_Plan(plan.shape, strides).extent for strides in like)
