"""Tests causes on a second draw of values: what explains one draw alone, or may be chance, is no cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..cases.draw import draw
from ..cases.layouts import Assigned
from ..diagnosis import NAMED
from ..failures import Failure
from ..faults.hypothesis import Hypothesis
from ..faults.table import hypotheses
from ..probing.experiment import Experiment, inputs_of
from ..probing.measure import measure
from ..probing.observe import execute
from .diagnose import Tested, ranked
from .observed import Observed, observed
from .testing import Explanation, Tester, merged

if TYPE_CHECKING:
    from torch import Tensor

# How many of those that explain the first draw are held against the second.
_MOST = 8
_NOT_TAKEN = "held against one draw of values alone: the target did not take another"


def causes(experiment: Experiment, assigned: Assigned, seen: Observed) -> list[Tested]:
    """The hypotheses that explain a run, best first; those that may be called its cause explain a second draw too."""
    tested = ranked(seen)
    named = [one for one in tested if one.explained >= NAMED]
    held = _held(experiment, assigned, named[:_MOST]) if named else []
    # What was not held against the second draw stands behind what was, or is not told where nothing held.
    others = [one for one in tested if one not in named[: len(held) if any(map(_is_sure, held)) else None]]
    found = [one for one in (*held, *others) if not one.is_by_chance]
    return sorted(found, key=lambda one: -round(one.explained, 3))


def _held(experiment: Experiment, assigned: Assigned, named: list[Tested]) -> list[Tested]:
    """Those tested on a second draw, until none that is left can explain more than one that holds."""
    second, held = _second(experiment, assigned), list[Tested]()
    for one in named:
        best = max((other.explained for other in held if _is_sure(other)), default=0.0)
        if best and round(one.explained, 3) <= round(best, 3):
            break
        held.append(_again(one, second, experiment) if second else replace(one, said=_NOT_TAKEN))
    return held


def _is_sure(one: Tested) -> bool:
    return one.explained >= NAMED and not one.is_by_chance


def _second(experiment: Experiment, assigned: Assigned) -> Tester | None:
    """The same run with other values; None where the target does not take them."""
    values = _other_values(experiment)
    experiment = replace(experiment, values=values)
    try:
        inputs = inputs_of(experiment, assigned)
        trace = execute(experiment, inputs).outcome.trace
        return Tester(observed(experiment.case, measure(experiment, inputs, trace), inputs.tensors)) if trace else None
    except Failure:
        return None


def _other_values(experiment: Experiment) -> dict[str, Tensor]:
    """Those of another seed; of a file, the same with the rows of q, k, v and dO in another order."""
    if experiment.saved is None:
        other = replace(experiment.case, seed=experiment.case.seed ^ 1)
        return {name: value.to(experiment.case.device) for name, value in draw(other).items()}
    return _shuffled(experiment.case, experiment.values)


def _shuffled(case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q, k, v and do, the rows of each shuffled by itself; without O and LSE, which belong to the old order."""
    import torch

    generator = torch.Generator().manual_seed(case.seqlen_q)
    left = {name: value for name, value in values.items() if name not in ("o", "lse", "delta")}
    for name in ("q", "k", "v", "do"):
        order = torch.randperm(left[name].shape[2], generator=generator)
        left[name] = left[name][:, :, order.to(left[name].device)]
    return left


def _again(one: Tested, second: Tester, experiment: Experiment) -> Tested:
    """A hypothesis with what it explains of the second draw."""
    wrong = sum(second.wrong.values())
    again = _best(second, one)
    draw = "a second draw of values" if experiment.saved is None else "the values in another order"
    said = f"of {draw} it explains {again.reproduced:.0%}: {wrong:,} elements are wrong there"
    return replace(one, again=again, said=said)


def _best(second: Tester, one: Tested) -> Explanation:
    """What the same fault explains of the second draw, in the same form where it has that there too."""
    if not any(second.wrong.values()):
        return second.nothing
    every = list(hypotheses(second.seen))
    forms = [_alike(every, each) for each in one.hypotheses]
    if not all(forms):
        return second.nothing
    found = [max(of, key=lambda form: second.fully(form).explained) if of[1:] else of[0] for of in forms]
    alone = [second.fully(each) for each in found]
    return merged([*alone, second.fully(*found)]) if len(found) > 1 else alone[0]


def _alike(every: Sequence[Hypothesis], one: Hypothesis) -> list[Hypothesis]:
    """The same hypothesis about other values; all forms of its fault, where a number in it is measured off them."""

    def key(other: Hypothesis) -> tuple[str, ...]:
        return (other.fault, other.tensor, other.axes, other.other)

    same = [other for other in every if key(other) == key(one)]
    return [other for other in same if other.summary == one.summary] or same
