"""Whether a cause found in one run explains the other failing runs; where it does not, another one is sought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from ..diagnosis import NAMED
from ..faults.hypothesis import Hypothesis
from ..faults.table import hypotheses
from ..probing.experiment import Experiment, inputs_of
from ..verdict import Run
from .confirm import causes
from .diagnose import Tested
from .observed import Observed, observed
from .testing import Tester, merged


def other_causes(experiment: Experiment, named: Tested, others: Sequence[Run]) -> list[tuple[Run, Observed, Tested]]:
    """What else explains a run that the cause leaves unexplained; the fault that is new stands first."""
    known = {hypothesis.fault for hypothesis in named.hypotheses}
    found: list[tuple[Run, Observed, Tested]] = []
    for run in others:
        assert run.measured is not None
        seen = observed(experiment.case, run.measured, inputs_of(experiment, run.assigned).tensors)
        if _explain(seen, known):
            continue
        best = next((one for one in causes(experiment, run.assigned, seen) if one.explained >= NAMED), None)
        new = [] if best is None else [one for one in best.hypotheses if one.fault not in known]
        if best is not None and new:
            rest = [one for one in best.hypotheses if one.fault in known]
            found.append((run, seen, replace(best, hypotheses=(*new, *rest))))
            known |= {one.fault for one in new}
    return found


def _explain(seen: Observed, faults: set[str]) -> bool:
    """Whether faults that are known explain a run: one of them alone, or two together."""
    tester, same = Tester(seen), dict[str, list[Hypothesis]]()
    for one in hypotheses(seen):
        if one.fault in faults:
            same.setdefault(one.fault, []).append(one)
    best = [max(forms, key=lambda one: tester.fully(one).explained) for forms in same.values()]
    alone = [tester.fully(one) for one in best]
    if any(one.explained >= NAMED for one in alone):
        return True
    pairs = ((one, two) for one, two in combinations(range(len(best)), 2))
    return any(
        merged([alone[one], alone[two], tester.fully(best[one], best[two])]).explained >= NAMED for one, two in pairs
    )
