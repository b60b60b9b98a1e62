"""A run of a target whose values are followed, operation by operation, through Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
import torch

from ..frontends.triton.interpreter.dataflow import Flow, Node, Site, StoredTile, followed, place, view_of
from ..inputs.memory import Array
from ..model.assignment import Assigned
from ..model.intermediates import PRODUCTS, unscaled
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import Outcome, run_target
from ..runtime.trace import Trace
from .roles import Roles

RESULTS = {unscaled(name): name for name in PRODUCTS}
"""What a store of it is the result of."""
STORED = {name: f"scale * {unscaled(name)}" if unscaled(name) != name else name for name in PRODUCTS}
"""What each result is stored as."""
STORED |= {name: name for name in ("LSE", "delta")}


@dataclass(frozen=True)
class FollowedRun:
    """One run of a target, followed operation by operation: what explainers are given."""

    flow: Flow
    roles: Roles
    outcome: Outcome
    wrong: tuple[str, ...] = ()
    """The results that are."""

    @cached_property
    def stores(self) -> list[StoredTile]:
        """The stores of what is wrong. Where host code made a result of what kernels stored, all that has no name."""
        flow, storages = self.flow, self.outcome.storages
        names = {storages.get(home, "") for home in (*(stored.home for stored in flow.stores), *flow.empty)}
        wanted = {*self.wrong} if names >= {*self.wrong} else {*self.wrong, ""}
        return [stored for stored in flow.stores if storages.get(stored.home, "") in wanted]

    @cached_property
    def right(self) -> dict[Site, list[Node]]:
        """By operation, what it came to that is right."""
        found: dict[Site, list[Node]] = {}
        for node in self.flow.nodes:
            if node.is_known:
                found.setdefault(node.site, []).append(node)
        return found

    @cached_property
    def visits(self) -> Mapping[int, Array]:
        """By storage, how often each pair is in it; nothing where some may not have been followed."""
        return {} if self.flow.failures else self.flow.visits

    def result_of(self, stored: StoredTile) -> str:
        """The result that a store is of: of scratch that host code makes one of, by what is stored; "" if unknown."""
        return self.outcome.storages.get(stored.home, "") or RESULTS.get(stored.node.name, "")


def followed_run(experiment: Experiment, assigned: Assigned) -> FollowedRun | None:
    """Runs the target once more in a layout and follows its values; None where it refused the layout."""
    case, inputs = experiment.case, inputs_of(experiment, assigned)
    roles = Roles(case, attention_of(case, inputs.values), inputs.values)
    copies: dict[int, str] = {}
    launched: list[torch.Tensor] = []  # kept, so that no result takes the place of a buffer that is gone

    def axes(view: Any) -> str:
        if view.name in inputs.tensors and (view.known is not None or not view.parameter):
            return case.input_axes(view.name)
        return copies.get(view.home, "")

    def learn(argument: Any) -> None:
        if isinstance(argument, torch.Tensor):
            launched.append(argument)
            if letters := copied(argument, inputs.tensors, roles):
                copies[argument.untyped_storage().data_ptr()] = letters

    flow = Flow(axes, {letter: case.size(letter) for letter in "bhgmnde"}, roles)
    with followed(inputs.tensors, flow, learn):
        outcome = run_target(experiment.target, case, inputs)
    if outcome.trace is None:
        return None
    _forget_running(flow)
    results = [(name, view_of(view, name)) for name, view in results_among(launched, outcome.trace)]
    for name, view in results:
        is_alone = {other for other, one in results if one.home == view.home} == {name}
        flow.attempt(place, flow, view, case.axes(name), is_alone)
    return FollowedRun(flow, roles, outcome)


def _forget_running(flow: Flow) -> None:
    """What has a factor of its row in a kernel that takes a maximum is compared with nothing: it is divided out yet."""
    kernels = {node.site.kernel for node in flow.nodes if node.name.startswith("maximum of")}
    for node in flow.nodes:
        if node.role is not None and node.role.is_by_row:
            node.role = None if node.site.kernel in kernels else replace(node.role, is_open=False)


def results_among(tensors: Sequence[torch.Tensor], trace: Trace) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of kernels that hold what the target returned: (name, in the shape of that)."""
    for name, value in trace.values.items():
        for tensor in tensors:
            for view in in_shape(tensor, value.shape):
                if bool((value != 0).any()) and torch.equal(view.to(value.dtype).nan_to_num(), value.nan_to_num()):
                    yield name, view


def in_shape(tensor: torch.Tensor, shape: Sequence[int]) -> Iterator[torch.Tensor]:
    """A tensor, or what it is a slice of, in a shape: as it is, with rows and heads swapped, or as it lies."""
    for whole in (tensor, tensor._base):
        if whole is None:
            continue
        if tuple(whole.shape) == tuple(shape):
            yield whole
        elif whole.dim() > 2 and tuple(whole.transpose(1, 2).shape) == tuple(shape):
            yield whole.transpose(1, 2)
        elif whole.is_contiguous() and whole.numel() == math.prod(shape):
            yield whole.view(*shape)


def copied(argument: torch.Tensor, known: Mapping[str, torch.Tensor], roles: Roles) -> str:
    """The axes of a tensor that host code made of an input: its values, times a number, in any order of the axes.

    Axes that were made one stand in brackets: "(bh)md".
    """
    storage, homes = argument.untyped_storage(), {tensor.untyped_storage().data_ptr() for tensor in known.values()}
    is_small = argument.dim() < 2 or argument.numel() < 8 or not argument.is_floating_point()
    if is_small or storage.nbytes() > 1 << 28 or storage.data_ptr() in homes:
        return ""
    got = argument.detach().double().flatten().cpu().numpy()
    if not np.isfinite(got).all() or not np.abs(got).max() > 0:
        return ""
    for axes, value in roles.whole():
        for order in permutations(range(len(axes))) if value.size == got.size else ():
            found = _axes(argument.shape, [(axes[at], value.shape[at]) for at in order])
            if found and _is_proportional(got, value.transpose(order).reshape(-1)):
                return found
    return ""


def _axes(shape: Sequence[int], letters: Sequence[tuple[str, int]]) -> str:
    """The axes of a shape that holds these letters, of these sizes, in their order; "" where it splits one."""
    left, words = list(letters), []
    for size in shape:
        if size == 1 and (not left or left[0][1] != 1):
            words.append("1")
            continue
        taken, product = "", 1
        while left and (not taken or product * left[0][1] <= size) and product < max(size, 2):
            letter, length = left.pop(0)
            taken, product = taken + letter, product * length
        if product != size:
            return ""
        words.append(taken if len(taken) == 1 else f"({taken})")
    return "" if left else "".join(words)


def _is_proportional(got: Array, want: Array) -> bool:
    square = float(want @ want)
    factor = float(got @ want) / square if square else 0.0
    return factor != 0.0 and bool(np.abs(got - factor * want).max() <= 0.01 * np.abs(got).max())
