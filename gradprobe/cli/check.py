"""`gradprobe check`: the main job, and its battery of inputs that expose what others hide."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.configuration.effective import EffectiveSettings, configured, effective_settings
from ..commands.suite.battery import Item, battery, hinted, set_by, weighed
from ..commands.suite.checked import Checked, Planned
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.matrix import described
from ..inputs.history import CheckRequest
from ..inputs.options import command_line
from ..model.documents import Untaken
from ..model.failures import UsageFailure
from ..model.number import plural
from ..pipeline.sanitizer import sanitizer_for
from ..runtime.caches import fresh_caches
from . import shared_options as shared
from .against import check_against
from .checks import check_one, check_several
from .error_output import failures_told, print_settings
from .forms import Forms, with_forms


def check_battery(request: CheckRequest, effective: EffectiveSettings, forms: Forms, setting: Setting) -> int:
    """Makes the checks of the battery, one process for all; the exit code of all.

    Raises:
        UsageFailure: an option was given that an item of the battery sets.
    """
    for name, word in request.options.items():
        if by := set_by(name):
            one = command_line("", "", {name: word}).split(maxsplit=1)[1]
            raise UsageFailure(f"{one}: {by} of --battery sets it", "drop it, or check that case without --battery")
    request = effective.over(request)
    beside = {name: word for name, word in request.options.items() if not set_by(name)}
    (takes,) = described([request], str(beside.get("device", "auto")), setting.timeout, isolate=setting.isolate)
    # A target that cannot be imported is asked once, and that says why.
    items = battery(takes.family, takes.names, takes.required) if takes else (Item(1, "contiguous", {}, ""),)
    asked_for = {f"battery {item.number}: {item.title}": item for item in items}

    def weigh(checked: Checked) -> Checked:
        item = asked_for[checked.title]
        return hinted(checked if beside.get("strict") else weighed(checked, item, made), item)

    def made(options: Mapping[str, Any]) -> Checked:
        (again,) = check_each([Planned("", replace(request, options=options))], setting)
        return again

    # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
    without = {"recover": False, **beside}
    return check_several(
        [
            Planned(title, replace(request, options={**without, **item.options}))
            for title, item in asked_for.items()
            if not item.why_not
        ],
        forms,
        setting,
        untaken=[Untaken(title, item.why_not) for title, item in asked_for.items() if item.why_not],
        closer=lambda failing: failing if "recover" in beside else weigh(looked_into(failing, setting)),
        weigh=weigh,
    )


def looked_into(failing: Checked, setting: Setting) -> Checked:
    """The check once more with the inside of a black box; as it was where there is none, or nothing is wrong now."""
    is_black_box = any({"P", "dS"} & set(run.absent) for run in failing.report.runs)
    if failing.verdict != "mismatch" or not is_black_box:
        return failing
    options = {name: word for name, word in failing.request.options.items() if name != "recover"}
    planned = Planned(failing.title, replace(failing.request, options=options))
    (again,) = check_each([planned], setting)
    return again.numbered(failing.report.number) if again.verdict == "mismatch" else failing


@shared.with_case_options
@with_forms
def check(
    target: shared.Target = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    isolate: shared.Isolate = True,
    timeout: shared.Timeout = None,
    battery: Annotated[
        bool,
        typer.Option("--battery", help="Check inputs that expose what others hide, as far as TARGET takes them"),
    ] = False,
    sanitize: Annotated[
        str | None,
        typer.Option(
            "--sanitize",
            metavar="TOOL",
            help="On a GPU: memcheck, racecheck, initcheck, synccheck of compute-sanitizer too",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Another target, a saved REPORT.json, or interpreted or compiled for the same one: judge it too,"
            " and say where they differ",
        ),
    ] = None,
    fresh: shared.Fresh = False,
    fix_budget: shared.FixBudget = None,
    coincidence_budget: shared.CoincidenceBudget = None,
    shrink_budget: shared.ShrinkBudget = shared.SHRINK_BUDGET,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch.

    Without any target or case option, what pyproject.toml configures under tool.gradprobe is checked.
    """
    request = shared.request_of(target, family, options, reference)
    command = request.command(battery=battery or None, fresh=fresh or None)
    with (
        failures_told(forms, command, show_traceback, request.target),
        fresh_caches() if fresh else contextlib.nullcontext(),
    ):
        forms.refuse_one_file_twice()
        shared.refuse_wrong_words(request)
        effective = effective_settings(Path.cwd())
        seconds = effective.timeout(timeout)
        plan = configured(effective) if target is None and not (family or reference or options or battery) else []
        print_settings(effective.line(options, timeout, [plural(len(plan), "check")] if plan else []))
        sanitizer = None if sanitize is None else (sanitizer_for(sanitize), sanitize)
        if sanitize is not None and (plan or battery):
            raise UsageFailure("--sanitize takes one check, not several", "run them one at a time")
        if against is not None and (plan or battery or sanitize):
            raise UsageFailure("--against takes one plain check", "drop --battery or --sanitize, or name a TARGET")
        if request.options.get("oracle") == "identities" and (battery or against is not None):
            raise UsageFailure("--oracle identities takes one plain check", "drop --battery or --against")
        if timeout is not None and not isolate:
            raise UsageFailure("--timeout stops a process, and --no-isolate is in this one", "drop one of them")
        how = Setting(
            show_traceback, isolate=isolate, timeout=seconds if isolate else None, shrink_budget=shrink_budget
        )
        # Of several checks only where it is asked for: it would be the time of each that fails.
        several = 0.0 if plan or battery else shared.FIX_BUDGET
        how = replace(how, fix_budget=several if fix_budget is None else fix_budget)
        several = 0.0 if plan or battery else shared.COINCIDENCE_BUDGET
        how = replace(how, coincidence_budget=several if coincidence_budget is None else coincidence_budget)
        if plan:
            raise typer.Exit(check_several(plan, forms, how))
        if battery:
            raise typer.Exit(check_battery(request, effective, forms, how))
        if against is not None:
            raise typer.Exit(check_against(Planned("", effective.over(request), fresh=fresh), against, forms, how))
        raise typer.Exit(check_one(Planned("", effective.over(request), sanitizer=sanitizer, fresh=fresh), forms, how))
