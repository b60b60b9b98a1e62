"""A reference of the user's own, called as a target is on small drawn cases, is judged in float64."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any

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
from ..probing.experiment import Experiment
from ..probing.measure import WAY_OUT
from ..probing.runs import outcomes_of, records_of
from ..targets.find import Target, find_target

_SHAPES = ("bhld", "blhd")
# Sizes of axes none of which another axis, or a product of two, has: a tensor in other axes does not fit.
_SIZES = {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5}
_OTHER_SCALE = 0.3


@dataclass(frozen=True)
class Attempt:
    options: Mapping[str, Any]
    experiment: Experiment
    run: LayoutRun

    @property
    def case(self) -> Case:
        return self.experiment.case

    @property
    def measured(self) -> MeasuredRun:
        assert self.run.measured is not None
        return self.run.measured

    @property
    def wrong(self) -> tuple[str, ...]:
        findings = self.measured.comparison.findings
        return tuple(name for name in findings if findings[name].mismatched)

    @property
    def is_right(self) -> bool:
        return self.measured.matches

    @property
    def is_partly_right(self) -> bool:
        return len(self.wrong) < len(self.measured.comparison.findings)

    @cached_property
    def causes(self) -> list[Diagnosis]:
        return causes_among(reasons_of(FailedCheck(self.experiment, [self.run])).diagnoses)


@dataclass(frozen=True)
class Audit:
    target: Target
    attempt: Attempt  # its first wrong run, else the first
    runs: tuple[LayoutRun, ...]
    taken: tuple[str, ...]  # how it is called, and what it does by itself
    diagnoses: tuple[Diagnosis, ...] = ()
    known: tuple[str, ...] = ()  # of results that no diagnosis explains


def audit(
    subject: str | Callable[..., Any], family: str | None = None, options: Mapping[str, Any] | None = None,
    *, seeds: int = 3,
) -> Audit:  # fmt: skip
    """Calls a reference on small cases, each setting with some seeds, and says what is wrong with it.

    Raises:
        UsageFailure, TargetFailure: it is not there, cannot be called, or its results cannot be named.
    """
    search = ReferenceSearch(find_target(subject, family), options or {})
    best = search.best()
    taken, attempts = [*_taken(best.case)], [best]
    for setting, seed in islice(product(search.settings(best.options), range(seeds)), 1, None):
        try:
            attempts.append(search.attempt(setting, seed))
        except Failure as failure:
            taken.append(f"it was not judged {_in_words(setting)} with seed {seed}: {failure}")
    runs = list[LayoutRun]()
    for each in attempts:
        layout = f"{_in_words(each.options)} seed={each.case.seed}"
        runs.append(replace(each.run, layout=layout))
    wrong = next((each for each in attempts if not each.is_right), None)
    found = tuple(wrong.causes) if wrong is not None else ()
    known = [f"no known formula gives its {listed(wrong.wrong)}"] if wrong and not found else []
    return Audit(search.target, wrong or best, tuple(runs), tuple(taken), found, tuple(known))


def _in_words(options: Mapping[str, Any]) -> str:
    scaled = f" scale={options['scale']:g}" if options.get("scale") is not None else ""
    return f"{'causal' if options['causal'] else 'not causal'}{scaled}"


def _taken(case: Case) -> Iterator[str]:
    yield f"torch tensors of {in_words(case.shapes)}"
    if "causal" in case.implied:
        yield "it is always causal: it has no parameter for it"
    if "scale" in case.implied:
        yield "its scale is 1, not 1 / sqrt(head dim): it is right for that one"


class ReferenceSearch:
    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self.target, self._options, self._is_lazy = target, options, target.family == "lazy"

    def best(self) -> Attempt:
        """The first that is right, or explained with a right result; else one that is explained, or has one."""
        raised, attempts = list[Failure](), list[Attempt]()
        for options in self._ways():
            try:
                attempts.append(self.attempt(options))
            except Failure as failure:
                raised.append(failure)
                continue
            latest = attempts[-1]
            # A right result is one in no other way of calling, but where a fault undoes what this one asks for.
            if latest.is_right or (latest.is_partly_right and latest.causes):
                return latest
        if not attempts:
            raise raised[0]
        # What is wrong for a scale of 1 too has none by itself: its scale is left out.
        usual = [each for each in attempts if "scale" not in each.case.implied] or attempts
        return max(usual, key=lambda each: (bool(each.causes), each.is_partly_right))

    def _ways(self) -> Iterator[dict[str, Any]]:
        takes = self.target.takes
        scales = (None,) if self._is_lazy or "scale" in takes else (None, 1.0)
        masks = (True,) if self._is_lazy else (False, True)
        if "causal" not in takes and re.search(r"tril|triu|causal|mask", self._text):
            masks = masks[::-1]
        for shapes, scale, causal in product(_SHAPES, scales, masks):
            asked = {"causal": causal and not self._is_lazy, "scale": scale is not None}
            implied = tuple(name for name in asked if asked[name] and name not in takes)
            yield {"shapes": shapes, "scale": scale, "causal": causal, "implied": implied}

    @property
    def _text(self) -> str:
        try:
            return inspect.getsource(plain_function(self.target.function))
        except (OSError, TypeError):
            return ""

    def settings(self, options: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield options
        if not self._is_lazy and "causal" in self.target.takes:
            yield {**options, "causal": not options["causal"]}
        if "scale" in self.target.takes:
            yield {**options, "scale": _OTHER_SCALE}

    def attempt(self, options: Mapping[str, Any], seed: int = 0) -> Attempt:
        takes_bias = "bias" in self.target.required
        options = {**options, **self._options}
        given = {**_SIZES, "bias": takes_bias or None, **options, "seed": seed}
        case = resolve(given, self.target.family, takes_bias=takes_bias)
        case = replace(case, runs=((),), recover=False)
        experiment = Experiment(case, self.target, None, in_float64(draw(case)))
        record = next(records_of(experiment))
        if record.run.measured is None:
            raise Refusal(f"{self.target.name} refused: {record.run.skipped}")
        return Attempt(options, experiment.after(outcomes_of([record])), record.run)


def audited_target(subject: str | Callable[..., Any], family: str | None) -> Target:
    """A reference that is right on small cases, or takes none; else a ReferenceFailure."""
    try:
        found = audit(subject, family, seeds=1)
    except Failure:
        return find_target(subject, family)
    if found.attempt.is_right:
        case = found.attempt.case
        return replace(found.target, shapes=case.shapes, implied=case.implied)
    name, words = found.target.name, "; ".join(found.known)
    for cause in found.diagnoses[:1]:
        places = [f" ({Path(at.file).name}:{at.line}: {at.code})" for at in cause.where[:1]]
        words = "".join([cause.summary, *places])
    way_out = f"gradprobe audit {name} shows it; {WAY_OUT}"
    raise ReferenceFailure(f"the verdict is about the reference: {name}: {words}", way_out)
