"""`gradprobe sweep`: many cases of a target, several at a time, that can be killed and resumed."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ..commands.settings import Settings
from ..commands.suite.checking import Setting
from ..commands.suite.journal import Journal, SweepRequest
from ..commands.suite.on_ray import RayCluster
from ..commands.suite.plan import Plan
from ..commands.suite.runner import Runner
from ..commands.suite.sweep import sweep_plan
from ..commands.suite.takes import TargetSignature, described
from ..inputs import history as last
from ..inputs.options import OPTIONS, parse
from ..model.failures import INTERRUPTED, UsageFailure
from ..model.number import plural
from ..model.report import Report
from ..processes.resource_limits import gpus
from ..render.terminal import note
from . import shared_options as shared
from .checks import check_several
from .report_forms import Forms, failures_told, with_forms

# Given several times they say one thing together, and vary nothing.
_LISTS = {option.name for option in OPTIONS if option.kind is list}
# Drawn cases at most, as many as combinations.
_MOST = 10_000


@functools.partial(shared.with_case_options, several=True)
@with_forms
def sweep(
    target: shared.Target = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    draw: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_MOST, help="Draw so many cases from all that TARGET takes"
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", min=0.01, help="Draw cases for so long")
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Append each result to this file (default: .gradprobe/sweep.jsonl)",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Go on with the sweep whose results are in this file"),
    ] = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    workers: Annotated[
        int | None,
        typer.Option(
            help="Checks at a time (default: one a GPU where there are any, else one a core)"
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar=shared.ON_RAY,
            help="Make the checks on the Ray cluster at ADDRESS (default: one started here)",
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0, help="How often --ray makes a check again whose worker or machine is lost"
        ),
    ] = 3,
    timeout: shared.Timeout = None,
    shrink_budget: shared.ShrinkBudget = shared.SHRINK_BUDGET,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Check many cases, several at a time, the cheapest first.

    An option given several times takes each of its values: --heads 1 --heads 3 --dtype float32 --dtype float16 is four
    cases. With --draw or --minutes cases are drawn from all that the target takes, of the values given where an option
    is; without anything, a dozen are. A sweep that was killed goes on with --resume.
    """
    request = shared.request_of(target, family, options, reference)
    own = {"draw": draw, "minutes": minutes, "journal": journal, "resume": resume}
    repro_command = replace(request, target=target or "").command(
        "sweep", **own, workers=workers, timeout=timeout
    )
    with failures_told(forms, repro_command, show_traceback, target):
        forms.refuse_one_file_twice()
        shared.refuse_wrong_words(replace(request, options={}))
        for name, words in options.items():
            parse({name: words} if name in _LISTS else {name: words[0]})
        settings = shared.settings_here(target)
        on_gpus = workers is None and options.get("device") != ["cpu"] and gpus()
        at_a_time = len(gpus()) if on_gpus else shared.count_of_workers(workers)
        limit = settings.timeout(timeout)
        how = Setting(show_traceback, at_a_time, timeout=limit, shrink_budget=shrink_budget)
        cluster = None if ray is None else RayCluster(ray, retries)
        if cluster is not None:
            cluster.refuse_unusable()
        if resume is not None:
            given = {"target": target, "family": family, "reference": reference, **own, **options}
            _refuse_beside_resume(given)
            kept = Journal.reopened(resume)
            plan = _plan(kept.asked, how, kept.reports)
        else:
            asked = _asked(request, target, settings, draw, minutes)
            counted = [plural(len(asked.requests), "target")] if target is None else []
            shared.note_settings(settings, options, timeout, counted)
            plan = _plan(asked, how)
            kept = Journal.begun(asked, journal)
        with kept:
            code = check_several(Runner(plan, how, kept, cluster), forms)
        if code == INTERRUPTED and kept.file:
            note(f"it goes on with gradprobe sweep --resume {shlex.quote(kept.file)}")
        raise typer.Exit(code)


def _refuse_beside_resume(words: Mapping[str, Any]) -> None:
    for name, word in words.items():
        if name != "resume" and word not in (None, "", []):
            what = "TARGET" if name == "target" else f"--{name.replace('_', '-')}"
            told = f"--resume goes on with its own cases, and {what} asks for others"
            raise UsageFailure(told, f"drop {what}")


def _asked(
    request: last.CheckRequest,
    target: str | None,
    settings: Settings,
    draw: int | None,
    minutes: float | None,
) -> SweepRequest:
    """What the command line asks for."""
    if draw is not None and minutes is not None:
        raise UsageFailure(
            "--draw and --minutes each say which cases there are", "drop --minutes"
        )
    fixed, varied = dict[str, Any](), dict[str, list[Any]]()
    for name, words in request.options.items():
        values = list(dict.fromkeys(words))
        if name in _LISTS:
            fixed[name] = words
        elif len(values) == 1:
            fixed[name] = values[0]
        else:
            varied[name] = values
    targets = shared.targets_of(target, settings)
    if len(targets) > 1 and minutes is not None:
        raise UsageFailure("--minutes takes one target", f"name one: {targets[0]}")
    requests = list[last.CheckRequest]()
    for word in targets:
        whole = settings.over(replace(request, target=word, options=fixed))
        own = {name: value for name, value in whole.options.items() if name not in varied}
        requests.append(replace(whole, options=own))
    return SweepRequest(tuple(requests), varied, draw, minutes)


def _plan(asked: SweepRequest, how: Setting, kept: Sequence[Report] = ()) -> Plan:
    """The cases of a sweep; where they depend on what the targets take, these are asked."""
    takes: list[TargetSignature | None] = [None] * len(asked.requests)
    if asked.is_drawn:
        takes = list(described(asked.requests, how.timeout))
    return sweep_plan(asked, takes, kept, how.workers)
