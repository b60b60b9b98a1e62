"""`gradprobe check`: the main job, and what else is asked of one kernel by an option of its own."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
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
from .report_forms import Forms, with_forms


@dataclass(frozen=True)
class Mode:
    """What is asked of the kernel; of these one alone is."""

    battery: str | None
    against: str | None
    baseline: str | None
    contract: bool

    @property
    def options(self) -> dict[str, Any]:
        """As on the command line."""
        word = shared.battery_as_told(self.battery)
        return {
            "battery": word,
            "against": self.against,
            "baseline": self.baseline,
            "contract": self.contract or None,
        }

    def refuse_two(self) -> None:
        """Does nothing where one is asked for at most.

        Raises:
            UsageFailure: two are.
        """
        given = [name for name, word in self.options.items() if word is not None]
        if len(given) > 1:
            raise UsageFailure(
                f"--{given[0]} and --{given[1]} ask for two things", "give one of them"
            )


@dataclass(frozen=True)
class Effort:
    """How a check is made."""

    isolate: bool
    timeout: float | None
    fresh: bool
    fix_budget: int | None
    shrink_budget: int


_MODE = {
    "battery": (None, shared.Battery),
    "against": (None, Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Another target, a saved REPORT.json, or interpreted or compiled for the same one: judge it too,"
            " and say where they differ",
        ),
    ]),
    "baseline": (None, Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keep the errors of a right kernel in FILE; once there, fail where one grows beyond its noise",
        ),
    ]),
    "contract": (False, Annotated[
        bool, typer.Option("--contract", help="Read the kernel's arithmetic: what it rounds, and in what it adds up")
    ]),
}  # fmt: skip
_EFFORT = {
    "isolate": (True, shared.Isolate),
    "timeout": (None, shared.Timeout),
    "fresh": (False, shared.Fresh),
    "fix_budget": (None, shared.FixBudget),
    "shrink_budget": (shared.SHRINK_BUDGET, shared.ShrinkBudget),
}


@shared.with_case_options
@with_forms
@shared.with_group("effort", Effort, _EFFORT)
@shared.with_group("mode", Mode, _MODE)
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
    command = request.command(**mode.options, fresh=effort.fresh or None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(failures_told(forms, command, show_traceback, request.target))
        mode.refuse_two()
        if effort.fresh:
            from ..processes.child import fresh_caches

            stack.enter_context(fresh_caches())
        forms.refuse_one_file_twice()
        shared.refuse_wrong_words(request)
        if mode.contract or mode.baseline is not None:
            is_whole_file = target is None and not (family or reference or options)
            asked = None if is_whole_file else request
            how = Setting(show_traceback, isolate=effort.isolate)
            raise typer.Exit(_of_arithmetic(asked, request, mode, forms, how))
        raise typer.Exit(_checked(target, request, mode, effort, forms, show_traceback))


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
    if mode.baseline is not None:
        from .baseline_output import check_baseline

        return check_baseline(
            asked, mode.baseline, json_file, isolate=how.isolate, tracebacks=how.tracebacks
        )
    from .own_process import apart

    given = {"isolate": how.isolate, "show_traceback": how.tracebacks}
    return apart(_read_contract, request, json_file, target=request.target, **given)


def _read_contract(request: CheckRequest, json_file: str | None) -> int:
    """Reads the contract and shows it; the exit code."""
    from ..commands.contract_request import read_contract, render_contract
    from ..render.terminal import dump, show, width

    read = read_contract(request)
    dump(json_file, read.as_json())
    if json_file != "-":
        show(render_contract(read, width()))
    return 0 if not read.contract.unread else 1


def _checked(
    target: str | None,
    request: CheckRequest,
    mode: Mode,
    effort: Effort,
    forms: Forms,
    tracebacks: bool,
) -> int:
    """Makes one check, or several; the exit code."""
    battery, isolate = mode.battery, effort.isolate
    if battery is not None:
        from ..commands.suite.batteries import refuse_unknown_battery

        refuse_unknown_battery(battery)
    effective = effective_settings(Path.cwd())
    plan = _configured(target, request, effective) if battery is None else []
    if target is None and not plan:
        effective.refuse_misspelt()
    timeout = effective.timeout(effort.timeout)
    print_settings(
        effective.line(
            request.options, effort.timeout, [plural(len(plan), "check")] if plan else []
        )
    )
    if mode.against is not None and plan:
        raise UsageFailure("--against takes one plain check", "name a TARGET")
    if effort.timeout is not None and not isolate:
        raise UsageFailure(
            "--timeout stops a process, and --no-isolate is in this one", "drop one of them"
        )
    # Of several checks edits are tried only where it is asked for: it would be the time of each that fails.
    fix_budget = 0 if plan or battery else shared.FIX_BUDGET
    how = Setting(
        tracebacks,
        isolate=isolate,
        timeout=timeout if isolate else None,
        fix_budget=fix_budget if effort.fix_budget is None else effort.fix_budget,
        shrink_budget=effort.shrink_budget,
        beyond=not battery,
    )
    if plan or battery:
        from ..commands.suite.runner import Runner
        from .check_series import check_several

        checks = Plan(plan)
        if battery:
            from ..commands.suite.batteries import battery_plan, refuse_set_by_it

            refuse_set_by_it(battery, request.options)
            checks, how = battery_plan(battery, effective.over(request), how)
        return check_several(Runner(checks, how), forms)
    planned = PlannedCheck("", effective.over(request), fresh=effort.fresh)
    if mode.against is not None:
        return check_against(planned, mode.against, forms, how)
    return check_one(
        replace(planned, chosen=shared.BUILT_IN if target is None else ""), forms, how
    )


def _configured(
    target: str | None, request: CheckRequest, effective: EffectiveSettings
) -> list[PlannedCheck]:
    """What the project's table asks for, where the command line asks for nothing."""
    is_asked = target is not None or request.family or request.reference or request.options
    return [] if is_asked else configured(effective)
