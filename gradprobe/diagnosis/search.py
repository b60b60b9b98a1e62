"""The hypotheses that explain a run, best first, each with the share that it explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..faults.hypothesis import EVERYTHING, Hypothesis, Observed, may_show
from ..faults.table import hypotheses
from ..inputs.draw import draw
from ..model.assignment import Assigned
from ..model.case import Case
from ..model.failures import Failure
from ..model.intermediates import DERIVED
from ..model.report import NAMED
from ..probing.experiment import Experiment, inputs_of
from ..probing.measure import measure
from ..probing.observe import execute
from ..processes.forks import halved
from .prediction import observed
from .testing import Explanation, Tester, merged

# How many of those that fit roughly are tested in full, and what they must explain roughly to be; nor is one that
# explains less than half of what the best does.
_FINALISTS, _ROUGHLY = 16, 0.25
# A chance of one in a thousand is none.
_SURE = 10.0
# What each of two faults must add to what the other explains.
_ADDS = 0.05


@dataclass(frozen=True)
class _Rough:
    """A hypothesis with about the share that it explains of each intermediate."""

    hypothesis: Hypothesis
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Tested:
    """A hypothesis with what it explains, or two at once."""

    hypotheses: tuple[Hypothesis, ...]
    explanation: Explanation
    tried: int
    """How many hypotheses were."""
    again: Explanation | None = None
    """What it explains of a second draw of values, where it was held against one."""
    said: str = ""
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
        prediction might have been that would have counted as well; n hypotheses take log2(n) off, and two at once twice
        that. What a hypothesis says of the numbers that came, it does not guess.
        """
        if all(one.is_plain for one in self.hypotheses):
            return False
        bits = sum(one.bits for one in (self.explanation, self.again) if one is not None)
        return bits < len(self.hypotheses) * math.log2(self.tried) + _SURE


def ranked(seen: Observed, known: Sequence[Hypothesis] = ()) -> list[Tested]:
    """The hypotheses that explain anything, best first; each fault once, in its best form.

    Where none explains nearly all, two of them at once are tried: the best, and what explains most of the rest.

    Args:
        known: what explains other runs of the target: one of these with another is tried before all.
    """
    tester, every = Tester(seen), list(hypotheses(seen))
    if not any(tester.wrong.values()):
        return []
    beside = _beside_known(tester, every, [form for one in known for form in alike(every, one)])
    if beside is not None:
        return [beside]
    rough = _roughly(tester, every)
    tested = _fully(tester, _likely(tester, rough), len(rough))
    order = {id(one.hypothesis): number for number, one in enumerate(rough)}
    tested.sort(key=lambda one: (-round(one.explained, 3), one.explanation.contradicted, order[id(one.hypotheses[0])]))
    if tested and tested[0].explained < NAMED:
        both = _two_at_once(tester, tested[0], lambda rest: rough)
        tested = [both, *tested] if both is not None else tested
    kept: dict[tuple[str, ...], Tested] = {}
    for one in tested:
        kept.setdefault(tuple(hypothesis.fault for hypothesis in one.hypotheses), one)
    return list(kept.values())


def _roughly(tester: Tester, every: Sequence[Hypothesis], names: Collection[str] = EVERYTHING) -> list[_Rough]:
    shares = halved(lambda some: [tester.roughly(one, names=names) for one in some], every)
    return [_Rough(one, share) for one, share in zip(every, shares, strict=True)]


def _fully(tester: Tester, some: Sequence[Hypothesis], tried: int) -> list[Tested]:
    explanations = halved(lambda some: [tester.fully(one) for one in some], some)
    return [Tested((one,), explanation, tried) for one, explanation in zip(some, explanations, strict=True)]


def _beside_known(tester: Tester, every: Sequence[Hypothesis], known: Sequence[Hypothesis]) -> Tested | None:
    """The best of some hypotheses with another one, where both together explain nearly everything."""

    def reaching(rest: Collection[str]) -> list[_Rough]:
        some = [one for one in every if may_show(one.changes, tester.seen, rest)]
        return _roughly(tester, some, rest) if tester.shows(rest) else _roughly(tester, some)

    tested = _fully(tester, known, len(every))
    best = max(tested, key=lambda one: one.explained, default=None)
    return None if best is None or best.explained >= NAMED else _two_at_once(tester, best, reaching)


def _likely(tester: Tester, rough: Sequence[_Rough], names: Collection[str] = EVERYTHING) -> list[Hypothesis]:
    """Those that are worth a full test, the likeliest first."""
    shares = [(tester.share(one.shares, names), one.hypothesis) for one in rough]
    least = max(_ROUGHLY, max((share for share, _ in shares), default=0.0) / 2)
    best = sorted((pair for pair in shares if pair[0] >= least), key=lambda pair: -pair[0])
    return [one for _, one in best[:_FINALISTS]]


