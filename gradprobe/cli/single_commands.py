"""Commands of one question: `audit`, `doctor`, `lint` and `explain`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Annotated, Any

import typer

from ..inputs.history import CheckRequest
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import MATCH
from ..model.report import Report
from ..render.terminal import Progress, interrupted, print_failure, show, width
from . import shared_options as shared
from .own_process import apart
from .report_forms import Forms, failures_told, show_document, with_page

_REFERENCE = "FILE.py:FUNCTION or MODULE:FUNCTION"
_CLIMBED = "As for check; without it, the machine is examined"
_READ = "FILE.py, or as for check (default: lazy)"
_WORD = "A fault, a class of faults, a rule, an identity or a budget (default: all)"


@shared.with_case_options
@partial(with_page, details=False)
def audit(
    reference: Annotated[str, shared.argument("REFERENCE", _REFERENCE)],
    family: shared.Family = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Judge a reference of your own, and name its first wrong formula with its line.

    It is called as its parameters' names say, in torch or numpy, for one head or many, with and without a causal mask,
    and judged by the built-in formulas. A wrong one exits with 1.
    """
    request = CheckRequest(reference, family, None, options)
    with failures_told(forms, request.command("audit"), show_traceback, reference):
        shared.refuse_wrong_words(request)
        how = {"isolate": isolate, "show_traceback": show_traceback}
        report = apart(_audited, request, target=reference, **how)
        forms.show(report)
        code = 0 if report.verdict == MATCH else 1
        raise typer.Exit(forms.write(Reports(reports=(report,)), code))


def _audited(request: CheckRequest) -> Report:
    from ..commands.audit_request import audited

    return audited(request)


@shared.with_case_options
def doctor(
    target: Annotated[str | None, shared.argument("TARGET", _CLIMBED)] = None,
    family: shared.Family = None,
    json_file: shared.JsonFile = None,
    fresh: shared.Fresh = False,
    timeout: shared.Timeout = None,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Climb a ladder from the simplest kernels up, on this machine or with TARGET, and say what really runs.

    Look at the first rung that is not green: what it needs more than the one below it is at fault.
    """
    request = shared.request_of(target, family, options)
    command = "gradprobe doctor"
    if target is not None:
        command = request.command("doctor", fresh=fresh or None)
    with failures_told(json_file, command, show_traceback, target, runs=False):
        from ..commands.doctor.climbing import examine
        from ..commands.doctor.doctor_screen import as_json, render_examination
        from ..processes.child import fresh_caches

        if target is None and (options or family):
            words = "doctor takes a case with a TARGET alone"
            raise UsageFailure(words, "name what is to be climbed with")
        if target is not None:
            from ..commands.doctor.ladder import refuse_set

            refuse_set(request)
            shared.refuse_wrong_words(request)
        with fresh_caches() if fresh else contextlib.nullcontext(), Progress() as tick:
            try:
                made = examine(request if target else None, command, timeout, tick)
            except KeyboardInterrupt:
                tick.over(lambda: print_failure(interrupted(0, 0, "rungs")))
                raise
        show_document(json_file, as_json(made), render_examination(made, width()))
        raise typer.Exit(made.exit_code)


def lint(
    target: Annotated[str | None, shared.argument("TARGET", _READ)] = None,
    family: shared.Family = None,
    json_file: shared.JsonFile = None,
    details: shared.Details = False,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
) -> None:
    """Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run.

    Which tensor a pointer is, and whose a stride is, the names of the kernel's parameters say.
    """
    request = shared.request_of(target, family, {}, takes_file=True)
    word = request.target
    with failures_told(json_file, request.command("lint"), show_traceback, word):
        shared.refuse_wrong_words(request, takes_file=True)
        how = {"isolate": isolate, "show_traceback": show_traceback}
        raise typer.Exit(apart(_linted, word, family, json_file, details, target=word, **how))


def _linted(word: str, family: str | None, json_file: str | None, details: bool) -> int:
    from ..commands.kernel_reading import inquire, lint_as_json, render_lint

    inquiry = inquire(word, family)
    lines = render_lint(inquiry, width(), details=details)
    show_document(json_file, lint_as_json(inquiry), lines)
    return 1 if inquiry.findings else 0


def explain(
    word: Annotated[str | None, shared.argument("WORD", _WORD)] = None,
    show_traceback: shared.Traceback = False,
) -> None:
    """Say what a word of a report means, how it looks, where it was seen for real, and what to try.

    A word is a fault ("stride/do-head", or its class "S1"), a rule ("GP010", "foreign"), an identity ("I3") or a
    budget ("tf32"). Without one, all are listed.
    """
    with failures_told(None, "gradprobe explain", show_traceback, runs=False):
        from ..render.topic import render_list, render_topics, topics_of

        show(render_list(width()) if word is None else render_topics(topics_of(word), width()))
