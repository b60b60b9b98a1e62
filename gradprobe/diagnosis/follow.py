"""A run of a target whose values are followed, operation by operation, through Triton's interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..inputs.memory import Array
from ..model.assignment import Assigned
from ..model.case import Case
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.interpreter.dataflow import Flow, followed
from ..runtime.run import Outcome, run_target
from .roles import Roles


@dataclass(frozen=True)
class Followed:
    """One run of a target, followed operation by operation."""

    flow: Flow
    roles: Roles
    outcome: Outcome

    def forget_values(self) -> None:
        """Lets go of what the nodes came to: their roles stay."""
        for node in self.flow.nodes:
            node.value = node.lanes = None


def followed_run(experiment: Experiment, assigned: Assigned) -> Followed | None:
    """Runs the target once more in a layout and follows its values; None where it refused the layout."""
    case, inputs = experiment.case, inputs_of(experiment, assigned)
    x = attention_of(case, inputs.values)
    roles = Roles(case, x, inputs.values)
    copies: dict[int, str] = {}

    def axes(view: Any) -> str:
        if view.name in inputs.tensors and (view.known is not None or not view.parameter):
            return case.input_axes(view.name)
        return copies.get(view.home, "")

    def learn(argument: Any) -> None:
        if isinstance(argument, torch.Tensor):
            letters = copied(argument, inputs.tensors, roles, case)
            if letters:
                copies[argument.untyped_storage().data_ptr()] = letters

    sizes = {letter: case.size(letter) for letter in "bhgmnde"}
    flow = Flow(axes, sizes, roles)
    with followed(inputs.tensors, flow, learn):
        outcome = run_target(experiment.target, case, inputs, (), contextlib.nullcontext())
    return Followed(flow, roles, outcome) if outcome.trace is not None else None


def copied(argument: torch.Tensor, known: Mapping[str, torch.Tensor], roles: Roles, case: Case) -> str:
    """The axes of a tensor that host code made of an input: one of its shape whose values are proportional to it."""
    home = argument.untyped_storage().data_ptr()
    if argument.dim() < 2 or not argument.is_floating_point() or argument.numel() < 8:
        return ""
    if any(home == tensor.untyped_storage().data_ptr() for tensor in known.values()):
        return ""
    if argument.untyped_storage().nbytes() > 1 << 28:
        return ""
    got = argument.detach().double().flatten().cpu().numpy()
    if not np.isfinite(got).all() or not np.abs(got).max() > 0:
        return ""
    return next((axes for axes, value in roles.whole() if _proportional(got, value, argument.shape)), "")


def _proportional(got: Array, value: Array, shape: Sequence[int]) -> bool:
    if tuple(shape) != value.shape:
        return False
    want = value.reshape(-1)
    square = float(want @ want)
    factor = float(got @ want) / square if square else 0.0
    return factor != 0.0 and bool(np.abs(got - factor * want).max() <= 0.01 * np.abs(got).max())
