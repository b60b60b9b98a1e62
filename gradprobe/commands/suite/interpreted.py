"""Interpreted: why kernels that were compiled for a GPU are wrong, as a small case in Triton's interpreter shows it.

Forks cannot share a GPU, and compiled code cannot be followed. The same target on a small case can, on the CPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from ...inputs.options import flags
from ...model.layout_run import INHERITED, MISMATCH
from ...model.report import Diagnosis, Report
from ...processes.ended import DEVICE
from .checked import PlannedCheck, for_the_interpreter

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# What was seen in memory, whatever numbers came of it.
_OF_MEMORY = ("outside/", "race/", "unwritten/", "shared/")


def is_to_be_interpreted(planned: PlannedCheck, report: Report) -> bool:
    """Whether a GPU gave a wrong result, whether or not it was lost in a later layout."""
    is_whole = report.error is None or report.error.kind == DEVICE
    is_wrong = report.verdict == MISMATCH and is_whole and planned.close_up is None
    return is_wrong and report.target.backend == "triton" and report.case is not None and report.case.device == "cuda"


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """While open, processes that are started see no GPU: one that a library takes there could not fork any more."""
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ""
    try:
        yield
    finally:
        del os.environ[_VISIBLE]
        os.environ |= {} if before is None else {_VISIBLE: before}


def small_case(planned: PlannedCheck) -> PlannedCheck:
    """The check in the interpreter, where operations are followed and so nothing has to be recovered."""
    small = for_the_interpreter(planned.request)
    return PlannedCheck(planned.title, replace(small, options={**small.options, "recover": False}))


def with_causes_of(report: Report, planned: PlannedCheck, small: Report) -> Report:
    """The report with the causes of the small case, where that goes wrong first in what is wrong in the large one too.

    What it leaves right has another cause: then those of the report stand beside them.

    Args:
        small: of `small_case(planned)`.
    """
    here, there = _wrong(report), _wrong(small)
    if not small.causes or not there or there[0] not in here:
        return report
    first, *others = map(_as_interpreted, small.diagnoses)
    seen = f"seen in Triton's interpreter, where {_size_in_words(planned)} goes wrong in the same way"
    first = structs.replace(first, evidence=(*first.evidence, seen))
    told = {one.fault for one in small.diagnoses}
    is_all = set(here) <= set(there)
    own = [one for one in report.causes if one.fault.startswith(_OF_MEMORY) or not is_all]
    beside = [structs.replace(one, also=True) for one in own if one.fault not in told]
    causes = len(small.causes) - 1
    diagnoses = (first, *others[:causes], *beside, *others[causes:])
    return structs.replace(report, diagnoses=diagnoses, known=small.known)


def _wrong(report: Report) -> list[str]:
    """What was returned and is wrong in some run, in the order of the dataflow."""
    found = (one for run in report.runs for one in run.intermediates if one.source == "exported")
    return list(dict.fromkeys(one.name for one in found if one.status in (MISMATCH, INHERITED)))


def _as_interpreted(diagnosis: Diagnosis) -> Diagnosis:
    if diagnosis.edit is None or not diagnosis.edit.words:
        return diagnosis
    return structs.replace(
        diagnosis, edit=structs.replace(diagnosis.edit, words=f"in Triton's interpreter, {diagnosis.edit.words}")
    )


def _size_in_words(planned: PlannedCheck) -> str:
    """What is smaller there."""
    options = for_the_interpreter(planned.request).options
    smaller = {name: word for name, word in options.items() if planned.request.options.get(name) != word}
    smaller.pop("device", None)
    return " ".join(["the same case", *(["with", *flags(smaller)] if smaller else [])])
