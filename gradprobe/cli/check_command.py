"""`gradprobe check`: the main job, and what else is asked of one kernel by an option of its own."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.configuration.effective import EffectiveSettings, configured, effective_settings
from ..commands.suite.checking import Setting
from ..commands.suite.plan import Plan, PlannedCheck
from ..inputs.history import CheckRequest
from ..model.failures import UsageFailure
from ..model.number import plural
from . import shared_options as shared
from .checks import check_against, check_one
from .error_output import failures_told, print_settings
from .report_forms import Forms, show_document, with_forms


@dataclass(frozen=True)
class Mode:
    """What is asked of the kernel; of these one alone is."""

    battery: shared.Battery = None
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Another target, a saved REPORT.json, or interpreted or compiled for the same one: judge it too, and"
            " say where they differ",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keep the errors of a right kernel in FILE; once there, fail where one grows beyond its noise",
        ),
    ] = None
    contract: Annotated[
        bool,
        typer.Option(
            "--contract",
            help="Read the kernel's arithmetic: what it rounds, and in what it adds up",
        ),
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        words = vars(self) | {"battery": shared.battery_as_told(self.battery)}
        return {name: word for name, word in words.items() if word not in (None, False)}


@dataclass(frozen=True)
class Effort:
    isolate: shared.Isolate = True
    timeout: shared.Timeout = None
    fresh: shared.Fresh = False
    fix_budget: shared.FixBudget = None
    shrink_budget: shared.ShrinkBudget = shared.SHRINK_BUDGET


@shared.with_case_options
@with_forms
@shared.with_fields("effort", Effort)
@shared.with_fields("mode", Mode)
def check(
    target: shared.Target = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    show_traceback: shared.Traceback = False,
    *,
    mode: Mode,
    effort: Effort,
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
    is_asked = target is not None or family or reference or options
    command = request.command(**mode.options, fresh=effort.fresh or None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(failures_told(forms, command, show_traceback, request.target))
        if len(mode.options) > 1:
            first, second, *_ = mode.options
            raise UsageFailure(f"--{first} and --{second} ask for two things", "give one of them")
        if effort.fresh:
            from ..processes.child import fresh_caches

            stack.enter_context(fresh_caches())
        forms.refuse_one_file_twice()
        shared.refuse_wrong_words(request)
        if mode.contract or mode.baseline is not None:
            how = Setting(show_traceback, isolate=effort.isolate)
            code = _of_arithmetic(request if is_asked else None, request, mode, forms, how)
        else:
            if mode.battery is not None:
                from ..commands.suite.battery import refuse_set_by_it, refuse_unknown_battery

                refuse_unknown_battery(mode.battery)
                refuse_set_by_it(options)  # not what a project sets: an item replaces it
            effective = effective_settings(Path.cwd())
            plan = [] if is_asked or mode.battery else configured(effective)
            if target is None and not plan:
                effective.refuse_misspelt()
            counted = [plural(len(plan), "check")] if plan else []
            print_settings(effective.line(request.options, effort.timeout, counted))
            how = _setting(mode, effort, effective, show_traceback, is_several=bool(plan))
            code = _checked(target, effective.over(request), mode, plan, forms, how, effort.fresh)
        raise typer.Exit(code)


def _setting(
    mode: Mode,
    effort: Effort,
    effective: EffectiveSettings,
    tracebacks: bool,
    *,
    is_several: bool,
) -> Setting:
    """How checks are made. Of several that fail, edits would take the time of each: they are tried where asked for."""
    timeout = effective.timeout(effort.timeout)
    shared.refuse_timeout_here(effort.timeout, isolate=effort.isolate)
    budget = 0 if is_several or mode.battery else shared.FIX_BUDGET
    return Setting(
        tracebacks,
        isolate=effort.isolate,
        timeout=timeout if effort.isolate else None,
        fix_budget=budget if effort.fix_budget is None else effort.fix_budget,
        shrink_budget=effort.shrink_budget,
        beyond=not mode.battery,
    )


def _checked(
    target: str | None,
    request: CheckRequest,
    mode: Mode,
    configured_checks: list[PlannedCheck],
    forms: Forms,
    how: Setting,
    fresh: bool,
) -> int:
    if mode.battery or configured_checks:
        from ..commands.suite.battery import battery_plan
        from ..commands.suite.runner import Runner
        from .checks import check_several

        if mode.against is not None:
            raise UsageFailure("--against takes one plain check", "name a TARGET")
        plan = Plan(configured_checks)
        if mode.battery:
            plan, how = battery_plan(mode.battery, request, how)
        return check_several(Runner(plan, how), forms)
    chosen = shared.BUILT_IN if target is None else ""
    planned = PlannedCheck("", request, fresh=fresh, chosen=chosen)
    if mode.against is not None:
        return check_against(planned, mode.against, forms, how)
    return check_one(planned, forms, how)


def _of_arithmetic(
    asked: CheckRequest | None, request: CheckRequest, mode: Mode, forms: Forms, how: Setting
) -> int:
    """What the errors of a kernel, or the bits of its results, say; the exit code.

    Args:
        asked: None where no target and no case was.
    """
    if others := forms.files.keys() - {"--json"}:
        raise UsageFailure(f"{min(others)}: this is written as --json alone")
    json_file = forms.files.get("--json")
    given = {"isolate": how.isolate, "show_traceback": how.tracebacks}
    if mode.baseline is not None:
        from .baseline_output import check_baseline

        return check_baseline(asked, mode.baseline, json_file, **given)
    from .own_process import apart

    return apart(_read_contract, request, json_file, target=request.target, **given)


def _read_contract(request: CheckRequest, json_file: str | None) -> int:
    from ..commands.contract_request import read_contract, render_contract
    from ..render.terminal import width

    contract = read_contract(request)
    show_document(json_file, contract.as_json(), render_contract(contract, width()))
    return 1 if contract.unread else 0
