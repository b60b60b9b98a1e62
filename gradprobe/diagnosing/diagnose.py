"""The hypotheses that explain a run, best first, each with the share that it explains."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis import NAMED
from ..faults.hypothesis import EVERYTHING, Hypothesis, may_show
from ..faults.table import hypotheses
from .observed import Observed
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


def ranked(seen: Observed) -> list[Tested]:
    """The hypotheses that explain anything, best first; each fault once, in its best form.

    Where none explains nearly all, two of them at once are tried: the best, and what explains most of the rest.
    """
    tester = Tester(seen)
    if not any(tester.wrong.values()):
        return []
    rough = [_Rough(one, tester.roughly(one)) for one in hypotheses(seen)]
    tested = [Tested((one,), tester.fully(one), len(rough)) for one in _likely(tester, rough)]
    order = {id(one.hypothesis): number for number, one in enumerate(rough)}
    tested.sort(key=lambda one: (-round(one.explained, 3), one.explanation.contradicted, order[id(one.hypotheses[0])]))
    if tested and tested[0].explained < NAMED:
        both = _two_at_once(tester, tested[0], rough)
        tested = [both, *tested] if both is not None else tested
    return _each_once(tested)


def _likely(tester: Tester, rough: Sequence[_Rough], names: Collection[str] = EVERYTHING) -> list[Hypothesis]:
    """Those that are worth a full test, the likeliest first."""
    shares = [(tester.share(one.shares, names), one.hypothesis) for one in rough]
    least = max(_ROUGHLY, max((share for share, _ in shares), default=0.0) / 2)
    best = sorted((pair for pair in shares if pair[0] >= least), key=lambda pair: -pair[0])
    return [one for _, one in best[:_FINALISTS]]


def _each_once(tested: Iterable[Tested]) -> list[Tested]:
    kept: dict[tuple[str, ...], Tested] = {}
    for one in tested:
        kept.setdefault(tuple(hypothesis.fault for hypothesis in one.hypotheses), one)
    return list(kept.values())


def _two_at_once(tester: Tester, first: Tested, rough: Sequence[_Rough]) -> Tested | None:
    """The best with what explains the rest, where both together explain nearly everything, and neither does alone.

    Each must explain nearly all that is wrong in some intermediate: two halves of one are no explanation. What explains
    the rest alone is tried first; then what does only together with the other, in the same kernel.
    """
    wrong, own = tester.wrong, tester.seen.own
    rest = [name for name in wrong if wrong[name] and not first.explanation.whole(name, wrong[name])]
    if not set(own) - set(rest) or len(rest) == sum(map(bool, wrong.values())):
        return None
    one = first.hypotheses[0]
    others = [other for other in rough if other.hypothesis.fault != one.fault]
    found = _best_pair(tester, first, _likely(tester, others, rest), rest)
    if found is not None:
        return found
    reaching = [other.hypothesis for other in others if may_show(other.hypothesis.changes, tester.seen, rest)]
    beside = [_Rough(other, tester.roughly(one, other, names=rest, stored=False)) for other in reaching]
    return _best_pair(tester, first, _likely(tester, beside, rest), rest)


def _best_pair(tester: Tester, first: Tested, likely: Sequence[Hypothesis], rest: Collection[str]) -> Tested | None:
    """The pair that explains most; of several, one whose other fault changes nothing but the rest."""
    one = first.hypotheses[0]
    pairs = [
        replace(
            first,
            hypotheses=(one, other),
            explanation=merged([first.explanation, tester.fully(other), tester.fully(one, other)]),
        )
        for other in likely
    ]
    best = max(
        pairs, key=lambda pair: (round(pair.explained, 3), pair.hypotheses[1].changes <= set(rest)), default=None
    )
    return best if best is not None and best.explained >= max(NAMED, first.explained + _ADDS) else None
