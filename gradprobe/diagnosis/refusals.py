"""What a target should have refused: lengths, or layouts, for which it was not written; one cause in place of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from ..frontends.triton.launches import KernelCall
from ..model.intermediates import title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door
from ..model.number import LAMBDA, listed
from ..model.report import Diagnosis, Where
from ..numerics.evidence import LayoutRun
from .lines import of_strays
from .why import Reasons, tensor_of

# Where as many lines lack a mask, it is no slip that an edit could mend: the kernel was written without.
_FEW = 3
# What leaves a tensor, or meets another program's there; and what is seen of the same in the elements.
_MISREAD = ("race", "outside", "load", "store", "masked")


def with_length(reasons: Reasons, first: LayoutRun, right_at: Callable[[LayoutRun], str]) -> Reasons:
    """The reasons, where another length is right in the first layout: then nothing else is wrong with it there.

    Args:
        right_at: given the first run, runs the target at other lengths, and says at which it is right; "" at none.
    """
    explained = reasons.predicted and reasons.causes
    findings = first.measured.comparison.findings.values() if first.measured is not None else ()
    # No more than a coarser arithmetic errs, which other values at another length may not show.
    is_slight = all(finding.max_ratio <= LAMBDA for finding in findings)
    if ((explained or is_slight) and not first.memory) or not (words := right_at(first)):
        return reasons
    here = {found.fault for found in of_strays((first.layout, each) for each in first.memory)}
    here |= {fault for fault, shown in reasons.shown.items() if here and first.layout in shown}
    kinds = () if explained else _MISREAD
    merged = [found for found in reasons.diagnoses if found.fault in here and found.kind in kinds]
    if not merged:
        said = "it takes multiples of a block, and does not refuse other lengths"
        return replace(reasons, known=(f"{first.layout}, it is right at {words}: {said}", *reasons.known))
    summary = f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    fix = "mask its loads and stores by the length, or refuse other lengths before the first launch"
    layouts, lines = list[str](), list[Where]()
    for found in merged:
        layouts += reasons.shown.get(found.fault, (first.layout,))
        lines += found.where
    cause = Diagnosis("tail/length", "M3", summary, 1.0, where=tuple(lines), fix=fix)
    return _led(reasons, cause, merged, layouts, _FEW)


def _led(reasons: Reasons, cause: Diagnosis, merged: Sequence[Diagnosis], layouts: Iterable[str], few: int) -> Reasons:
    """One cause in the place of some diagnoses; beyond edits where it stands alone and in more lines than a few."""
    where = {(line.file, line.line): line for line in cause.where}
    cause = structs.replace(cause, where=tuple(where.values()), seen="seen while it ran")
    led = reasons.led_by(cause, merged, dict.fromkeys(layouts))
    return replace(led, is_beyond_edits=len(where) > few and not any(found.also for found in led.diagnoses))


@door("contiguous", lambda reasons, *args: reasons)
def with_contiguous(reasons: Reasons, runs: Sequence[LayoutRun], calls: Mapping[str, Sequence[KernelCall]]) -> Reasons:
    """The reasons, where kernels are right in the first layout and misread tensors of which no stride reaches them.

    Args:
        calls: the launches of each layout.
    """
    first, failing = runs[0], [run for run in runs if run.verdict == MISMATCH]
    if first.verdict != MATCH or not failing or reasons.predicted:
        return reasons
    found = [diagnosis for diagnosis in reasons.diagnoses if diagnosis.kind in _MISREAD]
    accused = {where.kernel for diagnosis in found for where in diagnosis.where}
    given = {run.layout: _given(calls.get(run.layout, ()), accused) for run in failing}
    misread = [diagnosis for diagnosis in found if _is_given_no_stride(tensor_of(diagnosis), first, failing, given)]
    if not misread:
        return reasons
    tensors = list(dict.fromkeys(title(tensor_of(diagnosis)) for diagnosis in misread))
    at = {where.kernel for diagnosis in misread for where in diagnosis.where}
    # In the order of their launches.
    launched = dict.fromkeys(call.name for call in calls.get(failing[0].layout, ()) if call.name in at)
    taken = "they are" if tensors[1:] else "it is"
    summary = f"no stride of {listed(tensors)} reaches {listed([*launched])}: {taken} taken for contiguous"
    fix = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"
    lines = tuple(where for diagnosis in misread for where in diagnosis.where[:1])
    cause = Diagnosis("layout/contiguous", "S2", summary, 1.0, where=lines, fix=fix)
    return _led(reasons, cause, misread, [run.layout for run in failing], 0)


def _given(calls: Sequence[KernelCall], kernels: set[str]) -> set[int]:
    """The numbers that some kernels were launched with."""
    return {number for call in calls if call.name in kernels for number in call.numbers if number}


def _is_given_no_stride(
    tensor: str, first: LayoutRun, failing: Sequence[LayoutRun], given: Mapping[str, set[int]]
) -> bool:
    """Whether no launch gets a stride that a tensor has in a failing layout and not in the first, nor it in bytes."""
    plain, is_asked = _strides(first, tensor), False
    for run in failing:
        own = {step for step in _strides(run, tensor) - plain if step}
        if any(number % step == 0 for number in given[run.layout] for step in own):
            return False
        is_asked |= bool(own and given[run.layout])
    return is_asked


def _strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    return {step for laid in run.laid if laid.name.lower() == tensor for step in sorted(laid.strides)[-2:]}
