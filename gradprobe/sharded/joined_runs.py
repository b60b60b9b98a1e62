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
from .world import world_of


def across_ranks(target: Target, case: Case) -> Target:
    """A target that ranks run, where a case has some.

    Raises:
        Failure: the case cannot be divided among its ranks.
    """
    division(case)
    return replace(target, ranks=run_on_ranks)


def run_on_ranks(
    experiment: Experiment, inputs: Inputs, *, banded: bool, copies: bool
) -> Execution:
    """Gives each rank its shard, and puts together what comes, as of one target that was given the whole.

    Args:
        banded, copies: as of `probing.observe`.

    Raises:
        Failure: from a rank's own run of its shard, or from `World.run`.
    """
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
    for number, answer in enumerate(answers):
        if answer.raised is not None:
            failure = answer.raised.failure
            failure.args = (f"rank {number}: {failure.args[0]}",)
            raise failure
    found = [(rank, one) for rank, each in enumerate(answers) for one in each.memory]
    memory = {
        one.identity: replace(one, sentence=f"rank {rank}: {one.sentence}") for rank, one in found
    }
    outcome = _joined(
        shards, [answer.outcome for answer in answers if answer.outcome is not None]
    )
    return Execution(
        inputs, outcome, tuple(memory.values()), _each(answer.unwatched for answer in answers)
    )


def _joined(shards: Shards, outcomes: Sequence[Outcome]) -> Outcome:
    case = shards.case
    refused = next(
        (f"rank {rank}: {one.refused}" for rank, one in enumerate(outcomes) if one.refused), None
    )
    backend, what = "NCCL" if case.device == "cuda" else "gloo", f"{case.shards} shards"
    note = f"{case.ranks} ranks ({backend}), each with its part of the whole: {what}"
    return Outcome(
        trace=None if refused else _whole(shards, [one.trace for one in outcomes if one.trace]),
        refused=refused,
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
    """The results of all ranks as those of one target.

    Raises:
        TargetFailure: not every rank returned the same intermediates, or one returned what has all keys.
    """
    case, first = shards.case, traces[0].values
    if whole := [name for name in MATRICES if name in first]:
        returned = listed(whole)
        raise TargetFailure(
            f"ranks return {returned}, of which none holds all keys", f"leave out {returned}"
        )
    for number, own in enumerate(trace.values for trace in traces):
        if own.keys() != first.keys():
            came = f"rank 0 {', '.join(first)}, rank {number} {', '.join(own)}"
            raise TargetFailure(
                f"ranks do not return the same intermediates: {came}", "return the same from each"
            )
    values = {
        name: shards.joined([trace.values[name] for trace in traces], case.axes(name)).to(case.device)
        for name in expected_shapes(case) if name in first
    }  # fmt: skip
    return Trace(values, dict.fromkeys(values, "exported"))
