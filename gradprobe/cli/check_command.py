"""`gradprobe check`: the main job, and what else is asked of one kernel by an option of its own."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..commands.settings import Settings
from ..commands.suite.checking import Setting
from ..commands.suite.plan import Plan, PlannedCheck
from ..inputs.history import CheckRequest
from ..model.documents import AUTO
from ..model.failures import UsageFailure
from ..model.number import plural
from . import shared_options as shared
from .checks import check_against, check_one
from .report_forms import Forms, failures_told, show_document, with_forms

# What torchrun says to each of its processes.
_OF_TORCHRUN = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
)  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """What is asked of the kernel; of these one alone is."""

    battery: Annotated[str | None, shared.option("--battery")] = None
    against: Annotated[str | None, shared.option("--against")] = None
    baseline: Annotated[str | None, shared.option("--baseline")] = None
    contract: Annotated[bool, shared.option("--contract")] = False

    @property
    def options(self) -> dict[str, Any]:
        """As a command line that repeats the check has them."""
        words = vars(self) | {"battery": True if self.battery == AUTO else self.battery}
        return {name: word for name, word in words.items() if word not in (None, False)}


@dataclass(frozen=True)
class Effort:
    isolate: shared.Isolate = True
    timeout: shared.Timeout = None
    fresh: shared.Fresh = False
    fix_budget: Annotated[int | None, shared.option("--fix-budget")] = None
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
        options = {**_ranks_of_torchrun(), **options}
    request = shared.request_of(target, family, options, reference)
    is_asked = bool(target is not None or family or reference or options)
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
            asked = request if is_asked else None
            how = {"isolate": effort.isolate, "show_traceback": show_traceback}
            raise typer.Exit(_of_arithmetic(asked, request, mode, forms, how))
        if mode.battery is not None:
            from ..commands.suite.battery import refuse_set_by_it, refuse_unknown_battery

            refuse_unknown_battery(mode.battery)
            refuse_set_by_it(options)  # not what a project sets: an item replaces it
        settings = shared.settings_here(target)
        configured = [] if is_asked or mode.battery else settings.configured()
        counted = [plural(len(configured), "check")] if configured else []
        shared.note_settings(settings, request.options, effort.timeout, counted)
        how_each = _setting(mode, effort, settings, show_traceback, is_several=bool(configured))
        plan, whole = Plan(configured), settings.over(request)
        if mode.battery:
            from ..commands.suite.battery import battery_plan

            plan, how_each = battery_plan(mode.battery, whole, how_each)
        if mode.battery or configured:
            from ..commands.suite.runner import Runner
            from .checks import check_several

            if mode.against is not None:
                raise UsageFailure("--against takes one plain check", "name a TARGET")
            raise typer.Exit(check_several(Runner(plan, how_each), forms))
        chosen = shared.BUILT_IN if target is None else ""
        planned = PlannedCheck("", whole, fresh=effort.fresh, chosen=chosen)
        if mode.against is not None:
            raise typer.Exit(check_against(planned, mode.against, forms, how_each))
        raise typer.Exit(check_one(planned, forms, how_each))


def _setting(
    mode: Mode, effort: Effort, settings: Settings, tracebacks: bool, *, is_several: bool
) -> Setting:
    """How checks are made. Of several that fail, edits would take the time of each: they are tried where asked for."""
    timeout = settings.timeout(effort.timeout)
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


def _of_arithmetic(
    asked: CheckRequest | None,
    request: CheckRequest,
    mode: Mode,
    forms: Forms,
    how: dict[str, Any],
) -> int:
    """What the errors of a kernel, or the bits of its results, say; `asked` is None where no target or case was."""
    if others := forms.files.keys() - {"--json"}:
        raise UsageFailure(f"{min(others)}: this is written as --json alone")
    json_file = forms.files.get("--json")
    if mode.baseline is not None:
        from .baseline_output import check_baseline

        return check_baseline(asked, mode.baseline, json_file, **how)
    from .own_process import apart

    return apart(_read_contract, request, json_file, target=request.target, **how)


def _read_contract(request: CheckRequest, json_file: str | None) -> int:
    from ..commands.contract_request import read_contract, render_contract
    from ..render.terminal import width

    contract = read_contract(request)
    show_document(json_file, contract.as_json(), render_contract(contract, width()))
    return 1 if contract.unread else 0


def _ranks_of_torchrun() -> dict[str, int]:
    """`torchrun -m gradprobe check`: rank 0 checks, in as many ranks of its own; the others end at once."""
    size = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    if not size.isdigit() or size == "1":
        return {}
    if os.environ["RANK"] != "0":
        raise SystemExit(0)
    # The process that checks is no rank.
    for name in [*os.environ]:
        if name in _OF_TORCHRUN or name.startswith("TORCHELASTIC_"):
            del os.environ[name]
    return {"ranks": int(size)}
