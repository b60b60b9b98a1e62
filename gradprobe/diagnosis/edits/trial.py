"""Trial: a target with an edit in its kernels, run in one layout of one case, in a fork of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from ...frontends.python.reached import reached_goals
from ...model.failures import Failure
from ...model.memory_finding import ERROR
from ...numerics.evidence import LayoutRun
from ...probing.compilation import compiles
from ...probing.experiment import Experiment, experiment_of, silent
from ...probing.runs import records_of
from ...processes.startup.gradprobe_shadow import load_from_copy
from ...source.reach import Goal
from ...targets.find import Target, find_target
from ...targets.naming import module_of
from ..cases import Trial


@dataclass(frozen=True)
class EditResult:
    """What comes of a trial."""

    wrong: Mapping[str, int] = field(default_factory=dict)
    """How many elements of each result are wrong; 0 of one that is right."""
    harm: int = 0
    """How many findings about memory count."""
    failure: str = ""
    """Why there is no result; "" where there is one."""
    matches: bool = False
    errors: Mapping[str, float] = field(default_factory=dict)
    """The largest error of each result."""
    reached: frozenset[Goal] = frozenset()
    """What it came to of the functions that were traced."""
    of_dead_rows: tuple[float, ...] = ()
    """What LSE is in rows of O that are 0, as those are that see no key."""

    @property
    def names(self) -> set[str]:
        """The results that are wrong."""
        return {name for name, count in self.wrong.items() if count}

    def is_better_than(self, other: EditResult) -> bool:
        """Whether some result has come right, or most of its wrong elements, and nothing has become wrong."""
        if not self.is_no_worse_than(other):
            return False
        if self.names < other.names:
            return True
        if any(count > other.wrong.get(name, 0) for name, count in self.wrong.items()):
            return False
        if not other.names:
            return self.harm < other.harm
        return sum(self.wrong.values()) <= sum(other.wrong.values()) // 2

    def is_no_worse_than(self, other: EditResult) -> bool:
        """Whether nothing has become wrong."""
        return not self.failure and self.harm <= other.harm and self.names <= other.names


def run_trial(experiment: Experiment, file: str, copy: Path, modules: Sequence[str], trial: Trial) -> EditResult:
    """Runs a trial, in this process, which takes the copy for the file from now on.

    Args:
        modules: those that hold anything of the file, from `holding`.
    """
    try:
        own = begun(experiment, file, copy, modules, trial)
        with reached_goals(str(copy), trial.traced) as reached:
            record = next(records_of(own))
    except Failure as failure:
        return EditResult(failure=str(failure) or type(failure).__name__)
    run = record.run
    if run is None or run.measured is None:
        return EditResult(failure=(run and run.skipped) or "it was refused")
    if trial.is_lowered and not compiles(record):
        return EditResult(failure="it runs in the interpreter alone")
    return replace(result_of(run), reached=frozenset(reached))


def begun(experiment: Experiment, file: str, copy: Path, modules: Sequence[str], trial: Trial) -> Experiment:
    """The experiment of a trial; its target is loaded anew, from the copy."""
    target = _loaded(experiment.target, file, copy, modules)
    alone = replace(trial.case, layouts=trial.assigned, runs=(), repeat=1)
    saved = experiment.saved if trial.case.inputs is not None else None
    return experiment_of(alone, target, experiment.reference, saved, tick=silent)


def result_of(run: LayoutRun) -> EditResult:
    """What came of a run that was measured."""
    findings = run.measured.comparison.findings if run.measured is not None else {}
    values = run.measured.trace.values if run.measured is not None else {}
    o, lse, dead = values.get("O"), values.get("LSE"), set[float]()
    if o is not None and lse is not None and lse.shape == o.shape[:-1]:
        dead = set(lse[(o == 0).all(-1)].nan_to_num(nan=1e9).tolist())
    return EditResult(
        wrong={name: finding.mismatched for name, finding in findings.items()},
        harm=sum(finding.severity == ERROR for finding in run.memory),
        matches=run.matches,
        errors={name: finding.max_abs_err for name, finding in findings.items()},
        of_dead_rows=tuple(sorted(dead)),
    )


def _loaded(target: Target, file: str, copy: Path, modules: Sequence[str]) -> Target:
    """The target imported anew, with its package; what else is imported stays.

    What a package's other modules keep is of the kernels that ran. One that may not be imported twice, since it
    registers operators, stays as it is.
    """
    load_from_copy(file, str(copy), os.devnull)
    before = dict(sys.modules)
    _forget(modules)
    try:
        return find_target(target.name, target.family)
    except Failure:
        sys.modules.update(before)
        _forget(holding(file, whole=False))
        return find_target(target.name, target.family)


def _forget(modules: Sequence[str]) -> None:
    for name in modules:
        sys.modules.pop(name, None)


_LIBRARIES = ("torch", "triton", "numpy", "__main__", *sys.stdlib_module_names)


def holding(file: str, *, whole: bool = True) -> list[str]:
    """The modules that were made of a file, and those that hold anything of theirs.

    Args:
        whole: whether with all others of their packages.
    """
    path, found, more = Path(file).resolve(), set[str](), set[str]()
    others = {name: module for name, module in list(sys.modules.items()) if _may_hold(name, module)}
    for name, module in others.items():
        if Path(str(vars(module).get("__file__"))).resolve() == path:
            more.add(name)
    while more:
        found |= more
        packages = {name.partition(".")[0] for name in found} if whole else set()
        more = set()
        for name in others.keys() - found:
            if name.partition(".")[0] in packages or _holds(others[name], found):
                more.add(name)
    return sorted(found)


def _may_hold(name: str, module: object) -> bool:
    """Whether a module is neither a library nor gradprobe's own: its kernels and adapters are targets."""
    own = name.partition(".")[0]
    is_tool = own == "gradprobe" and not name.startswith(("gradprobe.kernels", "gradprobe.targets.adapters"))
    return isinstance(module, ModuleType) and not is_tool and own not in _LIBRARIES


def _holds(module: ModuleType, names: set[str]) -> bool:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else module_of(value)
        # A package has its modules as attributes, which are set anew.
        is_own = isinstance(value, ModuleType) and name.startswith(f"{module.__name__}.")
        if name in names and not is_own:
            return True
    return False
