"""`gradprobe strides`: the guard against stride regressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from msgspec import structs

from ..commands.suite.checking import Setting
from ..commands.suite.outcome import code_of, code_of_report
from ..inputs.history import CheckRequest
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.report import Report
from ..render.terminal import Progress, interrupted, print_failure, write_stdout
from .checks import say
from .command import Call, Command, count_of_workers
from .option_rows import option
from .report_forms import Forms

# A small case with a partial tile along both axes: there are many runs.
SMALL = {"seqlen": 37, "head_dim": 16, "block_m": 32, "block_n": 32}
# Each imports torch and makes the contiguous run for itself, which more would not repay.
_MOST_WORKERS = 4
_LAYOUTS = ("layout", "runs")
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens"}
# What contradicts a survey of layouts, or would change nothing about it.
_REFUSED = {
    **dict.fromkeys((*_LAYOUTS, "inputs"), "strides tries every layout, of drawn values"),
    "repeat": "strides runs each layout as often as it needs",
    "poison": "strides fills memory with NaN",
}


@Command("target family details timeout fix_budget")
def strides(
    call: Call,
    fast: Annotated[bool, option("--fast", "Try fewer layouts, for use on every push")] = False,
) -> int:
    """Run a kernel with every tensor in every layout, and say which it gets wrong.

    Each run is held against the same values laid contiguous, bit for bit; where it differs, against the reference.
    Without a target, those are tried that pyproject.toml names under tool.gradprobe.
    """
    for name in call.request.options:
        if name in _REFUSED:
            raise UsageFailure(f"--{name}: {_REFUSED[name]}", f"gradprobe check takes --{name}")
    # A project's own layouts are for check: here all are tried.
    settings = call.settings(has_targets=call.target is None, ignored=_LAYOUTS)
    targets = call.targets(settings)
    so_far = Reports(reports=(), planned=len(targets))
    if code := call.forms.write_so_far(so_far):
        return code
    so_far = structs.replace(so_far, planned=len(targets) if len(targets) > 1 else None)
    workers = min(_MOST_WORKERS, count_of_workers(None, unless_gpu=True))
    how = call.setting(settings, workers=workers)
    own = {"fast": fast or None, "timeout": call.timeout}
    for word in targets:
        asked = settings.over(replace(call.request, target=word))
        report = _surveyed(asked, own, how, call.forms, so_far)
        say(report, call.tracebacks)
        call.forms.show(report)
        so_far = structs.replace(so_far, reports=(*so_far.reports, report))
    return call.forms.write(so_far, code_of(list(map(code_of_report, so_far.reports))))


def _surveyed(
    asked: CheckRequest, words: Mapping[str, Any], how: Setting, forms: Forms, before: Reports
) -> Report:
    """A target tried in every layout, what is known so far in every file after each.

    Args:
        words: the options of the command itself, for the line that repeats it.
    """
    from ..commands.survey import survey

    options = {name: word for name, word in asked.options.items() if name not in _LAYOUTS}
    small = {**SMALL}
    if _LENGTHS & options.keys():
        del small["seqlen"]
    request = replace(asked, options=small | options)
    repro_command = replace(asked, options=options).command("strides", **words)
    given, fast = frozenset(options), bool(words["fast"])
    report: Report | None = None
    done = of = 0
    with Progress() as tick:
        try:
            for report in survey(request, repro_command, given=given, fast=fast, setting=how):
                done, of = len(report.runs), report.strides.layouts if report.strides else 0
                tick(f"{asked.target}, layout {done} of {of}", done / max(1, of))
                forms.write_so_far(structs.replace(before, reports=(*before.reports, report)))
        except KeyboardInterrupt:
            if report and not forms.on_stdout:
                tick.over(partial(_show_stopped, report, f"{done} of {of} layouts", forms))
            print_failure(interrupted(done, of, "layouts"))
            raise
    assert report is not None
    return report


def _show_stopped(report: Report, count: str, forms: Forms) -> None:
    write_stdout(f"INTERRUPTED  {count} were tried; of these:\n")
    forms.show(report)
