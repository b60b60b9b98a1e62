"""Adaptations of a case, tried on a target that refuses it or reads its tensors otherwise."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from ..inputs.options import flags
from ..model.assignment import in_words
from ..model.case import ADDITIVE, BOOLEAN, LOG2, NUMBER, Case
from ..model.failures import Failure, Refusal, TargetFailure
from ..numerics.evidence import LayoutRun
from ..numerics.finding import Finding
from ..numerics.range import refuse_out_of_range
from ..probing.experiment import experiment_of
from ..probing.runs import RunRecord, records_of
from ..targets.find import Target
from .resolve import Problem

# Many kernels take powers of two alone; many take no length that ends inside a block, of up to 256.
_HEAD_DIMS = (32, 64, 128)
WHOLE_BLOCKS = (128, 256)
_ORDERS = ("bhld", "blhd", "hld", "lhd")
OF_LENGTH = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
# The options of which none may have been given, where one is changed: without a row here, that one itself.
_FIXED_BY = {"seqlen": OF_LENGTH, "implied": ("implied", "causal")}
# A share of wrong elements above which nothing is right but by chance, and one below which a meaning is the target's:
# where it has a fault besides, that is in some heads, rows or tiles, and under another meaning nearly all is wrong.
_WRONG_THROUGHOUT, _RIGHT_MOSTLY, _NONE_WRONG = 0.9, 0.5, 0.1
# Runs of the target that a search may take; most of them end with a refusal, before any kernel has run.
_MOST_RUNS = 40
_LONGEST_WORDS = 160


class Adaptation(NamedTuple):
    options: Mapping[str, Any]
    about: str  # what of the case was refused, "head dim 24"; or what the target takes it for


def _of_a_refusal(case: Case, target: Target) -> Iterator[Adaptation]:
    if case.window is not None and case.window[1] in (0, case.window[0]):
        yield Adaptation({"window_as": NUMBER}, f"the window {case.window}")
    if case.mask is not None and case.mask_as == BOOLEAN:
        yield Adaptation({"mask_as": ADDITIVE}, "a boolean mask")
    for size in _HEAD_DIMS:
        yield Adaptation({"head_dim": size}, f"head dim {case.head_dim}")
    for dtype in ("float16", "bfloat16") if case.dtype == "float32" else ():
        yield Adaptation({"dtype": dtype}, "float32")
    for length in WHOLE_BLOCKS:
        yield Adaptation({"seqlen": length}, f"length {case.seqlen_q}")
    if case.device == "cpu":
        yield Adaptation({"as_cuda": True}, "a tensor on the CPU")
    if "causal" in target.takes and not case.causal:
        yield Adaptation({"causal": True}, "no causal mask")
    for shapes in ("hld", "lhd", "blhd"):
        yield Adaptation({"shapes": shapes}, in_words(case.shapes))


def _of_a_reading(case: Case, target: Target) -> Iterator[Adaptation]:
    found, lse = [Adaptation({}, "")], target.takes.get("lse", "")
    # So Triton's tutorial calls an LSE to base 2; by any other name it is natural.
    if lse.lower() == "m":
        found.append(Adaptation({"lse_as": LOG2}, f"its {lse} is an LSE to base 2"))
    if "causal" not in target.takes and case.family == "softmax":
        causal = Adaptation({"implied": "causal"}, "it is always causal")
        found += map(partial(_joined, causal), list(found))
    yield from found[1:]
    # On a GPU a kernel that takes heads for rows may leave its memory, and the process its GPU.
    for shapes in _ORDERS if case.device != "cuda" else ():
        if len(shapes) == len(case.shapes) and shapes != case.shapes:
            order = Adaptation({"shapes": shapes}, f"q, k and v are {in_words(shapes)}")
            yield from map(partial(_joined, order), found)
    if case.mask is not None and case.mask_as == BOOLEAN:
        yield Adaptation({"mask_as": ADDITIVE}, "the mask is added to the scores")


def _joined(first: Adaptation, other: Adaptation) -> Adaptation:
    words = " and ".join(filter(None, (first.about, other.about)))
    return Adaptation({**first.options, **other.options}, words)


@dataclass(frozen=True)
class Fit:
    problem: Problem
    options: Mapping[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    failure: Failure | None = None
    record: RunRecord | None = None

    @property
    def run(self) -> LayoutRun | None:
        return None if self.record is None else self.record.run

    @property
    def findings(self) -> list[Finding]:
        """The intermediates that tell most of a meaning: O, else the gradients, else all."""
        if self.run is None or self.run.measured is None:
            return []
        all_of = self.run.measured.comparison.findings
        telling = all_of.keys() & {"O"} or all_of.keys() & {"dQ", "dK", "dV"} or all_of.keys()
        return [all_of[name] for name in telling]

    @property
    def wrong(self) -> float:
        total = sum(map(attrgetter("total"), self.findings))
        wrong = sum(map(attrgetter("mismatched"), self.findings))
        return wrong / total if total else float(self.record is None)


def tried(problem: Problem, options: Mapping[str, Any]) -> Fit:
    try:
        problem = problem.with_options(options)
        case = replace(problem.case, repeat=1)
        experiment = experiment_of(case, problem.target, saved=problem.saved)
        refuse_out_of_range(case, experiment.values)
        record = next(records_of(experiment))
        if record.run.measured is None:
            raise Refusal(record.run.skipped or "it refused")
    except Failure as failure:
        return Fit(problem, options, failure=failure)
    return Fit(problem, options, record=record)


def refuses(failure: Failure | None) -> bool:
    """Whether the target's own code raised; a wrong result or harm to memory is a fault instead."""
    is_raised = type(failure) is TargetFailure and failure.__cause__ is not None
    return is_raised or isinstance(failure, Refusal)


