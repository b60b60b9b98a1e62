"""An execution of a sharded target: the whole cut into shards, and what the ranks made of them put together."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...inputs.shards import Positions, Shards, shards_of, without_saved
from ...inputs.tensor_layouts import Inputs
from ...model.case import SHARDS, Case
from ...model.failures import TargetFailure
from ...targets.find import Target, find_function
from ..trace import Trace, expected_shapes
from .rank import Answer, RankSetup, Task
from .world import world_of

if TYPE_CHECKING:
    from torch import Tensor


@functools.lru_cache(maxsize=64)
def division(case: Case) -> Shards:
    """How a case is divided among its ranks.

    Raises:
        Failure: it cannot be, or the user's own function for it cannot be found.
    """
    own: Positions | None = None
    if case.shards not in SHARDS:
        path, _, name = case.shards.rpartition(":")
        own = find_function(f"{Path(path).resolve()}:{name}").function
    return shards_of(case, own)


def run_on_ranks(
    target: Target, case: Case, inputs: Inputs, worker: str, *, fill: str, unwritten: float, banded: bool, copies: bool
) -> Answer:
    """Gives each rank its shard, and puts together what comes, as of one target that was given the whole.

    Args:
        worker: what runs a shard, as `RankSetup.worker`.
        fill, unwritten: what guard bands and outputs hold before the run.
        banded, copies: what of the target's own allocations lies in guard bands.

    Raises:
        Failure: from a rank's own run of its shard, or from `World.run`.
    """
    shards = division(case)
    setup = RankSetup(target.name, target.family, case.device, case.arch, tuple(sys.path), worker)
    keys = None if shards.are_heads else case.seqlen_k
    tasks = [
        Task(
            shards.of_case(rank), keys, shards.cut(inputs.values, case.input_axes, rank),
            without_saved(inputs.assigned), fill, unwritten, banded, copies,
        )
        for rank in range(shards.ranks)
    ]  # fmt: skip
    answers = world_of(setup, shards.ranks).run(tasks)
    for number, answer in enumerate(answers):
        if answer.raised is not None:
            failure = answer.raised.failure
            failure.args = (f"rank {number}: {failure.args[0]}",)
            raise failure
    return _joined(case, shards, answers)


def _joined(case: Case, shards: Shards, answers: Sequence[Answer]) -> Answer:
    outcomes = [answer.outcome for answer in answers if answer.outcome is not None]
    found = [(rank, one) for rank, each in enumerate(answers) for one in each.memory]
    memory = {one.identity: replace(one, sentence=f"rank {rank}: {one.sentence}") for rank, one in found}
    refused = next((f"rank {rank}: {one.refused}" for rank, one in enumerate(outcomes) if one.refused), None)
    trace = None if refused else _whole(case, shards, answers, [one.trace for one in outcomes if one.trace])
    whole = replace(
        outcomes[0],
        trace=trace,
        refused=refused,
        kernels=_each(one.kernels for one in outcomes),
        interpreted=any(one.interpreted for one in outcomes),
        launched=_each(one.launched for one in outcomes),
        taken=frozenset().union(*(one.taken for one in outcomes)),
        notes=_each(one.notes for one in outcomes),
        warned=_each(one.warned for one in outcomes),
        cuda=max(one.cuda for one in outcomes),
        shared=_each(one.shared for one in outcomes),
        dots=_each(one.dots for one in outcomes),
    )
    return Answer(whole, {}, tuple(memory.values()), _each(answer.unwatched for answer in answers))


def _each(several: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one for each in several for one in each))


def _whole(case: Case, shards: Shards, answers: Sequence[Answer], traces: Sequence[Trace]) -> Trace:
    """The results of all ranks as those of one target.

    Raises:
        TargetFailure: not every rank returned the same intermediates.
    """
    names = [[*trace.values, *answer.matrices] for trace, answer in zip(traces, answers, strict=True)]
    for number, own in enumerate(names):
        if set(own) != set(names[0]):
            came = f"rank 0 {', '.join(names[0])}, rank {number} {', '.join(own)}"
            raise TargetFailure(f"ranks do not return the same intermediates: {came}", "return the same from each")
    found: dict[str, Tensor] = {}
    for name in expected_shapes(case):
        if name in traces[0].values:
            found[name] = shards.joined([trace.values[name] for trace in traces], case.axes(name))
        elif name in answers[0].matrices:
            # Rows of the shard, but all keys.
            parts = [answer.matrices[name] for answer in answers]
            found[name] = shards.joined(parts, case.axes(name).replace("n", "1"))
    values: Mapping[str, Tensor] = {name: value.to(case.device) for name, value in found.items()}
    return Trace(values, {name: "exported" for name in values})
