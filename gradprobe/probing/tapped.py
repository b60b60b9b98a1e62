"""Taps that show what they say: which of those that are proposed do, and which of those that were given cannot."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..model.allowance import Allowance
from ..model.assignment import Assigned
from ..model.failures import Failure
from ..model.intermediates import GRADIENT_OF, reached
from ..model.number import in_words, spans
from ..numerics.evidence import LayoutRun
from ..numerics.tally import Finding
from ..processes.forks import Forks
from ..runtime.run import Outcome
from ..runtime.taps import Tap, parse_tap, propose
from .experiment import Experiment, inputs_of, measure, silent
from .observe import execute
from .runs import RunRecord


def refuse_wrong_taps(experiment: Experiment, record: RunRecord) -> None:
    """Does nothing where what was tapped is right, or as wrong as what the target made of it.

    Raises:
        UsageFailure: it is wrong where nothing was stored in a whole head, or where every gradient made of it is right.
    """
    measured = record.run.measured if record.run is not None else None
    if measured is None or not record.executions:
        return
    findings, outcome = measured.comparison.findings, record.executions[0].outcome
    for tap in experiment.taps:
        wrong = findings[tap.intermediate].wrong > 0
        lacking = wrong & outcome.unstored.get(tap.intermediate, torch.zeros(()).bool())
        if bool(lacking.any()):
            words = f": {tap.intermediate} is wrong in {_heads(lacking)}, where it stored nothing: the tap is wrong"
            raise tap.failure(words, "index it by the head that its rows are of; without it the target is judged alone")
        made = [finding for name, finding in findings.items() if name in _made_of(tap, experiment.case.family)]
        if made and bool((against := wrong & ~_wrong_in_any(made, wrong)).any()):
            right = " and ".join(finding.name for finding in made)
            words = (
                f": {tap.intermediate} is wrong in {_heads(against)}, and {right}, made of it, right: the tap is wrong"
            )
            raise tap.failure(words, "it stores something else, or elsewhere: see its variable, and each index")


def _heads(of: Tensor) -> str:
    heads = spans(of.any(0).nonzero().flatten().tolist())
    return "every head" if bool(of.any(0).all()) else f"head {in_words(heads)}"


def _made_of(tap: Tap, family: str) -> set[str]:
    """The gradients of q, k and v that an intermediate goes into."""
    return {*reached((tap.intermediate,), family)} & {GRADIENT_OF[name] for name in "qkv"}


def _wrong_in_any(findings: Sequence[Finding], heads: Tensor) -> Tensor:
    """[B, H] in which heads one of some gradients is wrong; those of key heads in each of their heads."""
    each = [one.wrong.repeat_interleave(heads.shape[1] // one.wrong.shape[1], 1) > 0 for one in findings]
    return torch.stack(each).any(0)


def proposal(experiment: Experiment, runs: Sequence[LayoutRun], allowance: Allowance) -> Iterator[str]:
    """The sentence that names taps for a target that is right and hides P or dS; none where no tap shows them rightly.

    Names of variables are what taps are proposed by, and prove nothing. So the target runs once more with them, in a
    fork, and those are named that show every element as the reference has it. None of a target that is compiled.

    Args:
        allowance: none is sought where it counts nothing; one run shows them all, or one for each.
    """
    first, measured = experiment.first, [run for run in runs if run.measured is not None]
    hidden = any(not {"P", "dS"} <= run.measured.trace.values.keys() for run in measured if run.measured)
    if not allowance.count or first is None or not first.interpreted or experiment.taps or not hidden:
        return
    if not (one_each := {word.partition("=")[0]: word for word in reversed(propose(list(first.launched)))}):
        return
    with Forks(1, is_waited_for=True) as forks:
        forks.add("", partial(_right, experiment, list(reversed(one_each.values())), measured[0].assigned))
        answers: list[list[str] | None] = [each for _, each in forks.answers(time.monotonic() + allowance.seconds)]
    if not answers:
        yield f"the search for taps was stopped after {allowance.seconds:.0f} s"
    if words := next(filter(None, answers), None):
        yield f"what its kernels hold can be seen: {' '.join(f'--tap {shlex.quote(word)}' for word in words)}"


def _right(experiment: Experiment, words: Sequence[str], assigned: Assigned) -> list[str]:
    """The taps among some that show every element rightly. Where a run with all of them fails, each has its own."""
    try:
        return _shown(replace(experiment, taps=tuple(map(parse_tap, words)), tick=silent), assigned) if words else []
    except Failure:
        return [word for each in words for word in _right(experiment, [each], assigned)] if len(words) > 1 else []


def _shown(experiment: Experiment, assigned: Assigned) -> list[str]:
    inputs = inputs_of(experiment, assigned)
    outcome: Outcome = execute(experiment, inputs).outcome
    if outcome.trace is None:
        return []
    findings = measure(experiment, inputs, outcome.trace).comparison.findings
    return [tap.word for tap in experiment.taps if not findings[tap.intermediate].mismatched]
