"""An execution of a sharded target: the whole cut into shards, and what the ranks made of them put together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..inputs.tensor_layouts import Inputs
from ..model.assignment import AS_SAVED
from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.intermediates import MATRICES
from ..model.number import listed
from ..probing.experiment import Experiment
from ..probing.observe import Execution
from ..runtime.run import Outcome, Trace, expected_shapes
from ..targets.find import Target
from .rank import RankSetup, Task
from .shards import Shards, division
from .world import raise_first, world_of


def across_ranks(target: Target, case: Case) -> Target:
    """A target that ranks run; Failure where the case cannot be divided among them."""
    division(case)
    return replace(target, ranks=run_on_ranks)


def run_on_ranks(
    experiment: Experiment, inputs: Inputs, *, banded: bool, copies: bool
) -> Execution:
    """Gives each rank its shard, and puts together what comes, as of one target that was given the whole."""
    case, target = experiment.case, experiment.target
    shards = division(case)
    setup = RankSetup(target.name, target.family, case.device, case.arch, tuple(sys.path))
    # Where whole tensors lie as they were saved, shards of them are contiguous.
    assigned = tuple(one for one in inputs.assigned if one[1] != AS_SAVED)
    tasks = [
        Task(
            shards.of_case(rank), shards.cut(inputs.values, case.input_axes, rank), assigned, experiment.fill,
            experiment.unwritten, banded, copies,
        )
        for rank in range(shards.ranks)
    ]  # fmt: skip
    answers = world_of(setup, shards.ranks).run(tasks)
    raise_first(answers)
    found = [
        replace(one, sentence=f"rank {rank}: {one.sentence}")
        for rank, answer in enumerate(answers)
        for one in answer.memory
    ]
    memory = {one.identity: one for one in found}
    outcome = _joined(shards, [one.outcome for one in answers if one.outcome is not None])
    unwatched = _each(answer.unwatched for answer in answers)
    return Execution(inputs, outcome, tuple(memory.values()), unwatched)


def _joined(shards: Shards, outcomes: Sequence[Outcome]) -> Outcome:
    case = shards.case
    refusals = [f"rank {at}: {one.refused}" for at, one in enumerate(outcomes) if one.refused]
    backend, what = "NCCL" if case.device == "cuda" else "gloo", f"{case.shards} shards"
    note = f"{case.ranks} ranks ({backend}), each with its part of the whole: {what}"
    return Outcome(
        trace=None if refusals else _whole(shards, [one.trace for one in outcomes if one.trace]),
        refused=refusals[0] if refusals else None,
        kernels=_each(one.kernels for one in outcomes),
        backends=frozenset().union(*(one.backends for one in outcomes)),
        taken=frozenset().union(*(one.taken for one in outcomes)),
        notes=(note, *_each(one.notes for one in outcomes)),
        warned=_each(one.warned for one in outcomes),
        dots=_each(one.dots for one in outcomes),
    )


def _each(several: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one for each in several for one in each))


def _whole(shards: Shards, traces: Sequence[Trace]) -> Trace:
    case, first = shards.case, traces[0].values
    if whole := [name for name in MATRICES if name in first]:
        returned = listed(whole)
        words = f"ranks return {returned}, of which none holds all keys"
        raise TargetFailure(words, f"leave out {returned}")
    for number, own in enumerate(trace.values for trace in traces):
        if own.keys() != first.keys():
            came = f"rank 0 {', '.join(first)}, rank {number} {', '.join(own)}"
            words = f"ranks do not return the same intermediates: {came}"
            raise TargetFailure(words, "return the same from each")
    values = {
        name: shards.joined([trace.values[name] for trace in traces], case.axes(name)).to(case.device)
        for name in expected_shapes(case) if name in first
    }  # fmt: skip
    return Trace(values, dict.fromkeys(values, "exported"))
