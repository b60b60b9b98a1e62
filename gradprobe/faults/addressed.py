"""Tensors as addresses find them: which a kernel reads, what lies where, and with whose strides it is looked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.intermediates import DERIVED, KINDS, MATRIX_OF, title
from .hypothesis import AXES, Hypothesis, Observed, entered
from .variant import USED, Variant

# Tensors that the reference's problem holds, by the same names.
FIELDS = ("q", "k", "v", "do", "bias", "tau", "alibi", "mask", "sinks", "keep")
# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, those of a tile, or all.
_SETS = ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd")
GRADIENTS = {name.lower(): name for name in MATRIX_OF}
"""By the name of the output that a gradient is stored into."""
Strides = tuple[int, ...]


class OtherStrides(NamedTuple):
    """Strides that a tensor may be taken to have."""

    strides: Strides
    words: str
    """ "do-head": the tail of the fault's name."""
    summary: str
    """What is said of the tensor, after its name."""
    axes: str = ""
    other: str = ""
    """The tensor whose strides they are; "" where they are those of a contiguous one."""


def readable(seen: Observed) -> dict[str, Tensor]:
    """The tensors that kernels read, as they lie in memory.

    LSE, O and delta that were not handed in lie contiguous, as the wrapper allocates them, with nothing known behind.
    """
    found = {name: tensor for name, tensor in seen.tensors.items() if name in FIELDS or name in DERIVED}
    for name, intermediate in DERIVED.items():
        if name not in found and intermediate in seen.expected:
            found[name] = seen.actual.get(intermediate, seen.expected[intermediate]).contiguous()
    return {name: tensor for name, tensor in found.items() if axes_of(name, seen)}


def axes_of(name: str, seen: Observed) -> str:
    """The axes of a tensor, one letter each; "" of one that has neither batches nor heads."""
    axes, tensor = seen.case.input_axes(name), seen.tensors.get(name)
    return axes if tensor is None or tensor.dim() == len(axes) else ""


def found_at(tensor: Tensor, at: Tensor) -> Tensor:
    """What lies so far from a tensor's first element; NaN outside its storage."""
    flat, at = whole_storage(tensor), at.to(tensor.device) + int(tensor.storage_offset())
    inside = (at >= 0) & (at < len(flat))
    read = flat[at.clamp(0, len(flat) - 1)]
    if bool(inside.all()):
        return read
    return read.double().masked_fill(~inside, torch.nan) if read.is_floating_point() else read & inside


def whole_storage(tensor: Tensor) -> Tensor:
    """Everything in a tensor's storage, as one row."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def offsets(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """How far each element of a shape lies from the first."""
    total: Tensor = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(shape, strides, strict=True):
        total = total[..., None] + torch.arange(size).mul(stride)
    return total


def each_once(tensor: Tensor, ways: Iterator[OtherStrides]) -> Iterator[OtherStrides]:
    """The ways that lead elsewhere than the tensor's own strides and those before them do."""
    tried = {_felt(tensor, tensor.stride())}
    for way in ways:
        if (felt := _felt(tensor, way.strides)) not in tried:
            tried.add(felt)
            yield way


def _felt(tensor: Tensor, strides: Sequence[int]) -> Strides:
    """The strides that make a difference: one along an axis of a single step makes none."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, strides, strict=True))


def _with_values(variant: Variant, name: str, tensor: Tensor) -> Variant:
    """What finds other values in a tensor: an input, or LSE, O or delta; NaN where none is known."""
    if name in FIELDS:
        return variant.reading(**{name: tensor})
    found = tensor.double()
    return variant.hooked({USED + DERIVED[name]: lambda v, t: found[(*t.place, t.tile.rows)]})


def reading(
    seen: Observed, name: str, tensor: Tensor, fault: str, fault_class: str, summary: str, **about: Any
) -> Hypothesis:
    """The fault that kernels find other values in a tensor.

    Args:
        about: further fields.
    """
    alter, changes = partial(_with_values, name=name, tensor=tensor), entered(name, seen.case.family)
    return Hypothesis(fault, fault_class, summary, alter, changes, tensor=name, **about)


def in_words(axes: str) -> str:
    """ "head", "batch and head"."""
    return " and ".join(dict.fromkeys(AXES[axis] for axis in axes))


def with_strides_of(seen: Observed, name: str, strides: Mapping[str, Sequence[int]]) -> Iterator[OtherStrides]:
    """A tensor with each other tensor's strides along some axes, one axis first."""
    own = axes_of(name, seen)
    for kinds in _SETS:
        axes = "".join(axis for axis in own if KINDS.get(axis, "?") in kinds)
        for other, theirs in strides.items() if len(axes) == len(kinds) else ():
            named = dict(zip((KINDS.get(axis, "?") for axis in axes_of(other, seen)), theirs, strict=False))
            # All strides of what the wrapper allocates are those of a contiguous tensor: that is another fault.
            foreign = other in seen.tensors or len(axes) == 1
            if other != name and foreign and set(kinds) <= named.keys():
                mine = zip(own, strides[name], strict=True)
                taken = tuple(named[KINDS[axis]] if axis in axes else stride for axis, stride in mine)
                words = "-".join([name, *dict.fromkeys(AXES[axis] for axis in axes if len(axes) < len(own))])
                yield OtherStrides(taken, words, f"with {title(other)}'s {in_words(axes)} stride", axes, other)