def fit(trial: Fit) -> Fit | None:
    """The changes with which the target runs and reads its tensors rightly, if any are needed and help.

    An option that was given is never changed. A meaning is found only where nearly all of the
    `trial` is wrong, and most is right with it.
    """
    search, found = _Search(trial.problem), trial
    if trial.failure is not None:
        found = search.past(trial) or trial
    is_read = found.failure is None and found.wrong > _WRONG_THROUGHOUT
    reading = search.read(found) if is_read else None
    return reading or (found if found.options else None)


class _Search:
    def __init__(self, problem: Problem) -> None:
        self._problem, self._runs = problem, 0

    def past(self, failed: Fit) -> Fit | None:
        waiting, known = [failed], {_about(failed.failure)}
        for fit in waiting:  # which grows
            if not refuses(fit.failure):
                continue
            for adaptation, trial in self._each(_of_a_refusal, fit, fit):
                words = f"it runs with {' '.join(flags(adaptation.options))}, found by trying"
                sentence = f"{adaptation.about} was refused ({_short(fit.failure)}): {words}"
                further = replace(trial, sentences=(*fit.sentences, sentence))
                about = _about(trial.failure)
                if trial.failure is None and (right := self._mostly_right(further)) is not None:
                    return right
                if isinstance(trial.failure, (TargetFailure, Refusal)) and about not in known:
                    known.add(about)
                    waiting.append(further)
        return None

    def _mostly_right(self, fit: Fit) -> Fit | None:
        """With other axes a target may run and mean nothing by it."""
        if "shapes" not in fit.options or fit.wrong <= _RIGHT_MOSTLY:
            return fit
        return self.read(fit)

    def read(self, fit: Fit) -> Fit | None:
        """The reading with most elements right, or a whole gradient."""
        least, best = 1.0, None
        for adaptation, trial in self._each(_of_a_reading, fit, Fit(self._problem)):
            has_one = any(each.mismatched < _NONE_WRONG * each.total for each in trial.findings)
            if (trial.wrong < _RIGHT_MOSTLY or has_one) and trial.wrong < least:
                words = f"{adaptation.about}, found by trying ({' '.join(flags(adaptation.options))})"
                words += f": {1 - trial.wrong:.0%} of its results are right so, {1 - fit.wrong:.0%} otherwise"
                least, best = trial.wrong, replace(trial, sentences=(*fit.sentences, words))
            if trial.wrong < _NONE_WRONG:
                break
        return best

    def _each(
        self, adaptations: Callable[[Case, Target], Iterator[Adaptation]], fit: Fit, known: Fit
    ) -> Iterator[tuple[Adaptation, Fit]]:
        fixed, saved = {*self._problem.fixed, *known.options}, self._problem.saved
        if saved is not None:
            fixed |= {"head_dim", "dtype", "shapes", *OF_LENGTH, *saved.options}
        for adaptation in adaptations(fit.problem.case, self._problem.target):
            changed = set[str]()
            for name in adaptation.options:
                changed.update(_FIXED_BY.get(name, (name,)))
            if fixed.isdisjoint(changed) and self._runs < _MOST_RUNS:
                self._runs += 1
                yield adaptation, tried(self._problem, {**fit.options, **adaptation.options})


def _about(refusal: Failure | None) -> str:
    return re.sub(r"\d+", "0", str(refusal))


def _short(failure: Failure | None) -> str:
    said = re.sub(r"^target .*? raised (\w+) \([^()]*\)|^target '.*?' ", r"\1", str(failure))
    return said if len(said) <= _LONGEST_WORDS else said[:_LONGEST_WORDS] + "..."
