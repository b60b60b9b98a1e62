"""Commands of one question: `audit`, `doctor`, `lint` and `explain`."""

from __future__ import annotations

import inspect
from typing import Annotated

from ..inputs.history import CheckRequest
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import MATCH
from ..model.report import Report
from ..render.terminal import Progress, interrupted, print_failure, show, width
from .call import Call, command
from .options import argument
from .report_forms import show_document

_REFERENCE = argument("REFERENCE", "FILE.py:FUNCTION or MODULE:FUNCTION")
_CLIMBED = argument("TARGET", "As for check; without it, the machine is examined")
_READ = argument("TARGET", "FILE.py, or as for check (default: lazy)")
_WORD = "A fault, a class of faults, a rule, an identity or a budget (default: all)"


@command(
    *("target", "family", "isolate"),
    target=(inspect.Parameter.empty, Annotated[str, _REFERENCE]),
)
def audit(call: Call) -> int:
    """Judge a reference of your own, and name its first wrong formula with its line.

    It is called as its parameters' names say, in torch or numpy, for one head or many, with and without a causal mask,
    and judged by the built-in formulas. A wrong one exits with 1.
    """
    report = call.apart(_audited, call.request)
    call.forms.show(report)
    code = 0 if report.verdict == MATCH else 1
    return call.forms.write(Reports(reports=(report,)), code)


def _audited(request: CheckRequest) -> Report:
    from ..commands.audit_request import audited

    return audited(request)


@command(
    *("target", "family", "fresh", "timeout"),
    target=(None, Annotated[str | None, _CLIMBED]),
    is_run=False,
)
def doctor(call: Call) -> int:
    """Climb a ladder from the simplest kernels up, on this machine or with TARGET, and say what really runs.

    Look at the first rung that is not green: what it needs more than the one below it is at fault.
    """
    from ..commands.doctor.climbing import examine
    from ..commands.doctor.doctor_screen import as_json, render_examination

    request, line = call.request, "gradprobe doctor"
    if call.target is not None:
        from ..commands.doctor.ladder import refuse_set

        refuse_set(request)
        line = request.command("doctor", fresh=call.fresh or None)
    elif request.options or request.family:
        words = "doctor takes a case with a TARGET alone"
        raise UsageFailure(words, "name what is to be climbed with")
    with Progress() as tick:
        try:
            made = examine(request if call.target else None, line, call.timeout, tick)
        except KeyboardInterrupt:
            tick.over(lambda: print_failure(interrupted(0, 0, "rungs")))
            raise
    show_document(call.forms.json, as_json(made), render_examination(made, width()))
    return made.exit_code


@command(
    *("target", "family", "details", "isolate"),
    target=(None, Annotated[str | None, _READ]),
    takes_file=True,
    has_case=False,
)
def lint(call: Call) -> int:
    """Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run.

    Which tensor a pointer is, and whose a stride is, the names of the kernel's parameters say.
    """
    return call.apart(_linted, call.request, call.forms.json, call.forms.details)


def _linted(request: CheckRequest, json_file: str | None, details: bool) -> int:
    from ..commands.kernel_reading import inquire, lint_as_json, render_lint

    inquiry = inquire(request.target, request.family)
    lines = render_lint(inquiry, width(), details=details)
    show_document(json_file, lint_as_json(inquiry), lines)
    return 1 if inquiry.findings else 0


@command(has_case=False, is_run=False)
def explain(call: Call, word: Annotated[str | None, argument("WORD", _WORD)] = None) -> int:
    """Say what a word of a report means, how it looks, where it was seen for real, and what to try.

    A word is a fault ("stride/do-head", or its class "S1"), a rule ("GP010", "foreign"), an identity ("I3") or a
    budget ("tf32"). Without one, all are listed.
    """
    from ..render.topic import render_list, render_topics, topics_of

    show(render_list(width()) if word is None else render_topics(topics_of(word), width()))
    return 0
