"""A reference as a target that a check can run: audited, and called in its own way behind the usual names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.case import Case
from ..model.failures import Failure, ReferenceFailure, UsageFailure
from ..model.intermediates import lookup
from ..model.layout_run import Element
from ..numerics.compare import compare
from ..numerics.declared_precision import precision_of
from ..numerics.identities import share_of_reference
from ..numerics.locate import locate
from ..reference import Attention, manual_attention_backward
from ..runtime.trace import Trace
from ..targets.find import Target, find_target
from ..targets.naming import canonical_name
from .audit import Audit, audit, diagnoses_of, known_of
from .calling import LETTERS, Values

_WAY_OUT = "a reference is checked before it is used: correct it, or leave out --reference"


def audited_target(subject: str | Callable[..., Any], family: str | None) -> Target:
    """The reference that a word or a function is, once it proves right on small cases.

    One that takes none of these is left to the check, which judges it on its own values.

    Raises:
        ReferenceFailure: it is wrong, with its first wrong formula and its line.
        UsageFailure, TargetFailure: from `find_target`.
    """
    try:
        made = audit(subject, family, judges=False)
    except Failure:
        return find_target(subject, family)
    if not made.is_right:
        way_out = f"gradprobe audit {made.callee.word} shows it; {_WAY_OUT}"
        raise ReferenceFailure(f"the verdict is about the reference: {_describe(made)}", way_out)
    try:
        found = find_target(subject, family)
    except UsageFailure:
        found = None
    if found is None or not _is_plain(made, found):
        found = _in_its_own_way(made)
    return replace(found, function=on_the_cpu_if_need_be(found.function))


def _is_plain(made: Audit, plain: Target) -> bool:
    """Whether it can be called as any target is."""
    how = made.attempt.how
    is_usual = how.library == "torch" and how.shapes == "bhld" and not how.mask and not how.leaves
    takes_all = "causal" in plain.takes or not how.causal or plain.family == "lazy"
    return is_usual and takes_all and (made.attempt.called.is_mapping or not plain.is_backward)


def on_the_cpu_if_need_be(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference, run on the CPU where it makes tensors there and cannot put them beside those of a GPU."""

    def run(**given: Any) -> Any:
        try:
            return reference(**given)
        except RuntimeError as error:
            if "same device" not in str(error):
                raise
        here = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in given.items()}
        device = next(value.device for value in given.values() if isinstance(value, Tensor))
        came = reference(**here)
        return {name: one.to(device) for name, one in came.items()} if isinstance(came, Mapping) else came.to(device)

    return run


def _describe(made: Audit) -> str:
    name, found = made.callee.word, diagnoses_of(made)
    if found:
        where = found[0].where[0] if found[0].where else None
        place = f" ({Path(where.file).name}:{where.line}: {where.code})" if where is not None else ""
        _, is_formula, due = found[0].evidence[0].partition("due: ")
        return f"{name}{f' departs from {due}' if is_formula else ''}: {found[0].summary}{place}"
    first = next((run.measured.first for run in made.runs if run.measured and run.measured.first), None)
    departs = f"{name} departs from {departure(made.attempt.drawn.case, first)}" if first is not None else name
    return "; ".join([departs, *known_of(made)])


def _in_its_own_way(made: Audit) -> Target:
    """The reference behind a function that takes and gives tensors [B, H, L, D] by their usual names."""
    callee, how = made.callee, made.attempt.how
    takes = {name: name for name in callee.takes if canonical_name(name) == name}
    if how.mask:
        takes = {name: name for name in takes if name not in ("mask", "bias")}
    if how.causal or how.mask or "P" in callee.takes:
        takes["causal"] = "causal"
    lost = [axis for axis, letter in enumerate("bh") if letter not in how.shapes]

    def reference(**given: Any) -> dict[str, Tensor]:
        tensors, options = dict[str, Tensor](), dict[str, Any]()
        for name, value in given.items():
            (tensors if name in LETTERS else options)[name] = value
        if "P" in callee.takes:
            known = {name: options[name] for name in ("causal", "scale", "softcap", "window") if name in options}
            of_forward = [tensors[name] for name in ("q", "k", "v", "do")]
            tensors["P"] = manual_attention_backward(*of_forward, **known)["P"]
        came = _each(tensors, lost, lambda part: callee.call(how, {"do": part["q"], **part}, options).results)
        return {name: result.to(tensors["q"].device) for name, result in came.items()}

    required = frozenset(name for name in ("q", "k", "v", "do", "o", "lse", "delta") if name in takes)
    found = callee.found
    return Target(found.word, reference, takes, required, made.attempt.drawn.case.family, found.source, found.changes)


def _each(tensors: Values, lost: list[int], call: Callable[[Values], Values]) -> Values:
    """The results of a call for each place along every axis that it lacks, put together."""
    if not lost:
        return call(tensors)
    axis, parts = lost[0], list[Values]()
    for at in range(tensors["q"].shape[axis]):
        part = {name: one.narrow(axis, at, 1) for name, one in tensors.items()}
        parts.append(_each(part, lost[1:], call))
    return {name: torch.cat([part[name] for part in parts], axis) for name in parts[0]}


def refuse_other_formulas(reference: Target, case: Case, x: Attention, trace: Trace, dots: str) -> None:
    """Refuses a user's own reference that departs from the formulas, or is not precise enough to judge a kernel.

    It may err by what IEEE float32 arithmetic may: a reference in float32 is right. Beside a kernel in that very
    arithmetic it must be as much better as the identities ask of it, or its errors would be laid on the kernel.

    Raises:
        ReferenceFailure: an intermediate departs from its formula, or is no more precise than the kernel.
    """
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    first = locate(x, trace, comparison)
    if first is not None:
        raise ReferenceFailure(
            f"the verdict is about the reference: {reference.name} departs from {departure(case, first)}", _WAY_OUT
        )
    share = share_of_reference(precision_of(case.dtype, dots))
    worst = max(comparison.findings.values(), key=lambda finding: finding.max_ratio)
    if not precision_of(case.dtype, dots).matrix and worst.max_ratio > share:
        raise ReferenceFailure(
            f"the verdict is about the reference: {worst.name} of {reference.name} errs by {worst.max_ratio:.1g} of "
            f"what float32 may err by, and beside a kernel in float32 it may by {share:.1g}",
            "a reference is checked before it is used: compute it in float64",
        )


def departure(case: Case, first: Element) -> str:
    """The formula that the reference departs from, the place, and both numbers."""
    row = lookup(first.intermediate)
    step = row.step(case.family) if row is not None else None
    at = {axis: getattr(first, axis) for axis in ("batch", "head", "row", "col")}
    where = ", ".join(f"{axis} {index}" for axis, index in at.items() if index is not None)
    formula = f"{first.intermediate} = {step.formula}" if step is not None else first.intermediate
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"
