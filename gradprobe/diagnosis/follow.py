"""A run of a target that is followed, operation by operation."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..frontends.triton.interpreter.dataflow import (
    Flow,
    Site,
    StoredTile,
    attempted,
    followed,
    place,
    view_of,
)
from ..inputs.memory import Array
from ..model.assignment import Assigned
from ..model.intermediates import PRODUCTS, unscaled
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import Outcome, Trace, run_target
from .roles import Roles

RESULTS = {unscaled(name): name for name in PRODUCTS}  # what a store of it is the result of
STORED = {name: f"scale * {form}" if form != name else name for form, name in RESULTS.items()}
STORED |= {name: name for name in ("LSE", "delta")}  # what each result is stored as


@dataclass(frozen=True)
class FollowedRun:
    flow: Flow
    roles: Roles
    outcome: Outcome
    wrong: tuple[str, ...] = ()

    @cached_property
    def stores(self) -> list[StoredTile]:
        """All unnamed ones too, where host code made a result of them."""
        names = {self.outcome.storages.get(home, "") for home in self.flow.empty}
        names.update(map(self.stored_into, self.flow.stores))
        wanted = (*self.wrong, *(() if names >= {*self.wrong} else ("",)))
        return [stored for stored in self.flow.stores if self.stored_into(stored) in wanted]

    @cached_property
    def right(self) -> dict[Site, Counter[str]]:
        found = defaultdict[Site, Counter[str]](Counter)
        for node in filter(attrgetter("is_known"), self.flow.nodes):
            found[node.site][node.name] += 1
        return dict(found)

    @cached_property
    def visits(self) -> Mapping[int, Array]:
        """Nothing where some may be unseen."""
        return {} if self.flow.failures else self.flow.visits

    def stored_into(self, stored: StoredTile) -> str:
        return self.outcome.storages.get(stored.home, "")

    def result_of(self, stored: StoredTile) -> str:
        """Also of scratch, by what is stored."""
        return self.stored_into(stored) or RESULTS.get(stored.node.name, "")


def followed_run(experiment: Experiment, assigned: Assigned) -> FollowedRun | None:
    """None where it refused."""
    case, inputs = experiment.case, inputs_of(experiment, assigned)
    roles = Roles(case, attention_of(case, inputs.values), inputs.values)
    # Launched ones are kept, so that nothing takes their place.
    copies, launched = dict[int, str](), list[Tensor]()

    def axes(view: Any) -> str:
        return case.input_axes(view.name) if view.known else copies.get(view.home, "")

    def learn(argument: Any) -> None:
        if isinstance(argument, Tensor):
            launched.append(argument)
            if letters := copied(argument, inputs.tensors, roles):
                copies[argument.untyped_storage().data_ptr()] = letters

    flow = Flow(axes, {letter: case.size(letter) for letter in "bhgmnde"}, roles)
    with followed(inputs.tensors, flow, learn):
        outcome = run_target(experiment.target, case, inputs)
    if outcome.trace is None:
        return None
    # What a kernel that takes a maximum has yet to divide by row is compared with nothing.
    running = {node.site.kernel for node in flow.nodes if node.name.startswith("maximum of")}
    for node in flow.nodes:
        if node.role is not None and node.role.is_by_row:
            is_running = node.site.kernel in running
            node.role = None if is_running else replace(node.role, is_open=False)
    views = [view_of(view, name) for name, view in results_among(launched, outcome.trace)]
    for view in views:
        is_alone = all(other.name == view.name for other in views if other.home == view.home)
        attempted(flow.failures, place, flow, view, case.axes(view.name), is_alone)
    return FollowedRun(flow, roles, outcome)


def results_among(tensors: Sequence[Tensor], trace: Trace) -> Iterator[tuple[str, Tensor]]:
    """(name, in the shape of what was returned)."""
    for name, value in trace.values.items():
        for tensor in tensors if value.any() else ():
            for view in in_shape(tensor, value.shape):
                if torch.equal(view.to(value.dtype).nan_to_num(), value.nan_to_num()):
                    yield name, view


def in_shape(tensor: Tensor, shape: Sequence[int]) -> Iterator[Tensor]:
    for whole in (tensor, tensor._base):
        if whole is None:
            continue
        if tuple(whole.shape) == tuple(shape):
            yield whole
        elif whole.dim() > 2 and tuple(whole.transpose(1, 2).shape) == tuple(shape):
            yield whole.transpose(1, 2)
        elif whole.is_contiguous() and whole.numel() == math.prod(shape):
            yield whole.view(*shape)


def copied(argument: Tensor, known: Mapping[str, Tensor], roles: Roles) -> str:
    """The axes of a scaled copy of an input, in any order, those of one axis as "(bh)md"."""
    storage = argument.untyped_storage()
    homes = [each.untyped_storage().data_ptr() for each in known.values()]
    is_small = argument.dim() < 2 or argument.numel() < 8 or not argument.is_floating_point()
    if is_small or storage.nbytes() > 1 << 28 or storage.data_ptr() in homes:
        return ""
    got = argument.detach().double().flatten().cpu().numpy()
    most = np.abs(got).max()
    if not 0 < most < np.inf:
        return ""
    for axes, value in roles.whole():
        for order in permutations(range(len(axes))) if value.size == got.size else ():
            want, letters = value.transpose(order), "".join(map(axes.__getitem__, order))
            if found := _axes(argument.shape, letters, want.shape):
                want = want.reshape(-1)
                factor = float(got @ want) / max(float(want @ want), 1e-300)
                if factor and np.abs(got - factor * want).max() <= 0.01 * most:
                    return found
    return ""


def _axes(shape: Sequence[int], letters: str, sizes: Sequence[int]) -> str:
    words, left = "", [*zip(letters, sizes, strict=True)]
    for size in shape:
        taken, together = "", 1
        while left and together * left[0][1] <= size and (not taken or together < size):
            letter, of_it = left.pop(0)
            taken, together = taken + letter, together * of_it
        if together != size:
            return ""
        words += f"({taken})" if taken[1:] else taken or "1"
    return "" if left else words
