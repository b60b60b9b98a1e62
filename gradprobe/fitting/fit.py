"""Fit: the case that a target takes, found by trying adaptations. The report names each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..failures import Failure
from ..options import flags
from ..problem import Problem
from .adaptations import OF_LENGTH, WHOLE_BLOCKS, Adaptation, of_a_reading, of_a_refusal
from .trial import Tried, refuses, tried

# A share of wrong elements above which nothing is right but by chance, and one below which a meaning is the target's:
# where it has a fault besides, that is in some heads, rows or tiles, and under another meaning nearly all is wrong.
WRONG_THROUGHOUT, _RIGHT_MOSTLY = 0.9, 0.5
# The options that give the numbers of a tensor another meaning.
_MEANINGS = frozenset({"shapes", "bias_axes", "bias_rank", "mask_axes", "mask_rank"})
# Runs of the target that a search may take; most of them end with a refusal, before any kernel has run.
_MOST_RUNS = 40
_LONGEST_WORDS = 160


@dataclass(frozen=True)
class Fit:
    """A problem that the target takes, and how it was found."""

    problem: Problem
    found: tuple[tuple[Adaptation, str], ...] = ()
    """What was changed, each with the sentence that says why."""

    @property
    def options(self) -> dict[str, Any]:
        """What was added to the options that were given, as words of the command line."""
        return {name: word for adaptation, _ in self.found for name, word in adaptation.options.items()}

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(sentence for _, sentence in self.found)


def fit(problem: Problem, failure: Failure | None, wrong: float = 1.0) -> Fit | None:
    """The changes with which the target runs and reads its tensors rightly; None where none is needed or none helps.

    An option that was given is never changed. A meaning is found only where nearly all that came is wrong without it,
    and most is right with it.

    Args:
        failure: why the problem as it is gave no result; None where it gave one.
        wrong: the share of it that is wrong.
    """
    search = _Search(problem)
    found = search.past(failure) if failure else Fit(problem)
    if found is None and failure:
        failure.way_out = "; ".join(filter(None, (search.what_came_next, failure.way_out)))
    if found is None:
        return None
    wrong = search.latest.wrong if failure else wrong
    read = search.read(found, wrong) if wrong > WRONG_THROUGHOUT else None
    return read or (found if found.found else None)


def fitted(problem: Problem) -> Fit:
    """The problem, or another one that the target takes in its place. It costs one run at least."""
    came = tried(problem, {})
    return (fit(problem, came.failure, came.wrong) if came.wrong > WRONG_THROUGHOUT else None) or Fit(problem)


class _Search:
    """Tries adaptations on one target, a limited number of times."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._runs = problem, 0
        self.latest = Tried(problem, None, 1.0)
        self._refused: list[tuple[Fit, Failure]] = []

    def _tried(self, fit: Fit, adaptation: Adaptation) -> Tried:
        self._runs += 1
        self.latest = tried(self._problem, {**fit.options, **adaptation.options})
        return self.latest

    def past(self, failure: Failure) -> Fit | None:
        """The fewest adaptations with which the target runs; each on the way leads at least to another refusal."""
        waiting, seen = self._refused, {_about(failure)}
        waiting.append((Fit(self._problem), failure))
        for fit, why in waiting if refuses(failure) else ():
            for adaptation in of_a_refusal(fit.problem.case, self._problem.target, self._given(fit)):
                if self._runs >= _MOST_RUNS:
                    return None
                came = self._tried(fit, adaptation)
                was = f"{adaptation.about} was refused ({_short(str(why))})"
                sentence = f"{was}: it runs with {adaptation.flags}, found by trying"
                further = Fit(came.problem, (*fit.found, (adaptation, sentence)))
                if came.failure is None:
                    if (right := self._mostly_right(self._needed(further))) is not None:
                        return right
                elif refuses(came.failure) and _about(came.failure) not in seen:
                    seen.add(_about(came.failure))
                    waiting.append((further, came.failure))
        return None

    @property
    def what_came_next(self) -> str:
        """What is raised after the first refusal: whoever mends that one meets it next; "" where nothing is."""
        further = [one for one in self._refused[1:] if not _MEANINGS & one[0].options.keys()]
        if not further:
            return ""
        fit, failure = further[-1]
        return f"with {' '.join(flags(fit.options))} it raised {_short(str(failure))}"

    def _mostly_right(self, fit: Fit) -> Fit | None:
        """The fit, or a reading of it; None where its tensors have other axes and nothing shows that these are meant.

        A target that refuses for another reason may run on those, and is not wrong for what comes.
        """
        if not _MEANINGS & fit.options.keys() or self.latest.wrong <= _RIGHT_MOSTLY:
            return fit
        return self.read(fit, self.latest.wrong) or self._right_in_whole_blocks(fit)

    def _right_in_whole_blocks(self, fit: Fit) -> Fit | None:
        """The fit, where most is right at another length: then its axes are right, and errors here are a fault."""
        if self._given(fit) & set(OF_LENGTH):
            return None
        came = self._tried(fit, Adaptation({"seqlen": WHOLE_BLOCKS}, ""))
        return fit if came.wrong <= _RIGHT_MOSTLY else None

    def _needed(self, fit: Fit) -> Fit:
        """The adaptations that the target needs in order to run; the latest run has exactly those."""
        for adaptation, _ in fit.found[:-1]:
            fewer = Fit(fit.problem, tuple(one for one in fit.found if one[0] is not adaptation))
            came = tried(self._problem, fewer.options)
            if came.failure is None:
                fit, self.latest = Fit(came.problem, fewer.found), came
        return fit

    def read(self, fit: Fit, wrong: float) -> Fit | None:
        """The reading under which most elements are right, if there is one; the first of several that are as good."""
        best: tuple[float, Fit] = (_RIGHT_MOSTLY, fit)
        for adaptation in of_a_reading(fit.problem.case, self._problem.target, self._given(Fit(self._problem))):
            if self._runs >= _MOST_RUNS:
                break
            came = self._tried(fit, adaptation)
            if came.wrong < best[0]:
                right = f"{1 - came.wrong:.0%} of its results are right so, {1 - wrong:.0%} otherwise"
                sentence = f"{adaptation.about}, found by trying ({adaptation.flags}): {right}"
                best = (came.wrong, Fit(came.problem, (*fit.found, (adaptation, sentence))))
            if came.wrong < 1 - WRONG_THROUGHOUT:
                break
        return best[1] if best[1] is not fit else None

    def _given(self, fit: Fit) -> set[str]:
        """The options that may not be changed: what the user gave or a file holds, and what was found before."""
        saved = self._problem.saved
        of_a_file = {"head_dim", "dtype", "shapes", *OF_LENGTH, *saved.options} if saved is not None else set()
        return {*self._problem.fixed, *fit.options, *of_a_file}


def _about(refusal: Failure) -> str:
    """The message with every number as 0: refusals that differ in sizes alone are one."""
    return re.sub(r"\d+", "0", str(refusal))


def _short(words: str) -> str:
    said = re.sub(r"^target .*? raised (\w+) \([^()]*\)", r"\1", words)
    return said if len(said) <= _LONGEST_WORDS else said[:_LONGEST_WORDS] + "..."
