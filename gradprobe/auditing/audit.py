"""A check in float64, on small drawn cases, whose target is a reference of the user's own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from ..diagnosis.plain_python import where_it_returns
from ..diagnosis.why import FailedCheck, reasons_of
from ..frontends import plain_function
from ..inputs.draw import draw, in_float64
from ..model.assignment import in_words
from ..model.case import Case
from ..model.failures import Failure, ReferenceFailure, Refusal
from ..model.number import listed
from ..model.report import Diagnosis, causes_among
from ..model.resolution import resolve
from ..numerics.evidence import LayoutRun, MeasuredRun
from ..numerics.locate import departure
from ..probing.experiment import Experiment
from ..probing.measure import WAY_OUT
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
_FEWER = r"(?i)(?:single|one)[ -]head|[\[(](?:\w+, *){1,2}(?:D|d_k|d_head|head_dim|dim)[\])]"
_MEANINGS = {
    "keep": "True where a key is seen", "hide": "True where a key is hidden", "additive": "-inf"
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    how: CallConvention
    experiment: Experiment
    run: LayoutRun
    unfit: Mapping[str, Tensor]

    @property
    def case(self) -> Case:
        return self.experiment.case

    @property
    def named_run(self) -> LayoutRun:
        return replace(self.run, layout=f"{self.how.setting} seed={self.case.seed}")

    @property
    def measured(self) -> MeasuredRun:
        assert self.run.measured is not None
        return self.run.measured

    @cached_property
    def right(self) -> dict[str, bool]:
        found = self.measured.comparison.findings
        right = {name: not found[name].mismatched for name in RESULTS if name in found}
        return right | dict.fromkeys(self.unfit, False)

    @property
    def wrong(self) -> tuple[str, ...]:
        return tuple(name for name in RESULTS if not self.right.get(name, True))

    @property
    def is_right(self) -> bool:
        return self.measured.matches and not self.unfit

    @property
    def is_explained(self) -> bool:
        return bool(self.unfit or self.causes)

    @cached_property
    def causes(self) -> list[Diagnosis]:
        return causes_among(reasons_of(FailedCheck(self.experiment, [self.run])).diagnoses)


@dataclass(frozen=True)
class Audit:
    target: Target
    attempt: Attempt
    """Its first wrong run, else the first."""
    runs: tuple[LayoutRun, ...]
    taken: tuple[str, ...]
    """How it is called, and what it does by itself."""
    diagnoses: tuple[Diagnosis, ...] = ()
    known: tuple[str, ...] = ()
    """What is known of results that no diagnosis explains."""


def audit(
    subject: str | Callable[..., Any], family: str | None = None, options: Mapping[str, Any] | None = None,
    *, seeds: int = 3,
) -> Audit:  # fmt: skip
    """Calls a reference on small cases, and says what is wrong with it.

    Args:
        seeds: how often each setting is drawn.

    Raises:
        UsageFailure, TargetFailure: it is not there, cannot be called, or its results cannot be named.
    """
    search = ReferenceSearch(find_target(subject, family), options or {})
    best = search.best()
    taken, attempts = [*_taken(search.target, best.how)], [best]
    for how, seed in islice(product(search.settings(best.how), range(seeds)), 1, None):
        try:
            attempts.append(search.attempt(how, seed))
        except Failure as failure:
            taken.append(f"it was not judged {how.setting} with seed {seed}: {failure}")
    runs = tuple(map(attrgetter("named_run"), attempts))
    wrong = next((each for each in attempts if not each.is_right), None)
    if wrong is None:
        return Audit(search.target, best, runs, tuple(taken))
    found, at = list[Diagnosis](), where_it_returns(search.target)
    for name, result in wrong.unfit.items():
        words = f"what it returns as {name} has the shape {list(result.shape)}"
        found.append(Diagnosis(f"swap/{name}", "H1", words, 1.0, where=(at,) if at else ()))
    found += wrong.causes
    known = () if found else (f"no known formula gives its {listed(wrong.wrong)}",)
    return Audit(search.target, wrong, runs, tuple(taken), tuple(found), known)


def _taken(target: Target, how: CallConvention) -> Iterator[str]:
    yield f"{'numpy arrays' if how.library == 'numpy' else 'torch tensors'} of {in_words(how.shapes)}"
    if how.order:
        yield f"its results are taken for {listed(how.order.split())}"
    if how.mask:
        yield f"its mask is {_MEANINGS[how.mask]}"
    elif how.causal and target.family != "lazy" and "causal" not in target.takes:
        yield "it is always causal: it has no parameter for it"
    if how.scale == 1.0:
        yield "its scale is 1, not 1 / sqrt(head dim): it is right for that one"


class ReferenceSearch:
    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self.target, self._options, self._is_lazy = target, options, target.family == "lazy"
        self._sizes = _SIZES[0]
        try:
            self._text = inspect.getsource(plain_function(target.function))
        except (OSError, TypeError):
            self._text = ""

    def best(self) -> Attempt:
        """The first that is right, or explained with a right result; else one that is explained, or has one."""
        raised, says_fewer = list[Failure](), re.search(_FEWER, self._text)
        libraries = ["numpy", "torch"]
        if not re.search(r"\bnp\.|numpy", self._text):
            libraries.reverse()
        for self._sizes, library in product(_SIZES, libraries):
            attempts = list[Attempt]()
            for how in self._ways(library):
                # With fewer axes only where it does not run with more, or says so.
                if attempts and len(how.shapes) < len(attempts[0].how.shapes) and not says_fewer:
                    continue
                try:
                    attempts.append(self.attempt(how))
                except Failure as failure:
                    raised.append(failure)
                    continue
                latest = attempts[-1]
                # A right result is one in no other way of calling, but where a fault undoes what this one asks for.
                if latest.is_right or (any(latest.right.values()) and latest.is_explained):
                    return latest
            if attempts:
                # What is wrong for a scale of 1 too has none by itself: its scale is left out.
                usual = [each for each in attempts if each.how.scale is None] or attempts
                explained = (each for each in usual if each.is_explained)
                return next(explained, max(usual, key=lambda each: any(each.right.values())))
        raise min(raised, key=lambda failure: isinstance(failure.__cause__, TypeError))

    def _ways(self, library: str) -> Iterator[CallConvention]:
        takes, text = self.target.takes, self._text
        takes_mask = "causal" not in takes and (
            "mask" in takes or "mask" in takes.get("bias", "")
        )
        scales = (None,) if self._is_lazy or "scale" in takes else (None, 1.0)
        is_differentiated = re.search(r"\.backward\(|autograd|\.grad\b|vjp", text) is not None
        leaves = is_differentiated and "requires_grad" not in text
        says_causal = "causal" not in takes and re.search(r"tril|triu|causal|mask", text)
        masks = (*_MEANINGS, "") if takes_mask else ("",)
        for shapes, mask, scale in product(SHAPES, masks, scales):
            # A causal mask shows what a mask means; without that meaning none is laid.
            settings = (True, False) if says_causal else (False, True)
            for causal in (True,) if self._is_lazy or mask else settings:
                yield CallConvention(library, shapes, mask, leaves, causal=causal, scale=scale)

    def settings(self, how: CallConvention) -> Iterator[CallConvention]:
        takes = self.target.takes
        yield how
        if not self._is_lazy and ("causal" in takes or how.mask):
            yield replace(how, causal=not how.causal)
        if "scale" in takes:
            yield replace(how, scale=_OTHER_SCALE)

    def attempt(self, how: CallConvention, seed: int = 0) -> Attempt:
        """One run; of results without names, by those that make the most right."""
        call, case = ReferenceCall(self.target, how), self._case(how, seed)
        experiment = Experiment(case, call.target, None, in_float64(draw(case)))
        record = next(records_of(experiment))
        if record.run.measured is None:
            raise Refusal(f"{self.target.name} refused: {record.run.skipped}")
        found = Attempt(how, experiment.after(outcomes_of([record])), record.run, call.unfit)
        if how.order or not call.orders or call.unfit:
            return found
        tried = [replace(found, how=replace(how, order=call.orders[0]))]
        for order in call.orders[1:]:
            if not tried[-1].wrong:
                break
            tried.append(self.attempt(replace(how, order=order), seed))
        return min(tried, key=lambda each: len(each.wrong))

    def _case(self, how: CallConvention, seed: int) -> Case:
        takes_bias = "bias" in self.target.required and not how.mask
        sizes = self._sizes | {
            name: 1 for name in ("batch", "heads") if name[0] not in how.shapes
        }
        options: dict[str, Any] = {**sizes, "bias": takes_bias or None}
        options |= {**self._options, "seed": seed}
        if not self._is_lazy:
            options["causal"] = how.causal
        if how.scale is not None:
            options["scale"] = how.scale
        case = resolve(options, self.target.family, takes_bias=takes_bias)
        return replace(case, runs=((),), recover=False)


# --- before a check


def audited_target(subject: str | Callable[..., Any], family: str | None) -> Target:
    """A reference that is right on small cases, or takes none; else a ReferenceFailure."""
    try:
        found = audit(subject, family, seeds=1)
    except Failure:
        return find_target(subject, family)
    if found.attempt.is_right:
        return ReferenceCall(found.target, found.attempt.how).target
    name, first = found.target.name, found.attempt.measured.first
    if found.diagnoses:
        cause = found.diagnoses[0]
        places = [f" ({Path(at.file).name}:{at.line}: {at.code})" for at in cause.where[:1]]
        words = "".join([f": {cause.summary}", *places])
    elif first is not None:
        words = f" departs from {departure(found.attempt.case, first)}"
    else:
        words = f": {'; '.join(found.known)}"
    way_out = f"gradprobe audit {name} shows it; {WAY_OUT}"
    raise ReferenceFailure(f"the verdict is about the reference: {name}{words}", way_out)
