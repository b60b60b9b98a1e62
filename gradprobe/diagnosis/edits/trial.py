"""Trial: a target with an edit in its kernels, run in one layout of one case, in a fork of this process."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...frontends.python.reached import reached_goals
from ...model.failures import Failure, Refusal, fault_words
from ...model.memory_finding import ERROR
from ...numerics.evidence import LayoutRun
from ...probing.compilation import compiles
from ...probing.experiment import Experiment, experiment_of, silent
from ...probing.runs import records_of
from ...processes.startup.gradprobe_shadow import load_from_copy
from ...runtime.allocation_spread import AllocationSpread
from ...source.reach import Goal
from ...targets.find import find_target
from ..cases import Trial


@dataclass(frozen=True)
class EditResult:
    """What comes of a trial."""

    wrong: Mapping[str, int] = field(default_factory=dict)
    """How many elements of each result are."""
    harm: int = 0
    """How many findings about memory count."""
    failure: str = ""
    """Why there is no result."""
    matches: bool = False
    errors: Mapping[str, float] = field(default_factory=dict)
    """The largest error of each result."""
    reached: frozenset[Goal] = frozenset()
    of_dead_rows: tuple[float, ...] = ()
    """What LSE is in rows of O that are 0, as those are that see no key."""
    fault: str = ""
    """What went wrong in gradprobe itself."""

    @property
    def names(self) -> set[str]:
        return {name for name, count in self.wrong.items() if count}

    def is_better_than(self, other: EditResult) -> bool:
        """Whether some result has come right, or most of its wrong elements, and nothing has become wrong."""
        here, there = Counter(self.wrong), Counter(other.wrong)
        is_less = here <= there and (
            2 * here.total() <= there.total() if other.names else self.harm < other.harm
        )
        return self.is_no_worse_than(other) and (self.names < other.names or is_less)

    def is_no_worse_than(self, other: EditResult) -> bool:
        """Whether nothing has become wrong."""
        return not self.failure and self.harm <= other.harm and self.names <= other.names


def run_trial(
    experiment: Experiment, file: str, copy: Path, modules: Sequence[str], trial: Trial
) -> EditResult:
    """Runs a trial, in this process, which takes the copy for the file from now on.

    Args:
        modules: those that hold anything of the file, from `holding`.
    """
    try:
        own = begun(experiment, file, copy, modules, trial)
        own = _spread(own) if trial.is_spread else own
        with reached_goals(str(copy), trial.traced) as reached:
            record = next(records_of(own))
        if record.run.measured is None:
            return EditResult(failure=record.run.skipped or "it was refused")
        if trial.is_lowered and not compiles(record):
            return EditResult(failure="it runs in the interpreter alone")
        return replace(result_of(record.run), reached=frozenset(reached))
    except Failure as failure:
        return EditResult(failure=str(failure) or type(failure).__name__)
    except Exception as error:
        return EditResult(failure="gradprobe failed", fault=fault_words(error))


def begun(
    experiment: Experiment, file: str, copy: Path, modules: Iterable[str], trial: Trial
) -> Experiment:
    """The experiment of a trial; its target is imported anew, from the copy."""
    load_from_copy(file, str(copy), os.devnull)
    for name in modules:
        sys.modules.pop(name, None)
    target = find_target(experiment.target.name, experiment.target.family)
    alone = replace(trial.case, layouts=trial.assigned, runs=(), repeat=1)
    saved = experiment.saved if trial.case.inputs is not None else None
    return experiment_of(alone, target, experiment.reference, saved, tick=silent)


def _spread(experiment: Experiment) -> Experiment:
    """The experiment with what the target allocates laid apart; Refusal where it asks for the strides of none."""
    spread = AllocationSpread()
    next(records_of(replace(experiment, spread=spread)))
    if not spread.lay():
        raise Refusal("it asks for no strides of what it allocates")
    return replace(experiment, spread=spread)


def result_of(run: LayoutRun) -> EditResult:
    """What came of a run."""
    harm = sum(finding.severity == ERROR for finding in run.memory)
    if run.measured is None:
        return EditResult(harm=harm)
    findings, values = run.measured.comparison.findings.values(), run.measured.trace.values
    o, lse, dead = values.get("O"), values.get("LSE"), set[float]()
    if o is not None and lse is not None and lse.shape == o.shape[:-1]:
        dead = set(lse[(o == 0).all(-1)].nan_to_num(nan=1e9).tolist())
    return EditResult(
        {finding.name: finding.mismatched for finding in findings},
        harm,
        matches=run.matches,
        errors={finding.name: finding.max_abs_err for finding in findings},
        of_dead_rows=tuple(sorted(dead)),
    )
