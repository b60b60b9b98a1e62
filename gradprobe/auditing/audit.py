"""An audit: a check in float64, on small drawn cases, whose target is a reference of the user's own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch

from ..diagnosis.plain_python import where_it_returns
from ..diagnosis.why import FailedCheck, reasons_of
from ..frontends.python import plain_function
from ..inputs.draw import draw
from ..model.assignment import in_words
from ..model.case import Case
from ..model.failures import Failure, ReferenceFailure, Refusal
from ..model.number import listed
from ..model.report import Diagnosis, causes_among
from ..model.resolution import resolve
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from ..probing.own_reference import WAY_OUT, departure
from ..probing.runs import outcomes_of, records_of
from ..targets.find import Target, find_target
from .calling import RESULTS, SHAPES, CallConvention, ReferenceCall

# Sizes of axes none of which another axis, or a product of two, has: values tell by their shapes what they are of. And
# some references take whole blocks, or powers of two.
_SIZES = (
    {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5},
    {"batch": 1, "heads": 2, "seqlen": 64, "head_dim": 16},
    {"batch": 1, "heads": 2, "seqlen": 128, "head_dim": 64},
)
_OTHER_SCALE = 0.3
# What a function says of its tensors that have no batches, or neither batches nor heads.
_FEWER = r"(?:single|one)[ -]head|[\[(](?:\w+, *){1,2}(?:D|d_k|d_head|head_dim|dim)[\])]"
_MEANINGS = {"keep": "True where a key is seen", "hide": "True where a key is hidden", "additive": "-inf"}


@dataclass(frozen=True)
class Attempt:
    """One run of a reference on a drawn case."""

    how: CallConvention
    sizes: Mapping[str, int]
    experiment: Experiment
    run: LayoutRun
    unfit: Mapping[str, torch.Tensor]
    """The results of another shape than is due."""

    @property
    def case(self) -> Case:
        return self.experiment.case

    @property
    def wrong(self) -> tuple[str, ...]:
        assert self.run.measured is not None
        findings = self.run.measured.comparison.findings
        return tuple(name for name in RESULTS if name in self.unfit or (name in findings and findings[name].mismatched))

    @cached_property
    def causes(self) -> list[Diagnosis]:
        """What a check says is wrong."""
        return causes_among(reasons_of(FailedCheck(self.experiment, [self.run])).diagnoses)

    @property
    def is_right(self) -> bool:
        return self.run.measured is not None and self.run.measured.matches and not self.unfit


@dataclass(frozen=True)
class Audit:
    """What became of a reference."""

    target: Target
    attempt: Attempt
    """Its first wrong run, else the first."""
    runs: tuple[LayoutRun, ...]
    taken: tuple[str, ...]
    """How it is called, and what it does by itself."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """What is wrong with it; empty where nothing is, or nothing is known."""
    known: tuple[str, ...] = ()
    """What is known of results that no diagnosis explains."""

    @property
    def is_right(self) -> bool:
        return self.attempt.is_right


def audit(
    subject: str | Callable[..., Any],
    family: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    seeds: int = 3,
) -> Audit:
    """Calls a reference on small cases, with and without a causal mask, and says what is wrong with it.

    Args:
        subject: the word of a function, or a function.
        options: further options of the cases, by name.
        seeds: how often each setting is drawn.

    Raises:
        UsageFailure: there is no such function, or nothing can be passed for a parameter.
        TargetFailure: it raises in whatever way it is called, or returns nothing that can be told.
    """
    search = ReferenceSearch(find_target(subject, family), options or {})
    best = search.best()
    taken, attempts = [*_taken(search.target, best.how)], [best]
    for how, seed in islice(product(search.settings(best.how), range(seeds)), 1, None):
        try:
            attempts.append(search.attempt(how, best.sizes, seed))
        except Failure as failure:
            taken.append(f"it was not judged {how.setting} with seed {seed}: {failure}")
    runs = tuple(replace(each.run, layout=f"{each.how.setting} seed={each.case.seed}") for each in attempts)
    attempt = next((each for each in attempts if not each.is_right), best)
    found = Audit(search.target, attempt, runs, tuple(taken))
    return found if found.is_right else _explained(found)


def _explained(wrong: Audit) -> Audit:
    """The audit with what a check says of its first wrong run."""
    attempt, found = wrong.attempt, list[Diagnosis]()
    for name, result in attempt.unfit.items():
        words, at = f"what it returns as {name} has the shape {list(result.shape)}", where_it_returns(wrong.target)
        found.append(Diagnosis(f"swap/{name}", "H1", words, 1.0, where=(at,) if at else ()))
    found += attempt.causes
    known = () if found else (f"no known formula gives its {listed(attempt.wrong)}",)
    return replace(wrong, diagnoses=tuple(found), known=known)


def _taken(target: Target, how: CallConvention) -> Iterator[str]:
    """How it is called, and what it does by itself."""
    yield f"{'numpy arrays' if how.library == 'numpy' else 'torch tensors'} of {in_words(how.shapes)}"
    if how.order:
        yield f"its results are taken for {listed(how.order.split())}"
    if how.mask:
        yield f"its mask is {_MEANINGS[how.mask]}"
    elif target.family != "lazy" and "causal" not in target.takes and how.causal:
        yield "it is always causal: it has no parameter for it"
    if how.scale == 1.0:
        yield "its scale is 1, not 1 / sqrt(head dim): it is right for that one"


class ReferenceSearch:
    """Calls one reference in one way after another."""

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self.target, self._options = target, options
        try:
            self._text = inspect.getsource(plain_function(target.function))
        except (OSError, TypeError):
            self._text = ""

    def best(self) -> Attempt:
        """The first that is right, else of those with the fewest wrong results the first that is explained.

        Raises:
            Failure: it raises in every way; the first that is no error of types.
        """
        raised = list[Failure]()
        for sizes in _SIZES:
            attempts = list[Attempt]()
            for how in self._ways():
                first = attempts[0].how if attempts else how
                # With fewer axes only where it does not run with more, or says so.
                is_fewer = len(how.shapes) < len(first.shapes) and not re.search(_FEWER, self._text, re.IGNORECASE)
                if is_fewer or how.library != first.library:
                    continue
                try:
                    attempts.append(self.attempt(how, sizes))
                except Failure as failure:
                    raised.append(failure)
                    continue
                if not attempts[-1].wrong:
                    return attempts[-1]
            if attempts:
                # What is wrong for a scale of 1 too has none by itself: its scale is left out.
                usual = [each for each in attempts if each.how.scale is None] or attempts
                usual.sort(key=lambda each: len(each.wrong))
                return next((each for each in usual if each.unfit or each.causes), usual[0])
        raise next((each for each in raised if not isinstance(each.__cause__, TypeError)), raised[0])

    def _ways(self) -> Iterator[CallConvention]:
        """The likelier first, each with what the reference may do by itself."""
        takes, family, text = self.target.takes, self.target.family, self._text
        libraries = ("numpy", "torch") if re.search(r"\bnp\.|numpy", text) else ("torch", "numpy")
        takes_mask = "mask" in takes or "mask" in takes.get("bias", "")
        masks = ("keep", "hide", "additive", "") if takes_mask and "causal" not in takes else ("",)
        scales = (None,) if family == "lazy" or "scale" in takes else (None, 1.0)
        leaves = re.search(r"\.backward\(|autograd|\.grad\b|vjp", text) is not None and "requires_grad" not in text
        says_causal = "causal" not in takes and re.search(r"tril|triu|causal|mask", text)
        for library, shapes, mask, scale in product(libraries, SHAPES, masks, scales):
            # A causal mask shows what a mask means; without that meaning none is laid.
            settings = (True,) if family == "lazy" or mask else (True, False) if says_causal else (False, True)
            for causal in settings:
                yield CallConvention(library, shapes, mask, leaves, causal=causal, scale=scale)

    def settings(self, how: CallConvention) -> Iterator[CallConvention]:
        """What it is judged with: as it was found, and what else it takes: the other mask, another scale."""
        takes = self.target.takes
        yield how
        if self.target.family != "lazy" and ("causal" in takes or how.mask):
            yield replace(how, causal=not how.causal)
        if "scale" in takes:
            yield replace(how, scale=_OTHER_SCALE)

    def attempt(self, how: CallConvention, sizes: Mapping[str, int], seed: int = 0) -> Attempt:
        """One run; of results without names, by those by which the most are right.

        Raises:
            Failure: it raised, or returned nothing that can be told.
        """
        call, case = ReferenceCall(self.target, how), self._case(how, sizes, seed)
        values = {name: value.double() if value.is_floating_point() else value for name, value in draw(case).items()}
        experiment = Experiment(case, call.target, None, values)
        record = next(iter(records_of(experiment)))
        if record.run.measured is None:
            raise Refusal(f"{self.target.name} refused: {record.run.skipped}")
        found = Attempt(how, sizes, experiment.after(outcomes_of([record])), record.run, call.unfit)
        if how.order or not call.orders or call.unfit:
            return found
        tried = [replace(found, how=replace(how, order=call.orders[0]))]
        for order in call.orders[1:]:
            if not tried[-1].wrong:
                break
            tried.append(self.attempt(replace(how, order=order), sizes, seed))
        return min(tried, key=lambda each: len(each.wrong))

    def _case(self, how: CallConvention, sizes: Mapping[str, int], seed: int) -> Case:
        fewer = {name: 1 for letter, name in (("b", "batch"), ("h", "heads")) if letter not in how.shapes}
        takes_bias = "bias" in self.target.required and not how.mask
        options = {**sizes, **fewer, "bias": takes_bias or None, **self._options, "seed": seed}
        options |= {"causal": how.causal} if self.target.family != "lazy" else {}
        options |= {"scale": how.scale} if how.scale is not None else {}
        case = resolve(options, self.target.family, takes_bias=takes_bias)
        return replace(case, runs=((),), recover=False)


# --- before a check


def audited_target(subject: str | Callable[..., Any], family: str | None) -> Target:
    """The reference that a word or a function is, once it proves right on small cases.

    One that takes none of these is left to the check, which judges it on its own values.

    Raises:
        ReferenceFailure: it is wrong, with its first wrong formula and its line.
        UsageFailure, TargetFailure: from `find_target`.
    """
    try:
        found = audit(subject, family, seeds=1)
    except Failure:
        return find_target(subject, family)
    if found.is_right:
        return ReferenceCall(found.target, found.attempt.how).target
    name, first = found.target.name, found.attempt.run.measured and found.attempt.run.measured.first
    words = f" departs from {departure(found.attempt.case, first)}" if first else f": {'; '.join(found.known)}"
    for cause in found.diagnoses[:1]:
        places = [f" ({Path(at.file).name}:{at.line}: {at.code})" for at in cause.where[:1]]
        words = "".join([f": {cause.summary}", *places])
    way_out = f"gradprobe audit {name} shows it; {WAY_OUT}"
    raise ReferenceFailure(f"the verdict is about the reference: {name}{words}", way_out)
