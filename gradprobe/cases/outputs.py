"""Outputs: the tensors that a target is given to write its gradients into."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..intermediates import lookup
from .case import OUTPUTS, Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The input whose gradient it is, where the two have one dtype; the others are sums in float32.
_LIKE = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias"}
# The input of whose dtype an intermediate must hold every number: a gradient is added to what it is the gradient of, O
# is a mean of rows of v, and of LSE the backward makes P.
_HOLDS = {"dQ": "q", "dK": "k", "dV": "v", "dBias": "bias", "dSink": "sinks", "dTau": "tau", "O": "v", "LSE": "q"}


def outputs_of(
    case: Case, names: Collection[str], values: Mapping[str, Tensor], fill: float = float("nan")
) -> dict[str, Tensor]:
    """The outputs of a run before it: contiguous tensors, by name, of those `names` that exist in the case.

    Args:
        values: the inputs of the run, whose dtypes and device they have; dtau and dsink are float32.
        fill: what they hold, so that an element that is never written shows.
    """
    import torch

    found = {}
    for name in (name for name in OUTPUTS if name in names and _exists(name, case)):
        shape = [case.size(axis) for axis in case.input_axes(name)]
        dtype = values[_LIKE[name]].dtype if name in _LIKE else torch.float32
        found[name] = torch.full(shape, fill, dtype=dtype, device=values["q"].device)
    return found


def coarser_than(name: str, dtype: torch.dtype, values: Mapping[str, Tensor]) -> str | None:
    """The input whose numbers an intermediate of a dtype cannot all hold; None where it can, or need not."""
    import torch

    like = _HOLDS.get(name)
    if like is None or like not in values or torch.promote_types(dtype, values[like].dtype) == dtype:
        return None
    return like


def _exists(name: str, case: Case) -> bool:
    row = lookup(name)
    return row is not None and row.step(case.family) is not None and case.has(row.needs)
