"""The hypotheses that explain a run, best first, each with the share that it explains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..diagnosis import NAMED
from ..faults.hypothesis import Hypothesis
from ..faults.table import hypotheses
from .observed import Observed
from .testing import Explanation, Tester, merged

# How many of those that fit roughly are tested in full, and what they must explain roughly to be.
_FINALISTS, _ROUGHLY = 16, 0.25
# What each of two faults must add to what the other explains.
_ADDS = 0.05


@dataclass(frozen=True)
class Tested:
    """A hypothesis with what it explains, or two at once."""

    hypotheses: tuple[Hypothesis, ...]
    explanation: Explanation

    @property
    def explained(self) -> float:
        return self.explanation.explained


def ranked(seen: Observed) -> list[Tested]:
    """The hypotheses that explain anything, best first; each fault once, in its best form.

    Where none explains nearly all, two of them at once are tried: the best, and what explains most of the rest.
    """
    tester = Tester(seen)
    if not tester.total:
        return []
    rough = [(tester.roughly(one), one) for one in hypotheses(seen)]
    finalists = [one for share, one in sorted(rough, key=lambda pair: -pair[0]) if share >= _ROUGHLY][:_FINALISTS]
    order = {id(one): number for number, (_, one) in enumerate(rough)}
    tested = [Tested((one,), tester.fully(one)) for one in finalists]
    tested.sort(key=lambda one: (-round(one.explained, 3), one.explanation.contradicted, order[id(one.hypotheses[0])]))
    if tested and tested[0].explained < NAMED:
        both = _two_at_once(tester, tested[0], [one for _, one in rough])
        tested = [both, *tested] if both is not None else tested
    return _each_once(tested)


def _each_once(tested: Iterable[Tested]) -> list[Tested]:
    kept: dict[tuple[str, ...], Tested] = {}
    for one in tested:
        kept.setdefault(tuple(hypothesis.fault for hypothesis in one.hypotheses), one)
    return list(kept.values())


def _two_at_once(tester: Tester, first: Tested, others: list[Hypothesis]) -> Tested | None:
    """The best with what explains the rest, where both together explain nearly everything, and neither does alone.

    Each must explain nearly all that is wrong in some intermediate: two halves of one are no explanation.
    """
    wrong = {name: tester.seen.wrong(name) for name in tester.seen.wrong_names}
    rest = [name for name in wrong if not first.explanation.whole(name, wrong[name])]
    one = first.hypotheses[0]
    if len(rest) == len(wrong) or set(tester.seen.own) <= set(rest):
        return None
    rough = [(tester.roughly(one, other, names=rest), other) for other in others]
    likely = sorted((pair for pair in rough if pair[0] >= _ROUGHLY), key=lambda pair: -pair[0])[:_FINALISTS]
    pairs = [
        Tested((one, other), merged([first.explanation, tester.fully(other), tester.fully(one, other)]))
        for _, other in likely
    ]  # fmt: skip
    best = max(pairs, key=lambda pair: pair.explained, default=None)
    return best if best is not None and best.explained >= max(NAMED, first.explained + _ADDS) else None
