"""Survey: every trial of a target, in a process of its own, so that a layout that crashes it loses no other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..failures import Failure, TargetFailure, UsageFailure
from ..isolation import Ended, Raised, run_each
from ..isolation.ended import DEVICE
from ..last import Asked
from ..severity import ERROR, WARNING
from ..smaller import for_the_interpreter
from ..verdict import MATCH, MISMATCH
from .culprits import Culprit
from .hazards import Hazard, hazards
from .result import NOT_RUN, Plan, Result, Setup
from .trials import ALONE, CONTIGUOUS, EXPANDED, PROGRAM, TOGETHER

# More numbers than any case has trials: how many there are is known with the plan.
_MOST = 10_000
# What is simplest to look at first.
_SIMPLEST = (ALONE, PROGRAM, TOGETHER)


@dataclass(frozen=True)
class Survey:
    """What came of it, so far or in the end."""

    plan: Plan
    results: tuple[Result, ...]
    """The contiguous one first."""
    culprits: tuple[Culprit, ...]
    again: str
    seconds: Mapping[str, float]

    @property
    def verdict(self) -> str:
        if self.wrong:
            return MISMATCH
        return NOT_RUN if self.having(NOT_RUN) else MATCH

    @property
    def exit_code(self) -> int:
        return {MATCH: 0, MISMATCH: 1, NOT_RUN: 3}[self.verdict]

    @property
    def wrong(self) -> list[Result]:
        """The trials that are wrong: the contiguous one first, then those that have a place, the simplest before.

        One that ended its process is wrong where it is known what the kernels did there.
        """
        wrong = [each for each in self.results if each.verdict == MISMATCH or each.strays]
        return sorted((each for each in wrong if not each.is_warning), key=_simplicity)

    def having(self, verdict: str) -> list[Result]:
        """The trials of one verdict, but for those that are warnings."""
        return [result for result in self.results if result.verdict == verdict and not result.is_warning]

    @property
    def warnings(self) -> list[Hazard]:
        """What is told and does not count."""
        return [hazard for hazard in hazards(self.results) if hazard.severity == WARNING]


def _simplicity(result: Result) -> tuple[bool, bool, int]:
    return result.trial.title != CONTIGUOUS, not result.line, _SIMPLEST.index(result.trial.kind)


def survey(
    asked: Asked,
    again: str,
    *,
    given: frozenset[str],
    fast: bool,
    timeout: float | None,
    workers: int = 1,
    told: Callable[[Survey], None],
    echo: Callable[[str], object],
) -> Survey:
    """Tries a target under every layout.

    Args:
        again: the command line that repeats it.
        given: the options of it that a user gave; what the others say may be replaced by what the target takes.
        fast: fewer layouts of each tensor alone, and most with NaN around them alone.
        timeout: seconds for one trial; None for no limit.
        workers: processes that share the trials.
        told: what is known after each trial.
        echo: what the target prints.

    Raises:
        Failure: the target cannot be run contiguous.
    """
    start, setup = time.perf_counter(), Setup(asked, again, fast, given)
    plan: Plan | None = None
    came: dict[int, Ended] = {}
    ends = run_each(f"{__package__}.worker:Trials", setup, range(_MOST), timeout=timeout, workers=workers, echo=echo)
    with contextlib.closing(ends):  # type: ignore[type-var]
        for ended in ends:
            came[ended.index] = ended
            plan = _plan_of(came[0]) if plan is None and 0 in came else plan
            if plan is not None:
                found = _so_far(plan, came, again, time.perf_counter() - start)
                if found.results:  # the plan alone is no news, and no verdict
                    told(found)
                if len(found.results) == len(plan.trials):
                    break
    lost = [plan.trials[index - 1].title for index, ended in came.items() if index and _is_lost(ended)] if plan else []
    blaming = replace(setup, asked=for_the_interpreter(asked)) if lost else setup
    if lost:
        found = replace(found, results=_in_the_interpreter(blaming, found.results, lost, timeout, echo))
        told(found)
    found = replace(found, results=_weighed(setup, found, timeout, echo))
    found = replace(found, culprits=_blamed(blaming, found, timeout, echo))
    return replace(found, seconds={"total": time.perf_counter() - start})


def _so_far(plan: Plan, came: Mapping[int, Ended], again: str, seconds: float) -> Survey:
    """What is known of the trials that came, in the order of the plan."""
    results = [_result_of(came[number], plan) for number in range(1, len(plan.trials) + 1) if number in came]
    return Survey(plan, tuple(results), (), f"{again} {plan.more}".rstrip(), {"total": seconds})


def _plan_of(ended: Ended) -> Plan:
    if ended.raised is not None:
        raise _failure_of(ended.raised)
    if ended.crash is not None:
        raise TargetFailure(f"the target crashed on contiguous tensors: {ended.crash.words}{ended.crash.where}")
    assert isinstance(ended.result, Plan)
    return ended.result


def _failure_of(raised: Raised) -> Failure:
    kind = UsageFailure if raised.exit_code == UsageFailure.exit_code else TargetFailure
    return kind(raised.message, raised.way_out)


def _result_of(ended: Ended, plan: Plan) -> Result:
    if isinstance(ended.result, Result):
        return ended.result
    trial = plan.trials[ended.index - 1]
    words = ended.crash.words if ended.crash else ended.raised.message if ended.raised else ""
    return Result(trial, NOT_RUN, words=words)


def _is_lost(ended: Ended) -> bool:
    return ended.crash is not None and ended.crash.kind == DEVICE


def _in_the_interpreter(
    setup: Setup, results: tuple[Result, ...], lost: Sequence[str], timeout: float | None, echo: Callable[[str], object]
) -> tuple[Result, ...]:
    """The results; those of layouts that cost the GPU with what the interpreter's watch sees the kernels do in them."""
    ends = run_each(f"{__package__}.worker:Named", setup, lost, timeout=timeout, echo=echo)
    seen = {ended.item: ended for ended in ends}
    return tuple(
        _explained(result, seen[result.trial.title]) if result.trial.title in seen else result for result in results
    )


