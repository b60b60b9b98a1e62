"""Taps that cannot show what they say, since the target's own results contradict them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..model.intermediates import GRADIENT_OF, reached
from ..model.number import in_words, spans
from ..numerics.tally import Finding
from ..runtime.taps import Tap
from .experiment import Experiment
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
