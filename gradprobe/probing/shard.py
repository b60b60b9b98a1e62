"""A rank's run of its shard: observed as any other run, in the process of that rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..inputs.tensor_layouts import place
from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.intermediates import lookup
from ..reference.attention import MATRICES
from ..runtime.backend import make_interpreter_right
from ..runtime.ranks.rank import Answer, Task
from ..targets.find import Target
from .experiment import Experiment
from .observe import observe

if TYPE_CHECKING:
    from torch import Tensor


class ShardWorker:
    """`ShardWorker(target)(task)` runs the target on one shard."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, task: Task) -> Answer:
        case, target = task.case, self._target
        make_interpreter_right(case)
        values = {name: value.to(case.device) for name, value in task.values.items()}
        matrices: dict[str, Tensor] = {}
        if task.keys is not None:
            target = replace(target, function=_without_matrices(target, case, task.keys, matrices))
        experiment = Experiment(case, target, None, values, fill=task.fill, unwritten=task.unwritten)
        inputs = place(values, task.assigned, None, task.fill, case.shapes)
        execution = observe(experiment, inputs, banded=task.banded, copies=task.copies)
        outcome = execution.outcome
        trace = outcome.trace
        if trace is not None:
            trace = replace(trace, values={name: value.cpu() for name, value in trace.values.items()})
        # Kernels do not leave their process.
        names = tuple(str(getattr(kernel, "__name__", kernel)) for kernel in outcome.launched)
        outcome = replace(
            outcome,
            trace=trace,
            launched=names,
            storages={},
            findings=(),
            configurations=(),
            pointers=(),
            calls={},
        )
        return Answer(outcome, matrices, execution.memory, execution.unwatched)


def _without_matrices(target: Target, case: Case, keys: int, kept: dict[str, Tensor]) -> Callable[..., Any]:
    """The target's function, of whose results P, dP and dS are kept apart: they have all keys, and not the shard's."""

    @functools.wraps(target.function)
    def called(**arguments: Any) -> Any:
        result = target.function(**arguments)
        if not isinstance(result, Mapping):
            return result
        found = dict(_matrices(result))
        expected = (case.batch, case.heads, case.seqlen_q, keys)
        for name, value in found.values():
            if tuple(value.shape) != expected:
                raise TargetFailure(
                    f"target {target.name!r} returned {name} of the wrong shape: expected the shard's rows and all "
                    f"keys, in the order of the whole, {list(expected)}, got {list(value.shape)}"
                )
            kept[name] = value.detach().cpu().clone()
        return {key: value for key, value in result.items() if key not in found}

    return called


def _matrices(result: Mapping[Any, Any]) -> Iterator[tuple[Any, tuple[str, Tensor]]]:
    for key, value in result.items():
        row = lookup(str(key))
        if row is not None and row.name in MATRICES and value is not None:
            yield key, (row.name, value)
