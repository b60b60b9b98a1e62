"""The hypotheses that predict what came, best first, each with the share of the wrong elements that it explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..faults.hypothesis import Hypothesis, Observed
from ..faults.table import hypotheses
from ..inputs.draw import draw
from ..model.assignment import Assigned
from ..model.intermediates import DERIVED, reached
from ..model.report import NAMED
from ..probing.experiment import Experiment
from ..processes.forks import halved
from .prediction import run_again
from .testing import Explanation, Tester

# How many of those that fit roughly are tested in full, and what they must explain roughly to be; nor is one that
# explains less than half of what the best does. How many of those that explain all are held against a second draw.
_FINALISTS, _ROUGHLY, _HELD = 16, 0.25, 8
# A chance of one in a thousand is none.
_SURE = 10.0


@dataclass(frozen=True)
class Finalist:
    """A hypothesis with what it explains."""

    hypothesis: Hypothesis
    explanation: Explanation
    tried: int
    """How many hypotheses were."""
    again: Explanation | None = None
    """What it explains of a second draw of values, where it was held against one."""
    said: tuple[str, ...] = ()
    """What came of that, in words."""

    @property
    def explained(self) -> float:
        """The share that it explains; or less, that which it reproduces of the second draw.

        That what is right stays right the first has shown: of a few dozen zeros the rounding of a fault spoils six.
        """
        return min(self.explanation.explained, self.again.reproduced if self.again is not None else 1.0)

    @property
    def is_by_chance(self) -> bool:
        """Whether one of so many hypotheses may well explain as much without being true.

        Of two numbers many hypotheses explain both. Each of them counts log2(1 / p), p being the share of what a
        prediction might have been that would have counted as well; n hypotheses take log2(n) off. What a hypothesis
        says of the numbers that came, it does not guess.
        """
        bits = self.explanation.bits + (self.again.bits if self.again is not None else 0.0)
        return not self.hypothesis.is_plain and bits < math.log2(self.tried) + _SURE


def ranked(seen: Observed) -> list[Finalist]:
    """The hypotheses that explain anything, best first; each fault once, in its best form."""
    tester, every = Tester(seen), list(hypotheses(seen))
    if not seen.wrong_names or not every:
        return []
    rough = halved(lambda some: [tester.roughly(hypothesis) for hypothesis in some], every)
    least = max(_ROUGHLY, max(rough) / 2)
    likely = sorted((at for at, share in enumerate(rough) if share >= least), key=lambda at: -rough[at])[:_FINALISTS]
    best: dict[str, Finalist] = {}
    # Of those that explain as much, the first of the table.
    for finalist in sorted(_fully(tester, [every[at] for at in sorted(likely)], len(every)), key=_order(seen)):
        best.setdefault(finalist.hypothesis.fault, finalist)
    return list(best.values())


def _order(seen: Observed) -> Callable[[Finalist], tuple[float, int, int]]:
    """What explains more first; of as much, what would make fewer wrong that came right or are not in question."""
    outside = seen.actual.keys() - seen.right.keys()

    def order(finalist: Finalist) -> tuple[float, int, int]:
        others = reached(finalist.hypothesis.changes, seen.case.family)
        denied = finalist.explanation.contradicted + len(outside.intersection(others))
        return -round(finalist.explained, 3), denied, len(others)

    return order


def _fully(tester: Tester, some: Sequence[Hypothesis], tried: int) -> list[Finalist]:
    """Some of as many hypotheses, each tested in full."""
    explanations = halved(lambda some: [tester.fully(hypothesis) for hypothesis in some], some)
    return [Finalist(*found, tried) for found in zip(some, explanations, strict=True)]


def explaining(seen: Observed, known: Sequence[Hypothesis]) -> tuple[str, ...]:
    """The fault of one of the hypotheses that explain other runs, where it explains this one; else none."""
    every, tester = list(hypotheses(seen)) if known else [], Tester(seen)
    for each in known:
        if any(tester.fully(form).explained >= NAMED for form in _alike(every, each)):
            return (each.fault,)
    return ()


def in_parts(experiment: Experiment, assigned: Assigned, seen: Observed) -> list[list[Finalist]]:
    """The hypotheses that explain a run, best first.

    Where none explains nearly all, those of what the best one explains wholly, and those of the rest: if each part is
    explained, they are several faults.
    """
    tested = _fitting(experiment, assigned, seen)
    if not tested or tested[0].explained >= NAMED:
        return [tested]
    whole = tested[0].explanation.whole
    rest = set(seen.wrong_names) - whole
    if whole.isdisjoint(seen.own) or rest.isdisjoint(seen.own):
        return [tested]
    # What is right stands beside each of them: a fault that would have made it wrong is none.
    found = list[list[Finalist]]()
    for names in (seen.right.keys() - rest, seen.right.keys() - whole):
        found += in_parts(experiment, assigned, seen.of(names))
    return found if all(each and each[0].explained >= NAMED for each in found) else [tested]


def _fitting(experiment: Experiment, assigned: Assigned, seen: Observed) -> list[Finalist]:
    """The hypotheses that explain a run, best first; those that may be called its cause explain a second draw too."""
    tested = ranked(seen)
    named = [found for found in tested if found.explained >= NAMED]
    second = _second(experiment, assigned, seen.right) if named else None
    held, best = list[Finalist](), 0.0
    for finalist in named[:_HELD]:
        # None that is left can explain more than one that holds.
        if best and round(finalist.explained, 3) <= round(best, 3):
            break
        held.append(_again(finalist, second, experiment))
        if held[-1].explained >= NAMED and not held[-1].is_by_chance:
            best = max(best, held[-1].explained)
    # What was not held against the second draw stands behind what was, or is not told where nothing held.
    rest = tested[len(held) if best else len(named) :]
    found = [each for each in (*held, *rest) if not each.is_by_chance]
    return sorted(found, key=lambda finalist: -round(finalist.explained, 3))


def _second(experiment: Experiment, assigned: Assigned, names: Collection[str]) -> Tester | None:
    """The same run with other values; None where the target does not take them.

    They are those of another seed; of a file, the same with the rows of q, k, v and dO in another order.
    """
    case = experiment.case
    drawn = _shuffled(experiment.values) if experiment.saved else draw(replace(case, seed=case.seed ^ 1))
    values = {name: value.to(case.device) for name, value in drawn.items()}
    seen = run_again(replace(experiment, values=values), assigned)
    return Tester(seen.of(names)) if seen is not None else None


def _shuffled(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q, k, v and do, the rows of each shuffled by itself; without O and LSE, which belong to the old order."""
    generator = torch.Generator().manual_seed(1)
    shuffled = {name: value for name, value in values.items() if name not in DERIVED}
    for name in ("q", "k", "v", "do"):
        order = torch.randperm(shuffled[name].shape[2], generator=generator)
        shuffled[name] = shuffled[name][:, :, order.to(shuffled[name].device)]
    return shuffled


def _again(finalist: Finalist, second: Tester | None, experiment: Experiment) -> Finalist:
    """A hypothesis with what the same fault explains of the second draw, in whichever of its forms explains most."""
    if second is None:
        return replace(finalist, said=("tested on one draw of values only: the target refused another",))
    wrong = sum(second.wrong.values())
    forms = _alike(list(hypotheses(second.seen)), finalist.hypothesis) if wrong else []
    again = max(map(second.fully, forms), key=lambda of: of.explained, default=Explanation())
    values = "the values in another order" if experiment.saved else "a second draw of values"
    said = f"on {values} it explains {again.reproduced:.0%} of {wrong:,} wrong elements"
    return replace(finalist, again=again, said=(said,))


def _alike(every: Sequence[Hypothesis], known: Hypothesis) -> list[Hypothesis]:
    """The same hypothesis about other values; all forms of its fault, where a number in it is measured off them."""
    same = [other for other in every if other.fault == known.fault]
    return [other for other in same if other.summary == known.summary] or same
