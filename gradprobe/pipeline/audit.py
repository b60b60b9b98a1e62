"""A reference of the user's own, called in its author's way on small drawn cases, is judged in float64."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..diagnosis.why import FailedCheck, reasons_of
from ..frontends import plain_function
from ..inputs.draw import draw, in_float64
from ..model.assignment import given_back, in_words, taken
from ..model.case import Case
from ..model.failures import Failure, ReferenceFailure, Refusal
from ..model.number import listed
from ..model.report import Diagnosis, causes_among
from ..model.resolution import resolve
from ..numerics.evidence import LayoutRun, MeasuredRun
from ..probing.experiment import Experiment
from ..probing.measure import WAY_OUT
from ..probing.runs import outcomes_of, records_of
from ..targets.bind import as_tensors, intermediate_named, returned_names
from ..targets.find import Target, find_target

SHAPES = ("bhld", "hld", "ld", "blhd", "lhd")
"""The axes of q, k, v and dO, the likelier first."""
ORDERS = {
    1: "dQ|dV|dK",
    2: "dQ dK|dK dV",
    3: "dQ dK dV|dV dQ dK|dK dV dQ|dV dK dQ",
    4: "O dQ dK dV|dQ dK dV O",
}
"""What a tuple may be, by its length, the likelier first."""
RESULTS = {"O": "do", "dQ": "q", "dK": "k", "dV": "v"}
"""What is judged, by the input that has its shape."""
_OF_HEADS = {"q", "k", "v", "do", "o", "lse", "delta"}
# Sizes of axes none of which another axis, or a product of two, has: values tell by their shapes what they are of.
_SIZES = {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5}
_OTHER_SCALE = 0.3
# What a function says of its tensors that have no batches, or neither batches nor heads.
_FEWER = r"(?i)(?:single|one)[ -]head|[\[(](?:\w+, *){1,2}(?:D|d_k|d_head|head_dim|dim)[\])]"
_MEANINGS = {
    "keep": "True where a key is seen", "hide": "True where a key is hidden", "additive": "-inf"
}  # fmt: skip


# --- how it is called


@dataclass(frozen=True)
class CallConvention:
    library: str = "torch"
    shapes: str = "bhld"
    mask: str = ""
    """What True in its mask means: "keep" or "hide"; "additive" of one of -inf."""
    leaves: bool = False
    order: str = ""
    causal: bool = False
    scale: float | None = None
    """None for 1 / sqrt(head dim)."""

    @property
    def setting(self) -> str:
        scaled = f" scale={self.scale:g}" if self.scale is not None else ""
        return f"{'causal' if self.causal else 'not causal'}{scaled}"


class ReferenceCall:
    """A reference as a function of tensors [B, H, L, D] that gives a dict of RESULTS."""

    def __init__(self, target: Target, how: CallConvention) -> None:
        functools.update_wrapper(self, target.function)
        self._function, self._how = target.function, how
        takes = dict(target.takes)
        self._mask = takes.pop("mask" if "mask" in takes else "bias") if how.mask else ""
        if how.mask or how.causal:
            takes.setdefault("causal", "causal")
        if how.scale is not None:
            takes.setdefault("scale", "scale")
        self._own = target.takes
        required = target.required & takes.keys()
        self.target = replace(target, function=self, takes=takes, required=required)
        self.orders: list[str] = []
        """What the latest results may be, where nothing but their order tells."""

    def __call__(self, **given: Any) -> dict[str, Tensor]:
        values = {name: given[own] for name, own in self.target.takes.items() if own in given}
        with torch.device(values["q"].device):  # what it makes lies beside what it is given
            return self._each(values, 0)

    def _each(self, given: dict[str, Any], axis: int) -> dict[str, Tensor]:
        if axis == 2:
            return self._once(given)
        if "bh"[axis] in self._how.shapes:
            return self._each(given, axis + 1)
        parts = list[dict[str, Tensor]]()
        for at in range(given["q"].shape[axis]):
            heads = {name: given[name].narrow(axis, at, 1) for name in _OF_HEADS & given.keys()}
            parts.append(self._each(given | heads, axis + 1))
        return {name: torch.cat([part[name] for part in parts], axis) for name in parts[0]}

    def _once(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        found = dict[str, Tensor]()
        for name, value in self._named(self._function(**self._arguments(given))).items():
            found[name] = result = given_back(value, name, self._how.shapes).to(given["q"])
            due = given[RESULTS[name]].shape
            if self.target.is_backward and result.shape != due:
                raise TypeError(f"it returned {name} of {list(result.shape)} for {list(due)}")
        return found

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        how, arguments = self._how, dict[str, Any]()
        for name in self._own.keys() & given.keys():
            value = given[name]
            if isinstance(value, Tensor):
                value = taken(value, name, how.shapes).contiguous()
                if how.leaves and name in ("q", "k", "v"):
                    value = value.detach().requires_grad_()
            arguments[self._own[name]] = value
        if how.mask and given.get("causal"):
            arguments[self._mask] = _causal_mask(how.mask, given["q"])
        if how.library == "numpy":
            for own, value in arguments.items():
                arguments[own] = value.numpy(force=True) if isinstance(value, Tensor) else value
        return arguments

    def _named(self, result: Any) -> dict[str, Tensor]:
        result = result._asdict() if hasattr(result, "_asdict") else result
        if isinstance(result, Mapping):
            names, parts = [*map(str, result)], [*result.values()]
        else:
            parts = [*result] if isinstance(result, (tuple, list)) else [result]
            names = self._names(len(parts))
        found = dict[str, Tensor]()
        for name, part in zip(map(intermediate_named, names), as_tensors(parts), strict=True):
            if name in RESULTS and isinstance(part, Tensor):
                found[name] = part
        return found

    def _names(self, count: int) -> list[str]:
        for names in returned_names(plain_function(self)):
            if count == len(names) == len({*map(intermediate_named, names)} - {""}):
                return names
        if not self.target.is_backward:
            return ["O", *[""] * (count - 1)]
        if count not in ORDERS:
            raise TypeError(f"it returned {count} values whose names cannot be told")
        self.orders = ORDERS[count].split("|")
        return (self._how.order or self.orders[0]).split()


def _causal_mask(meaning: str, q: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    if meaning == "additive":
        return q.new_zeros(keep.shape).masked_fill(~keep, -torch.inf)
    return ~keep if meaning == "hide" else keep


# --- whether it is right


@dataclass(frozen=True)
class Attempt:
    how: CallConvention
    experiment: Experiment
    run: LayoutRun

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

    @property
    def wrong(self) -> tuple[str, ...]:
        findings = self.measured.comparison.findings
        return tuple(name for name in RESULTS if name in findings and findings[name].mismatched)

    @property
    def is_right(self) -> bool:
        return self.measured.matches

    @property
    def has_a_right_result(self) -> bool:
        return len(self.wrong) < len(RESULTS.keys() & self.measured.comparison.findings.keys())

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
    """Calls a reference on small cases, each setting with some seeds, and says what is wrong with it.

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
    found = tuple(wrong.causes) if wrong is not None else ()
    known = [f"no known formula gives its {listed(wrong.wrong)}"] if wrong and not found else []
    return Audit(search.target, wrong or best, runs, tuple(taken), found, tuple(known))


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
        try:
            self._text = inspect.getsource(plain_function(target.function))
        except (OSError, TypeError):
            self._text = ""

    def best(self) -> Attempt:
        """The first that is right, or explained with a right result; else one that is explained, or has one."""
        raised, attempts = list[Failure](), list[Attempt]()
        libraries = ["numpy", "torch"]
        if not re.search(r"\bnp\.|numpy", self._text):
            libraries.reverse()
        for how in chain.from_iterable(map(self._ways, libraries)):
            # Otherwise, or with fewer axes, only where it does not run so, or says that it has fewer.
            first = attempts[0].how if attempts else how
            is_fewer = len(how.shapes) < len(first.shapes) and not re.search(_FEWER, self._text)
            if is_fewer or how.library != first.library:
                continue
            try:
                attempts.append(self.attempt(how))
            except Failure as failure:
                raised.append(failure)
                continue
            latest = attempts[-1]
            # A right result is one in no other way of calling, but where a fault undoes what this one asks for.
            if latest.is_right or (latest.has_a_right_result and latest.causes):
                return latest
        if not attempts:
            raise min(raised, key=lambda failure: isinstance(failure.__cause__, TypeError))
        # What is wrong for a scale of 1 too has none by itself: its scale is left out.
        usual = [each for each in attempts if each.how.scale is None] or attempts
        return max(usual, key=lambda each: (bool(each.causes), each.has_a_right_result))

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
        found = Attempt(how, experiment.after(outcomes_of([record])), record.run)
        if how.order or not call.orders:
            return found
        tried = [replace(found, how=replace(how, order=call.orders[0]))]
        for order in call.orders[1:] if found.wrong else ():
            tried.append(self.attempt(replace(how, order=order), seed))
        return min(tried, key=lambda each: len(each.wrong))

    def _case(self, how: CallConvention, seed: int) -> Case:
        takes_bias = "bias" in self.target.required and not how.mask
        sizes = _SIZES | {name: 1 for name in ("batch", "heads") if name[0] not in how.shapes}
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
    name, words = found.target.name, "; ".join(found.known)
    for cause in found.diagnoses[:1]:
        places = [f" ({Path(at.file).name}:{at.line}: {at.code})" for at in cause.where[:1]]
        words = "".join([cause.summary, *places])
    way_out = f"gradprobe audit {name} shows it; {WAY_OUT}"
    raise ReferenceFailure(f"the verdict is about the reference: {name}: {words}", way_out)
