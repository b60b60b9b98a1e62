"""Small second cases of a target that matches: what its own case did not use is tried, or listed as not checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from ..inputs.draw import draw
from ..inputs.options import flags, with_others
from ..model.allowance import LAST_RESORT
from ..model.failures import Failure, NoRoom, UsageFailure
from ..model.mechanisms import door
from ..model.memory_finding import ERROR
from ..model.number import LAMBDA
from ..numerics.evidence import LayoutRun, Probed
from ..numerics.range import out_of_range
from ..numerics.tally import Finding
from ..probing.compilation import Compilation
from ..probing.experiment import Tick
from ..processes.forks import ParallelWork, may_fork
from .abilities import Ability, unused_abilities
from .fit import TrialRun, refuses, tried
from .probe import probed
from .resolve import Problem

# What comes of a small case. What is DOUBTFUL is wrong, and nothing shows that the target is meant to take it.
RIGHT, REFUSED, WRONG, DOUBTFUL, UNTRIED = "right", "refused", "wrong", "doubtful", "untried"
# Seconds after which a fork is given up: a kernel that does not take a case may never end. What it left is not checked.
_PATIENCE = LAST_RESORT


def _second_cases(problem: Problem) -> tuple[dict[Ability, str], Ability | None]:
    """What comes of a small case of each ability that the problem's own case does not use, and the first that is wrong.

    Wrong is also one with which a kernel does not compile. On a GPU only what compiles nothing anew is run. What no
    parameter tells is run in a fork: a kernel that does not take it may leave its memory and end its process.
    """
    on_cpu = problem.case.device == "cpu"
    abilities = unused_abilities(problem)
    tried_here = [one for one in abilities if one.options and one.is_plain and (on_cpu or one.compiles_nothing)]
    forks = on_cpu and not problem.target.surroundings.sets_threads
    apart = [one for one in abilities if one.options and not one.is_plain and forks]
    with ExitStack() as stack:
        fork = stack.enter_context(ParallelWork(partial(_outcomes, problem, apart))) if apart and may_fork() else None
        lowered: dict[Ability, Compilation] = {}
        came = _in_few_cases(problem, tried_here, lowered, stack)
        others = (fork.answer(_PATIENCE) or _each_apart(problem, apart)) if fork else _outcomes(problem, apart)
        uncompiled = [ability for ability, compilation in lowered.items() if compilation.result()[0]]
    came |= dict(zip(apart, others, strict=True))
    wrong = next(iter([*(one for one in abilities if came.get(one) == WRONG), *uncompiled]), None)
    return {ability: came.get(ability, UNTRIED) for ability in abilities}, wrong


@door("second-cases", lambda report, problem, *args: (report, problem))
def with_second_cases(report: Probed, problem: Problem, tick: Tick, *more: Any) -> tuple[Probed, Problem]:
    """The report of a problem with what it leaves unchecked; that of a small second case instead, where that is wrong.

    Args:
        more: as `probed` takes it behind `tick`.

    Raises:
        Failure: from `probed`, of a second case.
    """
    if report.failing is not None:
        return report, problem
    tick("small second cases", 0.0)
    came, wrong = _second_cases(problem)
    not_checked, undeclared = (
        tuple(dict.fromkeys(ability.sentence for ability, what in came.items() if what == asked))
        for asked in (UNTRIED, DOUBTFUL)
    )
    report = replace(report, not_checked=not_checked, undeclared=undeclared)
    if wrong is None:
        return report, problem
    options, words = wrong.options, f"{wrong.words}: {' '.join(flags(wrong.options))}"
    command = with_others(report.reproduce, options, options)
    try:
        second, of = probed(problem.with_options(options), command, tick, *more)
    except Failure as failure:
        failure.way_out = "; ".join(filter(None, (f"right as it was asked for, this is with {words}", failure.way_out)))
        raise
    if second.failing is None and not second.compile_errors:
        return replace(report, notes=(*report.notes, f"wrong once, and right when run again, with {words}")), problem
    return replace(second, beyond=words, added=options), of


def _in_few_cases(
    problem: Problem, abilities: Sequence[Ability], lowered: dict[Ability, Compilation], stack: ExitStack
) -> dict[Ability, str]:
    """What comes of each; whether its kernels compile is asked meanwhile.

    Those that may stand beside one another are tried apart only where they are not right so.
    """
    found: dict[Ability, str] = {}
    for name in dict.fromkeys(one.beside or one.words for one in abilities):
        some = [one for one in abilities if (one.beside or one.words) == name]
        # The first has the sizes.
        options = {option: word for one in reversed(some) for option, word in one.options.items()}
        together = [replace(some[0], options=options)] if len(some) > 1 else []
        for ability in (*together, *some):
            if ability in found:
                continue
            came = tried(problem, ability.options)
            if came.record is not None:
                lowered[ability] = stack.enter_context(Compilation())
                lowered[ability].begin(came.record)
            what = _outcome(ability, came)
            found |= dict.fromkeys(some if ability in together and what == RIGHT else [ability], what)
    return found


def _each_apart(problem: Problem, abilities: Sequence[Ability]) -> list[str]:
    """What comes of each in a fork of its own; what ends one of them is not tried."""
    found = []
    for ability in abilities:
        with ParallelWork(partial(_outcomes, problem, [ability])) as fork:
            found += fork.answer(_PATIENCE) or [UNTRIED]
    return found


def _outcomes(problem: Problem, abilities: Sequence[Ability]) -> list[str]:
    return [_outcome(ability, tried(problem, ability.options)) for ability in abilities]


def _outcome(ability: Ability, came: TrialRun) -> str:
    """What comes of a small case. A crash or a result of a wrong shape is wrong where the ability is plain."""
    if came.failure is not None:
        if isinstance(came.failure, (UsageFailure, NoRoom)):
            return UNTRIED
        return REFUSED if refuses(came.failure) else WRONG if ability.is_plain else DOUBTFUL
    if came.matches or (came.run is not None and _is_coarse(came.run)):
        return RIGHT
    if out_of_range(came.problem.case, draw(came.problem.case, came.problem.case.device)):
        return UNTRIED
    right = {name for name, finding in _findings(came.run).items() if not finding.mismatched}
    return WRONG if ability.is_plain or right & set(ability.shown_by) else DOUBTFUL


def _is_coarse(run: LayoutRun) -> bool:
    """Whether all that is wrong may be a coarser arithmetic's: what is asked is whether an ability is taken at all."""
    is_clean = all(finding.severity != ERROR for finding in run.memory)
    return is_clean and all(finding.max_ratio <= LAMBDA for finding in _findings(run).values())


def _findings(run: LayoutRun | None) -> Mapping[str, Finding]:
    return run.measured.comparison.findings if run is not None and run.measured is not None else {}
