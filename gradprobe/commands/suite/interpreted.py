"""Interpreted: why kernels that were compiled for a GPU are wrong, as a small case in Triton's interpreter shows it.

Forks cannot share a GPU, and compiled code cannot be followed. The same target on a small case can, on the CPU.
"""

from dataclasses import replace

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import flags
from ...model.case import fewer_heads, shortened
from ...model.layout_run import INHERITED, MISMATCH
from ...model.report import Diagnosis, Report
from .plan import PlannedCheck

# What was seen in memory, whatever numbers came of it.
_OF_MEMORY = ("outside/", "race/", "unwritten/", "shared/")
# A multiple of the usual tiles; batches, and key heads: two show what one hides.
_SPAN, _FEW = 128, 2
# Options that fix the length of each sequence.
_OWN_LENGTHS = {"seqlens", "cu_seqlens", "cu_seqlens_k", "inputs"}


def for_the_interpreter(request: CheckRequest) -> CheckRequest:
    """The same check on the CPU, small. Where an option gives a value for each batch or head, their number stays."""
    options = {name: word for name, word in request.options.items() if name != "dots"}
    options["device"] = "cpu"
    if not _OWN_LENGTHS & options.keys():
        for name in {"seqlen", "seqlen_q", "seqlen_k"} & options.keys():
            options[name] = shortened(options[name], _SPAN)
        if "batch" in options:
            options["batch"] = min(options["batch"], _FEW)
    if "heads" in options and "," not in str(options.get("tau", "")):
        keys = options.get("kv_heads", options["heads"])
        options["heads"], keys = fewer_heads(options["heads"], keys, _FEW)
        options |= {"kv_heads": keys} if "kv_heads" in options else {}
    return replace(request, options=options)


def small_case(planned: PlannedCheck, layout: str = "") -> PlannedCheck:
    """The check in the interpreter, or one layout: operations are followed there, so nothing has to be recovered."""
    small = for_the_interpreter(planned.request)
    options = {**small.options, "recover": False}
    if layout:
        options.pop("layout", None)
        options["runs"] = [layout]
    return PlannedCheck(planned.title, replace(small, options=options))


def with_causes_of(report: Report, planned: PlannedCheck, small: Report) -> Report:
    """The report with the causes of the small case, where that goes wrong first in what is wrong in the large one too.
    Where it leaves anything right, those of the report stand beside them."""
    here, there = _wrong(report), _wrong(small)
    if not small.causes or not there or there[0] not in here:
        return report
    first, *others = map(_as_interpreted, small.diagnoses)
    asked, options = planned.request.options, for_the_interpreter(planned.request).options
    smaller = {name: word for name, word in options.items() if asked.get(name) != word}
    smaller.pop("device", None)
    size = " ".join(["the same case", *(["with", *flags(smaller)] if smaller else [])])
    seen = f"seen in Triton's interpreter, where {size} goes wrong in the same way"
    first = structs.replace(first, evidence=(*first.evidence, seen))
    named, beside = {diagnosis.fault for diagnosis in small.diagnoses}, []
    for cause in report.causes:
        is_open = cause.fault.startswith(_OF_MEMORY) or not set(here) <= set(there)
        if cause.fault not in named and is_open:
            beside.append(structs.replace(cause, also=True))
    causes = len(small.causes) - 1
    diagnoses = (first, *others[:causes], *beside, *others[causes:])
    return structs.replace(report, diagnoses=diagnoses, known=small.known)


def _wrong(report: Report) -> list[str]:
    found = dict[str, None]()
    for run in report.runs:
        for value in run.intermediates:
            if value.source == "exported" and value.status in (MISMATCH, INHERITED):
                found[value.name] = None
    return list(found)


def _as_interpreted(diagnosis: Diagnosis) -> Diagnosis:
    edit = diagnosis.edit
    if edit is None or not edit.words:
        return diagnosis
    edit = structs.replace(edit, words=f"in Triton's interpreter, {edit.words}")
    return structs.replace(diagnosis, edit=edit)
