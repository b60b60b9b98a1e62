"""Attempts: runs cases through a trial, in this process or each in one of its own, and remembers every outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..cases.case import Case
from ..failures import Failure, TargetFailure, UsageFailure
from ..isolation import Crash, run_each
from ..last import Asked
from .fewest import Facts, fewest_words
from .steps import Step
from .symptom import CRASH, Seen, Symptom
from .trial import FACTORY, TRY, TRY_IN_FULL, Order, Trial

CRASHED = Symptom(CRASH, CRASH)


class TargetCrashed(TargetFailure):
    """The process that ran the target crashed or timed out, where a crash is not a way to fail."""


@dataclass
class Attempts:
    """Tries cases of one target, none of them twice, and no more than were allowed."""

    asked: Asked
    alone: bool
    """Whether each order is carried out in a process that may crash."""
    timeout: float | None
    most: int
    """How many tries there may be."""
    echo: Callable[[str], object]
    count: int = 0
    known: dict[Case, Seen] = field(default_factory=dict)
    _trial: Trial | None = None

    def ask(self, what: str, options: Mapping[str, Any]) -> Any:
        """Carries out one order, of any kind.

        Raises:
            Failure: from the trial; where the process that ran it died, TargetCrashed.
        """
        (result,) = self._carried_out([Order(what, options)])
        if isinstance(result, Crash):
            raise TargetCrashed(f"target {self.asked.target!r} crashed: {result.words}")
        return result

    def seen(
        self, steps: Sequence[Step], facts: Facts, kept: Mapping[str, Any], wanted: Symptom, *, in_full: bool
    ) -> Iterator[tuple[Step, Seen]]:
        """The outcome of each step, in order. A case seen before takes no try; no more than `most` tries are made.

        Args:
            kept: words that stand in each case.
            in_full: whether the symptom shows only in a whole check, with second runs and a look inside.
        """
        named = [(step, fewest_words(step.case, facts, kept)) for step in steps]
        left = [(step, words) for step, words in named if words is not None]
        fresh = [(step, words) for step, words in left if step.case not in self.known]
        what = TRY_IN_FULL if in_full else TRY
        results = self._carried_out([Order(what, words) for _, words in fresh[: max(0, self.most - self.count)]])
        for step, words in left:
            if step.case not in self.known:
                result = next(results, None)
                if result is None:
                    return
                self.count += 1
                self.known[step.case] = self._named(_as_seen(result), words, wanted, in_full=in_full)
            yield step, self.known[step.case]

    def _named(self, seen: Seen, words: Mapping[str, Any], wanted: Symptom, *, in_full: bool) -> Seen:
        """The outcome; with its cause where all but the cause is as wanted, and a cause is wanted."""
        like = seen.symptom is not None and seen.symptom.is_like(wanted)
        if not like or wanted.fault is None or in_full or seen.symptom is None:
            return seen
        whole = _as_seen(next(self._carried_out([Order(TRY_IN_FULL, words)])))
        fault, alike = (whole.symptom.fault, whole.symptom.alike) if whole.symptom else (None, ())
        return Seen(replace(seen.symptom, fault=fault, alike=alike))

    def _carried_out(self, orders: Sequence[Order]) -> Iterator[Any]:
        if not self.alone:
            self._trial = self._trial or Trial(self.asked)
            yield from map(self._trial, orders)
            return
        for ended in run_each(FACTORY, self.asked, orders, timeout=self.timeout, echo=self.echo) if orders else ():
            if ended.raised is not None:
                kind = UsageFailure if ended.raised.exit_code == UsageFailure.exit_code else Failure
                raise kind(ended.raised.message, ended.raised.way_out)
            yield ended.crash or ended.result


def _as_seen(result: Any) -> Seen:
    if isinstance(result, Crash):
        return Seen(CRASHED)
    assert isinstance(result, Seen)
    return result
