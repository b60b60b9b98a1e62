"""The hypotheses that explain a run, best first, each with the share that it explains."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from ..faults.hypothesis import EVERYTHING, Hypothesis, Observed, may_show
from ..faults.table import hypotheses
from ..inputs.draw import draw
from ..model.assignment import Assigned
from ..model.case import Case
from ..model.intermediates import DERIVED
from ..model.report import NAMED
from ..probing.experiment import Experiment
from ..processes.forks import halved
from .prediction import run_again
from .testing import Explanation, Tester, merged

# How many of those that fit roughly are tested in full, and what they must explain roughly to be; nor is one that
# explains less than half of what the best does.
_FINALISTS, _ROUGHLY = 16, 0.25
# A chance of one in a thousand is none.
_SURE = 10.0
# What each of two faults must add to what the other explains.
_ADDS = 0.05


_Rough = tuple[Hypothesis, Mapping[str, float]]
"""A hypothesis with about the share that it explains of each intermediate."""


@dataclass(frozen=True)
class Finalist:
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


def ranked(seen: Observed, known: Sequence[Hypothesis] = ()) -> list[Finalist]:
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
    tested = fully(tester, _likely(tester, rough), len(rough))
    order = {id(hypothesis): number for number, hypothesis in enumerate(every)}
    tested.sort(key=lambda one: (-round(one.explained, 3), one.explanation.contradicted, order[id(one.hypotheses[0])]))
    if tested and tested[0].explained < NAMED:
        both = _two_at_once(tester, tested[0], every, rough)
        tested = [both, *tested] if both is not None else tested
    kept: dict[tuple[str, ...], Finalist] = {}
    for one in tested:
        kept.setdefault(tuple(hypothesis.fault for hypothesis in one.hypotheses), one)
    return list(kept.values())


def _roughly(
    tester: Tester,
    every: Sequence[Hypothesis],
    names: Collection[str] = EVERYTHING,
    beside: Sequence[Hypothesis] = (),
) -> list[_Rough]:
    """What each hypothesis explains roughly; or each in the very kernels of what stands beside it."""

    def shares(some: Sequence[Hypothesis]) -> list[Mapping[str, float]]:
        return [tester.roughly(*beside, one, names=names, stored=not beside) for one in some]

    return list(zip(every, halved(shares, every), strict=True))


def explaining(seen: Observed, known: Sequence[Hypothesis]) -> tuple[str, ...]:
    """The faults of one or two hypotheses that explain other runs, where they explain this one; else none."""
    if not known:
        return ()
    tester, every = Tester(seen), list(hypotheses(seen))
    tested = fully(tester, [form for each in known for form in alike(every, each)], len(every))
    for one in tested:
        if one.explained >= NAMED:
            return (one.hypotheses[0].fault,)
    for one, other in combinations(tested, 2):
        together = tester.fully(*one.hypotheses, *other.hypotheses)
        if merged([one.explanation, other.explanation, together]).explained >= NAMED:
            return one.hypotheses[0].fault, other.hypotheses[0].fault
    return ()


def fully(tester: Tester, some: Sequence[Hypothesis], tried: int) -> list[Finalist]:
    """Some of as many hypotheses, each tested in full."""
    explanations = halved(lambda some: [tester.fully(one) for one in some], some)
    return [Finalist((one,), explanation, tried) for one, explanation in zip(some, explanations, strict=True)]


def _beside_known(tester: Tester, every: Sequence[Hypothesis], known: Sequence[Hypothesis]) -> Finalist | None:
    """The best of some hypotheses with another one, where both together explain nearly everything."""
    tested = fully(tester, known, len(every))
    best = max(tested, key=lambda one: one.explained, default=None)
    return None if best is None or best.explained >= NAMED else _two_at_once(tester, best, every)


def _likely(tester: Tester, rough: Sequence[_Rough], names: Collection[str] = EVERYTHING) -> list[Hypothesis]:
    """Those that are worth a full test, the likeliest first."""
    shares = [(tester.share(of, names), hypothesis) for hypothesis, of in rough]
    least = max(_ROUGHLY, max((share for share, _ in shares), default=0.0) / 2)
    best = sorted((pair for pair in shares if pair[0] >= least), key=lambda pair: -pair[0])
    return [hypothesis for _, hypothesis in best[:_FINALISTS]]


def _two_at_once(
    tester: Tester, first: Finalist, every: Sequence[Hypothesis], rough: Sequence[_Rough] = ()
) -> Finalist | None:
    """The best with what explains the rest, where both together explain nearly everything, and neither does alone.

    Each must explain nearly all that is wrong in some intermediate: two halves of one are no explanation. What explains
    the rest alone is tried first; then what does only together with the other, in the same kernel.

    Args:
        rough: what each explains roughly, where that is known.
    """
    wrong, own, one = tester.wrong, tester.seen.own, first.hypotheses[0]
    rest = [name for name in wrong if wrong[name] and not first.explanation.whole(name, wrong[name])]
    if not set(own) - set(rest) or len(rest) == sum(map(bool, wrong.values())):
        return None
    reaching = [other for other in every if may_show(other.changes, tester.seen, rest)]
    rough = rough or _roughly(tester, reaching, rest if tester.shows(rest) else EVERYTHING)
    others = [(other, of) for other, of in rough if other.fault != one.fault]
    found = _best_pair(tester, first, _likely(tester, others, rest), rest)
    if found is not None:
        return found
    beside = _roughly(tester, [other for other in reaching if other.fault != one.fault], rest, (one,))
    return _best_pair(tester, first, _likely(tester, beside, rest), rest)


def _best_pair(tester: Tester, first: Finalist, likely: Sequence[Hypothesis], rest: Collection[str]) -> Finalist | None:
    """The pair that explains most; of several, one whose other fault changes nothing but the rest."""
    one, most = first.hypotheses[0], (-1.0, False)
    best: Finalist | None = None
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
) -> list[Finalist]:
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


def _tested_again(experiment: Experiment, assigned: Assigned, named: list[Finalist]) -> list[Finalist]:
    """Those tested on a second draw, until none that is left can explain more than one that holds."""
    second, held = _second(experiment, assigned), list[Finalist]()
    for one in named:
        best = max((other.explained for other in held if _is_sure(other)), default=0.0)
        if best and round(one.explained, 3) <= round(best, 3):
            break
        held.append(_again(one, second, experiment) if second else replace(one, said=_NOT_TAKEN))
    return held


def _is_sure(one: Finalist) -> bool:
    return one.explained >= NAMED and not one.is_by_chance


def _second(experiment: Experiment, assigned: Assigned) -> Tester | None:
    """The same run with other values; None where the target does not take them.

    They are those of another seed; of a file, the same with the rows of q, k, v and dO in another order.
    """
    case = experiment.case
    drawn = draw(replace(case, seed=case.seed ^ 1)) if experiment.saved is None else _shuffled(case, experiment.values)
    values = {name: value.to(case.device) for name, value in drawn.items()}
    seen = run_again(replace(experiment, values=values), assigned)
    return Tester(seen) if seen is not None else None


def _shuffled(case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q, k, v and do, the rows of each shuffled by itself; without O and LSE, which belong to the old order."""
    generator = torch.Generator().manual_seed(case.seqlen_q)
    shuffled = {name: value for name, value in values.items() if name not in DERIVED}
    for name in ("q", "k", "v", "do"):
        order = torch.randperm(shuffled[name].shape[2], generator=generator)
        shuffled[name] = shuffled[name][:, :, order.to(shuffled[name].device)]
    return shuffled


def _again(one: Finalist, second: Tester, experiment: Experiment) -> Finalist:
    """A hypothesis with what it explains of the second draw."""
    again, wrong = _best(second, one), sum(second.wrong.values())
    draw = "a second draw of values" if experiment.saved is None else "the values in another order"
    return replace(one, again=again, said=f"on {draw} it explains {again.reproduced:.0%} of {wrong:,} wrong elements")


def _best(second: Tester, one: Finalist) -> Explanation:
    """What the same fault explains of the second draw, in the same form where it has that there too."""
    every = list(hypotheses(second.seen)) if any(second.wrong.values()) else []
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
