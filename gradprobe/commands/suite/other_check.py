"""Other checks beside one: another target's, and the same in Triton's interpreter, which shows why a GPU's are wrong.

Forks cannot share a GPU, and compiled code cannot be followed. The same target on a small case can, on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import flags
from ...model.allowance import LAST_RESORT
from ...model.case import fewer_heads, shortened
from ...model.failures import UsageFailure, did_you_mean
from ...model.layout_run import INHERITED, MISMATCH
from ...model.memory_finding import MemoryFinding
from ...model.report import Diagnosis, Report
from ...processes import run_each
from ...processes.ended import DEVICE
from ...processes.resource_limits import VISIBLE, setting_environment
from ...targets.builtin import BUILTINS
from ..saved_reports import read
from .checking import FACTORY, Setting, check_each
from .outcome import CheckOutcome
from .plan import PlannedCheck

# The same target, run otherwise: the word for it, and the device that it runs on then.
_RUN_OTHERWISE = {"interpreted": "cpu", "compiled": "cuda"}
# What was seen in memory, whatever numbers came of it.
_OF_MEMORY = ("outside/", "race/", "unwritten/", "shared/")
# A multiple of the usual tiles; batches, and key heads: two show what one hides.
_SPAN, _FEW = 128, 2
# Options that fix the length of each sequence.
_OWN_LENGTHS = {"seqlens", "cu_seqlens", "cu_seqlens_k", "inputs"}


def report_beside(
    planned: PlannedCheck,
    word: str,
    kept: str,
    setting: Setting,
    function: Callable[..., Any] | None = None,
) -> Report:
    """The report of another target in the case of a check, or of the same one run otherwise.

    Args:
        word: another target; "interpreted" or "compiled", for the same one in Triton's interpreter or on a GPU; or the
            file of a report.
        kept: the file that what it gives is written into.
        function: what stands in the place of another target.

    Raises:
        UsageFailure: the file holds no report of one check, or the other target is not there, or is this one run
            in the same way.
    """
    if function is None and word.endswith(".json"):
        several = read(word).reports
        if len(several) != 1:
            words = f"expected the report of one check, got {len(several)}"
            raise UsageFailure(f"--against {word}: {words}")
        return several[0]
    request, (own, reference) = planned.request, planned.functions
    if function is None and word in _RUN_OTHERWISE:
        if not setting.isolate:
            words = f"--against {word}: one process cannot do both"
            raise UsageFailure(words, "drop --no-isolate")
        other = replace(request, options={**request.options, "device": _RUN_OTHERWISE[word]})
    else:
        known = [*_RUN_OTHERWISE, *BUILTINS]
        if function is None and ":" not in word and word not in known:
            words = f"--against {word}: there is no such target"
            raise UsageFailure(words, did_you_mean(word, known))
        other, own = replace(request, target=word), function
    if (other, (own, reference)) == (request, planned.functions):
        raise UsageFailure(f"--against {word}: this is the target itself, run in the same way")
    beside = PlannedCheck("", other, kept=kept, functions=(own, reference))
    plain = replace(setting, fix_budget=0, beyond=False)
    (outcome,) = check_each([beside], plain, echo=sys.stderr.write)
    error = outcome.report.error
    if outcome.code == UsageFailure.exit_code and error is not None:
        raise UsageFailure(f"--against {word}: {error.message}", error.way_out)
    return outcome.report


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


def _report_of_small(planned: PlannedCheck, setting: Setting, layout: str = "") -> Report | None:
    """That of the check in the interpreter, where operations are followed and so nothing has to be recovered.

    Args:
        layout: to be run alone; "" for those of the check.
    """
    small = for_the_interpreter(planned.request)
    options = {**small.options, "recover": False}
    if layout:
        options.pop("layout", None)
        options["runs"] = [layout]
    again = PlannedCheck(planned.title, replace(small, options=options))
    how = replace(setting, timeout=None)
    # A process that a library takes to a GPU could not fork any more.
    with setting_environment({VISIBLE: ""}):
        (ended,) = run_each(FACTORY, how, [again], timeout=LAST_RESORT)
    return ended.result.report if isinstance(ended.result, CheckOutcome) else None


def memory_of_small(
    planned: PlannedCheck, layout: str, setting: Setting
) -> tuple[MemoryFinding, ...]:
    """What a small case in the interpreter does to memory; nothing where it cannot be run there, or is right."""
    report = _report_of_small(planned, setting, layout)
    return tuple(finding for run in (report.runs if report else ()) for finding in run.memory)


def with_interpreter(
    planned: PlannedCheck, outcome: CheckOutcome, setting: Setting
) -> CheckOutcome:
    """A mismatch; of kernels that were compiled for a GPU with what a small case in the interpreter shows."""
    report = outcome.report
    if report.target.backend != "triton" or report.case is None or planned.close_up is not None:
        return outcome
    # Whether or not the GPU was lost in a later layout.
    if report.case.device != "cuda" or (report.error and report.error.kind != DEVICE):
        return outcome
    small = _report_of_small(planned, setting)
    return replace(outcome, report=with_causes_of(report, planned, small)) if small else outcome


def with_causes_of(report: Report, planned: PlannedCheck, small: Report) -> Report:
    """The report with the causes of the small case, where that goes wrong first in what is wrong in the large one too.

    What it leaves right has another cause: then those of the report stand beside them.
    """
    here, there = _wrong(report), _wrong(small)
    if not small.causes or not there or there[0] not in here:
        return report
    first, *others = map(_as_interpreted, small.diagnoses)
    asked = planned.request.options
    options = for_the_interpreter(planned.request).options.items()
    smaller = {name: word for name, word in options if asked.get(name) != word}
    del smaller["device"]
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
    """What was returned and is wrong in some run, in the order of the dataflow."""
    found: dict[str, None] = {}
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
