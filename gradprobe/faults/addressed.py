"""Tensors as addresses find them: which a kernel reads, what lies where, and where else offsets may lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..model.intermediates import DERIVED, MATRIX_OF
from .hypothesis import Hypothesis, Observed, entered

# Tensors that the reference's problem holds, by the same names.
_FIELDS = ("q", "k", "v", "do", "bias", "tau", "alibi", "mask", "sinks", "keep")
GRADIENTS = {name.lower(): name for name in MATRIX_OF}
"""By the name of the output that a gradient is stored into."""


def readable(seen: Observed) -> dict[str, Tensor]:
    """The tensors that kernels read, as they lie in memory.

    LSE, O and delta that were not handed in lie contiguous, as the wrapper allocates them, with nothing known behind.
    """
    found = {name: tensor for name, tensor in seen.tensors.items() if name in _FIELDS or name in DERIVED}
    for name, intermediate in DERIVED.items():
        if name not in found and intermediate in seen.expected:
            value = seen.actual.get(intermediate, seen.expected[intermediate])
            found[name] = value.contiguous()
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


def reading(
    seen: Observed, name: str, tensor: Tensor, fault: str, fault_class: str, summary: str, **about: Any
) -> Hypothesis:
    """The fault that kernels find other values in a tensor.

    Args:
        about: further fields.
    """
    wrong = entered(name, seen.case.family)
    return Hypothesis(fault, fault_class, summary, wrong=wrong, reads={name: tensor}, tensor=name, **about)