def _two_at_once(
    tester: Tester, first: Tested, roughly: Callable[[Collection[str]], Sequence[_Rough]]
) -> Tested | None:
    """The best with what explains the rest, where both together explain nearly everything, and neither does alone.

    Each must explain nearly all that is wrong in some intermediate: two halves of one are no explanation. What explains
    the rest alone is tried first; then what does only together with the other, in the same kernel.

    Args:
        roughly: what each other hypothesis explains roughly of some intermediates.
    """
    wrong, own = tester.wrong, tester.seen.own
    rest = [name for name in wrong if wrong[name] and not first.explanation.whole(name, wrong[name])]
    if not set(own) - set(rest) or len(rest) == sum(map(bool, wrong.values())):
        return None
    one = first.hypotheses[0]
    others = [other for other in roughly(rest) if other.hypothesis.fault != one.fault]
    found = _best_pair(tester, first, _likely(tester, others, rest), rest)
    if found is not None:
        return found
    reaching = [other.hypothesis for other in others if may_show(other.hypothesis.changes, tester.seen, rest)]
    shares = halved(lambda some: [tester.roughly(one, of, names=rest, stored=False) for of in some], reaching)
    beside = [_Rough(other, share) for other, share in zip(reaching, shares, strict=True)]
    return _best_pair(tester, first, _likely(tester, beside, rest), rest)


def _best_pair(tester: Tester, first: Tested, likely: Sequence[Hypothesis], rest: Collection[str]) -> Tested | None:
    """The pair that explains most; of several, one whose other fault changes nothing but the rest."""
    one, most = first.hypotheses[0], (-1.0, False)
    best: Tested | None = None
    for other in likely:
        alone = other.changes <= set(rest)
        if most >= (1.0, alone):  # it cannot be better
            continue
        alone_and_together = halved(lambda some: [tester.fully(*each) for each in some], [(other,), (one, other)])
        both = merged([first.explanation, *alone_and_together])
        if (round(both.explained, 3), alone) > most:
            most, best = (round(both.explained, 3), alone), replace(first, hypotheses=(one, other), explanation=both)
    return best if best is not None and best.explained >= max(NAMED, first.explained + _ADDS) else None


# How many of those that explain the first draw are held against the second.
_MOST = 8
_NOT_TAKEN = "tested on one draw of values only: the target refused another"


def fitting(
    experiment: Experiment, assigned: Assigned, seen: Observed, known: Sequence[Hypothesis] = ()
) -> list[Tested]:
    """The hypotheses that explain a run, best first; those that may be called its cause explain a second draw too.

    Args:
        known: those that explain other runs.
    """
    tested = ranked(seen, known)
    named = [one for one in tested if one.explained >= NAMED]
    held = _tested_again(experiment, assigned, named[:_MOST]) if named else []
    # What was not held against the second draw stands behind what was, or is not told where nothing held.
    others = [one for one in tested if one not in named[: len(held) if any(map(_is_sure, held)) else None]]
    found = [one for one in (*held, *others) if not one.is_by_chance]
    return sorted(found, key=lambda one: -round(one.explained, 3))


def _tested_again(experiment: Experiment, assigned: Assigned, named: list[Tested]) -> list[Tested]:
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
    """The same run with other values; None where the target does not take them.

    They are those of another seed; of a file, the same with the rows of q, k, v and dO in another order.
    """
    case = experiment.case
    drawn = draw(replace(case, seed=case.seed ^ 1)) if experiment.saved is None else _shuffled(case, experiment.values)
    experiment = replace(experiment, values={name: value.to(case.device) for name, value in drawn.items()})
    try:
        inputs = inputs_of(experiment, assigned)
        trace = execute(experiment, inputs).outcome.trace
        return Tester(observed(experiment.case, measure(experiment, inputs, trace), inputs.tensors)) if trace else None
    except Failure:
        return None


def _shuffled(case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q, k, v and do, the rows of each shuffled by itself; without O and LSE, which belong to the old order."""
    generator = torch.Generator().manual_seed(case.seqlen_q)
    left = {name: value for name, value in values.items() if name not in DERIVED}
    for name in ("q", "k", "v", "do"):
        order = torch.randperm(left[name].shape[2], generator=generator)
        left[name] = left[name][:, :, order.to(left[name].device)]
    return left


def _again(one: Tested, second: Tester, experiment: Experiment) -> Tested:
    """A hypothesis with what it explains of the second draw."""
    wrong = sum(second.wrong.values())
    again = _best(second, one)
    draw = "a second draw of values" if experiment.saved is None else "the values in another order"
    said = f"on {draw} it explains {again.reproduced:.0%} of {wrong:,} wrong elements"
    return replace(one, again=again, said=said)


def _best(second: Tester, one: Tested) -> Explanation:
    """What the same fault explains of the second draw, in the same form where it has that there too."""
    if not any(second.wrong.values()):
        return second.nothing
    every = list(hypotheses(second.seen))
    forms = [alike(every, each) for each in one.hypotheses]
    if not all(forms):
        return second.nothing
    found = [max(of, key=lambda form: second.fully(form).explained) if of[1:] else of[0] for of in forms]
    alone = [second.fully(each) for each in found]
    return merged([*alone, second.fully(*found)]) if len(found) > 1 else alone[0]


def alike(every: Sequence[Hypothesis], one: Hypothesis) -> list[Hypothesis]:
    """The same hypothesis about other values; all forms of its fault, where a number in it is measured off them."""

    def key(other: Hypothesis) -> tuple[str, ...]:
        return (other.fault, other.tensor, other.axes, other.other)

    same = [other for other in every if key(other) == key(one)]
    return [other for other in same if other.summary == one.summary] or same