def _explained(crashed: Result, seen: Ended) -> Result:
    watched = seen.result if isinstance(seen.result, Result) else None
    strays = watched.strays if watched else ()
    if watched and strays:
        return replace(crashed, strays=strays, hazard=watched.hazard, severity=watched.severity)
    why = seen.crash.words if seen.crash else seen.raised.message if seen.raised else watched.words if watched else ""
    return replace(crashed, words=f"{crashed.words}; the same layout run small on the CPU {_shows(why)}")


def _shows(why: str) -> str:
    return f"could not be run: {why}" if why else "shows no access that a GPU would not allow"


def _weighed(setup: Setup, found: Survey, timeout: float | None, echo: Callable[[str], object]) -> tuple[Result, ...]:
    """The results, those weighed that a process could not weigh itself because they ended it."""
    ended = [result for result in found.having(NOT_RUN) if result.trial.hazard]
    weighed = run_each(f"{__package__}.worker:Trials", setup, ended, timeout=timeout, echo=echo) if ended else ()
    others = {each.item.trial.title: each.result for each in weighed if each.result is not None}
    return tuple(others.get(result.trial.title, result) for result in found.results)


def _blamed(setup: Setup, found: Survey, timeout: float | None, echo: Callable[[str], object]) -> tuple[Culprit, ...]:
    """What is to blame, where a layout is; a crash while it is sought leaves the verdict as it is."""
    known = tuple(hazard.culprit for hazard in hazards(found.results) if hazard.severity == ERROR)
    failing = [result for result in found.results if result.is_failing]
    if all(result.hazard for result in failing):
        return known
    fine = [result for result in found.having(MATCH) if _shows_strides(result)]
    titles = tuple([result.trial.title for result in results] for results in (failing, fine))
    limit = None if timeout is None else timeout * len(found.results)
    ended = next(run_each(f"{__package__}.worker:Blame", setup, [titles], timeout=limit, echo=echo))
    return (*(ended.result or ()), *known)


def _shows_strides(result: Result) -> bool:
    """Whether a fault of strides would show: copies hide it, and values that are all equal."""
    return not result.copied and all(layout != EXPANDED for _, layout in result.trial.assigned)
