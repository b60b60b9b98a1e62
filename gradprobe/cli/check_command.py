"""`gradprobe check`: the main job, and its battery of inputs that expose what others hide."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.configuration.effective import configured, effective_settings
from ..commands.suite.checking import Setting
from ..commands.suite.plan import Plan, PlannedCheck
from ..model.failures import UsageFailure
from ..model.number import plural
from . import shared_options as shared
from .checks import check_against, check_one
from .error_output import failures_told, print_settings
from .report_forms import Forms, with_forms


@shared.with_case_options
@with_forms
def check(
    target: shared.Target = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    isolate: shared.Isolate = True,
    timeout: shared.Timeout = None,
    battery: shared.Battery = None,
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
    shrink_budget: shared.ShrinkBudget = shared.SHRINK_BUDGET,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch.

    Without any target or case option, what pyproject.toml configures under tool.gradprobe is checked.
    """
    if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        from ..sharded.under_torchrun import ranks_of_torchrun

        size = ranks_of_torchrun()
        options = {"ranks": size, **options} if size else options
    request = shared.request_of(target, family, options, reference)
    command = request.command(battery=shared.battery_as_told(battery), fresh=fresh or None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(failures_told(forms, command, show_traceback, request.target))
        if fresh:
            from ..runtime.caches import fresh_caches

            stack.enter_context(fresh_caches())
        forms.refuse_one_file_twice()
        shared.refuse_wrong_words(request)
        if battery is not None:
            from ..commands.suite.batteries import refuse_unknown_battery

            refuse_unknown_battery(battery)
        effective = effective_settings(Path.cwd())
        seconds = effective.timeout(timeout)
        plan = configured(effective) if target is None and not (family or reference or options or battery) else []
        if target is None and not plan:
            effective.refuse_misspelt()
        print_settings(effective.line(options, timeout, [plural(len(plan), "check")] if plan else []))
        if against is not None and (plan or battery):
            raise UsageFailure("--against takes one plain check", "drop --battery, or name a TARGET")
        if timeout is not None and not isolate:
            raise UsageFailure("--timeout stops a process, and --no-isolate is in this one", "drop one of them")
        how = Setting(
            show_traceback,
            isolate=isolate,
            timeout=seconds if isolate else None,
            shrink_budget=shrink_budget,
            beyond=not battery,
        )
        # Of several checks only where it is asked for: it would be the time of each that fails.
        several = 0 if plan or battery else shared.FIX_BUDGET
        how = replace(how, fix_budget=several if fix_budget is None else fix_budget)
        if plan or battery:
            from ..commands.suite.runner import Runner
            from .check_series import check_several

            checks = Plan(plan)
            if battery:
                from ..commands.suite.batteries import battery_plan, refuse_set_by_it

                refuse_set_by_it(battery, request.options)
                checks, how = battery_plan(battery, effective.over(request), how)
            raise typer.Exit(check_several(Runner(checks, how), forms))
        if against is not None:
            planned = PlannedCheck("", effective.over(request), fresh=fresh)
            raise typer.Exit(check_against(planned, against, forms, how))
        planned = PlannedCheck("", effective.over(request), fresh=fresh)
        planned = replace(planned, chosen=shared.BUILT_IN if target is None else "")
        raise typer.Exit(check_one(planned, forms, how))
