"""`gradprobe check --battery`: the inputs that expose what others hide, as far as the target takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..commands.configuration.effective import EffectiveSettings
from ..commands.suite.battery import Item, battery, set_by
from ..commands.suite.checked import Checked, Planned
from ..commands.suite.checking import check_each
from ..commands.suite.described import described
from ..commands.suite.weighing import hinted, weighed
from ..commands.suite.worker import Setting
from ..inputs.history import CheckRequest
from ..inputs.options import command_line
from ..model.documents import Untaken
from ..model.failures import UsageFailure
from ..model.report import Report
from .check_many import check_several
from .forms import Forms


def check_battery(request: CheckRequest, effective: EffectiveSettings, forms: Forms, setting: Setting) -> int:
    """Makes the checks of the battery, one process for all; the exit code of all.

    Raises:
        UsageFailure: an option was given that an item of the battery sets.
    """
    _refuse(request.options)
    request = effective.over(request)
    beside = {name: word for name, word in request.options.items() if not set_by(name)}
    (takes,) = described([request], str(beside.get("device", "auto")), setting.timeout, isolate=setting.isolate)
    # A target that cannot be imported is asked once, and that says why.
    entries = battery(takes.family, takes.names, takes.required) if takes else (Item(1, "contiguous", {}, ""),)
    asked_for = {_title(entry): entry for entry in entries}

    def weigh(checked: Checked) -> Checked:
        entry = asked_for[checked.title]
        return hinted(checked if beside.get("strict") else weighed(checked, entry, made), entry)

    def made(options: Mapping[str, Any]) -> Checked:
        (again,) = check_each([Planned("", replace(request, options=options))], setting)
        return again

    return check_several(
        [_planned(entry, request, beside) for entry in entries if not entry.why_not],
        forms,
        setting,
        untaken=[Untaken(_title(entry), entry.why_not) for entry in entries if entry.why_not],
        closer=lambda failing: failing if "recover" in beside else weigh(_looked_into(failing, setting)),
        weigh=weigh,
    )


def _refuse(options: Mapping[str, Any]) -> None:
    for name, word in options.items():
        if by := set_by(name):
            one = command_line("", "", {name: word}).split(maxsplit=1)[1]
            raise UsageFailure(f"{one}: {by} of --battery sets it", "drop it, or check that case without --battery")


def _title(entry: Item) -> str:
    return f"battery {entry.number}: {entry.title}"


def _planned(entry: Item, request: CheckRequest, beside: Mapping[str, Any]) -> Planned:
    """Black boxes are not looked into: of all that fail, the simplest alone is shown in full."""
    return Planned(_title(entry), replace(request, options={"recover": False, **beside, **entry.options}))


def _looked_into(failing: Checked, setting: Setting) -> Checked:
    """The check once more with the inside of a black box; as it was where there is none, or nothing is wrong now."""
    if failing.verdict != "mismatch" or not _is_black_box(failing.report):
        return failing
    options = {name: word for name, word in failing.request.options.items() if name != "recover"}
    planned = Planned(failing.title, replace(failing.request, options=options))
    (again,) = check_each([planned], setting)
    return replace(again, number=failing.number) if again.verdict == "mismatch" else failing


def _is_black_box(report: Report) -> bool:
    return any({"P", "dS"} & set(run.absent) for run in report.runs)
