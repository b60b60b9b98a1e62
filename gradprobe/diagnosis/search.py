"""The hypotheses that predict what came, best first, each with its share of the wrong elements."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from torch import Tensor

from ..faults.hypothesis import Hypothesis, Observed
from ..inputs.draw import draw
from ..model.assignment import Assigned
from ..model.intermediates import DERIVED, reached
from ..model.report import NAMED
from ..probing.experiment import Experiment
from .behaviour import run_again
from .testing import Finalist, Tester

# How many of those that fit roughly are tested in full, and what they must explain roughly, beside half of what the
# best does. How many of those that explain all are held against a second draw.
_FINALISTS, _ROUGHLY, _HELD = 16, 0.25, 8
# A chance of one in a thousand is none.
_SURE = 10.0


def ranked(seen: Observed) -> list[Finalist]:
    """The hypotheses that explain anything, best first; each fault once, in its best form.

    Each number counts log2(1 / p) bits, p being the share of what might have been predicted that would have counted as
    well; n hypotheses take log2(n) off.
    """
    tester = Tester(seen)
    every = tester.hypotheses
    if not every:
        return []
    shares, outside = [*map(tester.share, every)], seen.actual.keys() - seen.right.keys()
    least, needed = max(_ROUGHLY, max(shares) / 2), math.log2(len(every)) + _SURE
    likely = sorted(range(len(every)), key=lambda at: -shares[at])[:_FINALISTS]

    def order(fit: Finalist) -> tuple[float, int, int]:
        """What explains more first, then what would make less wrong that came right or is not in question."""
        others = reached(fit.hypothesis.changes, seen.case.family)
        return (
            -round(fit.explained, 3),
            fit.contradicted + len(outside.intersection(others)),
            len(others),
        )

    fits, best = list[Finalist](), dict[str, Finalist]()
    for at in sorted(likely):  # of those that explain as much, the first of the table
        if shares[at] >= least:
            fit = tester.fit(every[at])
            fits.append(replace(fit, bits=math.inf if every[at].is_plain else fit.bits - needed))
    for fit in sorted(fits, key=order):
        best.setdefault(fit.hypothesis.fault, fit)
    return list(best.values())


def explaining(seen: Observed, known: Mapping[str, Hypothesis]) -> str:
    """The first fault whose hypothesis explained another run and explains this one; "" for none."""
    tester = Tester(seen)
    explains = (
        fault for fault, hypothesis in known.items() if tester.best(hypothesis).explained >= NAMED
    )
    return next(explains, "")


def in_parts(experiment: Experiment, assigned: Assigned, seen: Observed) -> list[list[Finalist]]:
    """The hypotheses that explain a run, best first; of several faults, those of each.

    Where the best one explains a part wholly, and others the rest, they are several.
    """
    tested = _fitting(experiment, assigned, seen)
    if not tested or tested[0].explained >= NAMED:
        return [tested]
    whole = tested[0].whole
    rest = set(seen.wrong_names) - whole
    if whole.isdisjoint(seen.own) or rest.isdisjoint(seen.own):
        return [tested]
    # What is right stands beside each of them: a fault that would have made it wrong is none.
    found = list[list[Finalist]]()
    for names in (seen.right.keys() - rest, seen.right.keys() - whole):
        found += in_parts(experiment, assigned, seen.of(names))
    return found if all(each and each[0].explained >= NAMED for each in found) else [tested]


def _fitting(experiment: Experiment, assigned: Assigned, seen: Observed) -> list[Finalist]:
    tested = ranked(seen)
    named = [fit for fit in tested if fit.explained >= NAMED]
    second = _second(experiment, assigned, seen.right) if named else None
    best, others = list[Finalist](), tested[len(named) :]
    for number, fit in enumerate(named[:_HELD], 1):
        again = _again(fit, second)
        if again.explained >= NAMED and again.bits >= 0:
            best, others = [again], [*others, *tested[number : len(named)]]
            break
        others.append(again)
    others.sort(key=lambda fit: -round(fit.explained, 3))
    return [fit for fit in (*best, *others) if fit.bits >= 0]


def _second(experiment: Experiment, assigned: Assigned, names: Collection[str]) -> Tester | None:
    """The same run with other values, or a file's rows in another order; None where it is refused."""
    case, values = experiment.case, dict[str, Tensor]()
    if experiment.saved:
        for name, value in experiment.values.items():
            if name not in DERIVED:  # O and LSE belong to the old order
                values[name] = value.flip(2) if name in ("q", "v") else value
    else:
        values = draw(replace(case, seed=case.seed ^ 1))
    values = {name: value.to(case.device) for name, value in values.items()}
    seen = run_again(replace(experiment, values=values), assigned)
    return Tester(seen.of(names)) if seen is not None else None


def _again(fit: Finalist, second: Tester | None) -> Finalist:
    """A hypothesis that explains no more than the same fault reproduces of the second draw.

    That what is right stays right the first has shown: of a few dozen zeros the rounding of a fault spoils six.
    """
    if second is None:
        return replace(fit, said=("tested on one draw of values only: the target refused another",))
    again = second.best(fit.hypothesis)
    return replace(fit, explained=min(fit.explained, again.reproduced), bits=fit.bits + again.bits)
