"""Second runs that must agree with the first: dO doubled, heads and batches permuted, another layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..running.trace import Trace
from .compare import Comparison, may_overflow
from .invariants import Invariant, allowed, worst

if TYPE_CHECKING:
    from torch import Tensor

# Of the intermediates, those that dO enters linearly; LSE, P and O do not see it.
LINEAR_IN_DO = ("dP", "delta", "dS", "dQ", "dK", "dV", "dBias", "dSink", "dTau")


def doubled(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values with twice the dO: exact in every dtype, short of overflow."""
    return {**values, "do": values["do"] * 2}


def permuted(values: Mapping[str, Tensor], case: Case) -> dict[str, Tensor]:
    """The values with batches and key/value heads in reverse order, query heads following their group."""
    return {name: _reverse(value, case.input_axes(name), case) for name, value in values.items()}


def _reverse(tensor: Tensor, axes: str, case: Case) -> Tensor:
    for axis, letter in enumerate(axes):
        if tensor.shape[axis] == 1:  # broadcast
            continue
        if letter == "h":
            group = case.heads // case.kv_heads
            tensor = tensor.unflatten(axis, (-1, group)).flip(axis).flatten(axis, axis + 1)
        elif letter in "bg":
            tensor = tensor.flip(axis)
    return tensor.contiguous()


def agreement(
    key: str,
    case: Case,
    first: Trace,
    second: Trace,
    comparison: Comparison,
    *,
    factor: float = 1.0,
    reverse: bool = False,
) -> Invariant:
    """Whether a second run gives what the first one implies, over all that grows linearly with length.

    Args:
        comparison: of the first run; twice what it allows (one budget a run) is allowed of the difference.
        factor: what the second run's dO was multiplied by.
        reverse: whether its heads and batches stood in reverse.
    """
    import torch

    bounds = allowed(comparison, {name: tensor.dtype for name, tensor in first.values.items()})
    residuals, budgets = [], []
    for name in (name for name in bounds if name in second.values):
        by = factor if name in LINEAR_IN_DO else 1.0
        before, after, bound = first.values[name].double() * by, second.values[name].double(), 2 * by * bounds[name]
        if reverse:
            axes = comparison.findings[name].axes
            before, bound = _reverse(before, axes, case), _reverse(bound, axes, case)
        dtype = second.values[name].dtype
        beyond = may_overflow(after, before, bound, dtype) | may_overflow(before, after, bound, dtype)
        difference = (after - before).masked_fill((after == before) | beyond, 0.0)
        residuals.append(difference.flatten())
        budgets.append(bound.flatten())
    return worst(key, "target", torch.cat(residuals), torch.cat(budgets))
