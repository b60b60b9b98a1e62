"""Plain Python followed: in a target without kernels, the expression in which the first mistake of a formula shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from msgspec import structs

from ..auditing.explain import Located, explain
from ..auditing.formulas import DUE, due_in
from ..frontends import events
from ..frontends.interface import TORCH
from ..model.case import Case
from ..model.mechanisms import door
from ..model.number import listed
from ..model.report import Diagnosis, Where, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import run_target

# Scores of a case up to which its expressions are copied: the library of forms has some hundreds of them.
_MOST_SCORES = 1 << 16


@door("plain-python", lambda experiment, run, found: [*found])
def with_python_lines(experiment: Experiment, run: LayoutRun, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The diagnoses, the cause with its line; where there is none, the mistake that gives all that is wrong."""
    causes, mistakes = causes_among(found), tuple[Located, ...]()
    if _is_taken(experiment, run) and len(causes) < 2 and not any(cause.where for cause in causes):
        mistakes = _mistakes(experiment, run)
    located = next((each for each in mistakes if each.at is not None), None)
    if located is None or located.at is None:
        return [*found]
    if not causes:
        return [_diagnosis(experiment.case, located, located.at), *found]
    if causes[0].says_wrong and located.mistake.of not in causes[0].says_wrong:
        return [*found]
    return [structs.replace(causes[0], where=(located.at,)), *found[1:]]


def _is_taken(experiment: Experiment, run: LayoutRun) -> bool:
    """Whether a target starts no kernel, and its case is one whose formulas are all in the library."""
    case = experiment.case
    if experiment.first is None or experiment.backends - {TORCH} or case.device != "cpu" or run.layout != "contiguous":
        return False
    if case.sinks or case.dropout or case.alibi or case.seqlens or case.ranks or case.cu_seqlens_q:
        return False
    is_square = case.seqlen_q == case.seqlen_k and case.heads == case.kv_heads
    return is_square and case.dtype == "float32" and case.scores <= _MOST_SCORES


def _mistakes(experiment: Experiment, run: LayoutRun) -> tuple[Located, ...]:
    """What makes all wrong results as they are, in the order of the formulas; nothing where a part is not known.

    The target runs once more; nothing is known of one that then comes to other results.
    """
    assert run.measured is not None
    target, findings, results = experiment.target, run.measured.comparison.findings, dict[str, Any]()
    with events(target.function, target.source.file) as values:
        trace = run_target(target, experiment.case, inputs_of(experiment, run.assigned)).trace
    for name, value in run.measured.raw.values.items():
        if trace is None or name not in trace.values or not torch.equal(trace.values[name], value):
            return ()
        if name in DUE:
            results[name] = value.detach().double().numpy()
    wrong = [name for name in results if name in findings and findings[name].mismatched]
    explanation = explain(run.measured.x, values, results, wrong, by_autograd=not target.is_backward)
    return () if explanation.unexplained else explanation.located


def _diagnosis(case: Case, located: Located, where: Where) -> Diagnosis:
    mistake, due = located.mistake, due_in(case.family).get(located.mistake.of)
    evidence = [f"due: {due}"] if due else []
    evidence.append(f"with it every element of {listed(located.results)} is what came")
    says_wrong = (mistake.of,) if mistake.of in DUE else ()
    fault = f"formula/{mistake.of or 'precision'}"
    return Diagnosis(fault, "A", mistake.came, 1.0, tuple(evidence), (where,), mistake.fix, says_wrong=says_wrong)
