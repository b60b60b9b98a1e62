"""The hypotheses that predict what came, best first, each with the share of the wrong elements that it explains."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from ..faults.hypothesis import Hypothesis, Observed
from ..faults.table import hypotheses
from ..inputs.draw import draw
from ..model.assignment import Assigned
from ..model.intermediates import DERIVED, reached
from ..model.report import NAMED
from ..probing.experiment import Experiment
from .behaviour import run_again
from .testing import Finalist, Tester

# How many of those that fit roughly are tested in full, and what they must explain roughly to be; nor is one that
# explains less than half of what the best does. How many of those that explain all are held against a second draw.
_FINALISTS, _ROUGHLY, _HELD = 16, 0.25, 8
# A chance of one in a thousand is none.
_SURE = 10.0


def ranked(seen: Observed) -> list[Finalist]:
    """The hypotheses that explain anything, best first; each fault once, in its best form.

    Of two numbers many hypotheses explain both. Each of them counts log2(1 / p) bits, p being the share of what a
    prediction might have been that would have counted as well; n hypotheses take log2(n) off. What a hypothesis says of
    the numbers that came, it does not guess.
    """
    tester, every = Tester(seen), list(hypotheses(seen))
    if not seen.wrong_names or not every:
        return []
    shares = [tester.share(hypothesis) for hypothesis in every]
    least = max(_ROUGHLY, max(shares) / 2)
    likely = [at for at, share in enumerate(shares) if share >= least]
    likely = sorted(likely, key=lambda at: -shares[at])[:_FINALISTS]
    outside = seen.actual.keys() - seen.right.keys()

    def order(fit: Finalist) -> tuple[float, int, int]:
        """What explains more first; of as much, what would make fewer wrong that came right or are not in question."""
        others = reached(fit.hypothesis.changes, seen.case.family)
        return -round(fit.explained, 3), fit.contradicted + len(outside.intersection(others)), len(others)

    fits, needed = list[Finalist](), math.log2(len(every)) + _SURE
    for at in sorted(likely):  # of those that explain as much, the first of the table
        fit = tester.fit(every[at])
        fits.append(replace(fit, bits=math.inf if every[at].is_plain else fit.bits - needed))
    best = dict[str, Finalist]()
    for fit in sorted(fits, key=order):
        best.setdefault(fit.hypothesis.fault, fit)
    return list(best.values())


def explaining(seen: Observed, known: Mapping[str, Hypothesis]) -> str:
    """The first fault of those whose hypotheses explain other runs that explains this one too; "" for none."""
    every, tester = list(hypotheses(seen)) if known else [], Tester(seen)
    for fault, hypothesis in known.items():
        if any(tester.fit(form).explained >= NAMED for form in _alike(every, hypothesis)):
            return fault
    return ""


def in_parts(experiment: Experiment, assigned: Assigned, seen: Observed) -> list[list[Finalist]]:
    """The hypotheses that explain a run, best first.

    Where none explains nearly all, those of what the best one explains wholly, and those of the rest: if each part is
    explained, they are several faults.
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
    """The hypotheses that explain a run, best first; those that may be called its cause explain a second draw too."""
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
    """The same run with other values; None where the target does not take them.

    They are those of another seed; of a file, the same with the rows of q, k, v and dO in another order, and without O
    and LSE, which belong to the old one.
    """
    case = experiment.case
    if experiment.saved:
        generator = torch.Generator().manual_seed(1)
        values = {name: value for name, value in experiment.values.items() if name not in DERIVED}
        for name in ("q", "k", "v", "do"):
            order = torch.randperm(values[name].shape[2], generator=generator)
            values[name] = values[name][:, :, order.to(values[name].device)]
    else:
        values = draw(replace(case, seed=case.seed ^ 1))
    values = {name: value.to(case.device) for name, value in values.items()}
    seen = run_again(replace(experiment, values=values), assigned)
    return Tester(seen.of(names)) if seen is not None else None


def _again(fit: Finalist, second: Tester | None) -> Finalist:
    """A hypothesis that explains no more than the same fault reproduces of the second draw, in its best form there.

    That what is right stays right the first has shown: of a few dozen zeros the rounding of a fault spoils six.
    """
    if second is None:
        return replace(fit, said=("tested on one draw of values only: the target refused another",))
    forms = _alike(list(hypotheses(second.seen)), fit.hypothesis) if second.seen.wrong_names else []
    again = max(map(second.fit, forms), key=lambda other: other.explained, default=Finalist(fit.hypothesis))
    return replace(fit, explained=min(fit.explained, again.reproduced), bits=fit.bits + again.bits)


def _alike(every: Sequence[Hypothesis], known: Hypothesis) -> list[Hypothesis]:
    """The same hypothesis about other values; all forms of its fault, where a number in it is measured off them."""
    same = [other for other in every if other.fault == known.fault]
    return [other for other in same if other.summary == known.summary] or same
