"""`gradprobe check`, and what else is asked of one kernel by an option of its own."""

import os
from typing import Annotated

from ..commands.suite.checking import Setting
from ..commands.suite.plan import Plan, PlannedCheck
from ..inputs.history import CheckRequest
from ..model.failures import UsageFailure, refuse_if
from .checks import check_against, check_one
from .command import Call, Command
from .option_rows import option
from .own_process import apart
from .report_forms import show_document

_BATTERY = (
    "Check cases with every pair of properties that TARGET takes, or each alone (default: pairs)"
)
_AGAINST = "Another target, REPORT.json, interpreted or compiled: say where both differ"
_BASELINE = "Keep a right kernel's errors in FILE; once there, fail where one grows"
_CONTRACT = "Read in what the kernel adds up, and how it multiplies"


@Command("target family reference details isolate timeout fresh fix_budget shrink_budget")
def check(
    call: Call,
    battery: Annotated[str | None, option("--battery", _BATTERY, "[pairs|quick]")] = None,
    against: Annotated[str | None, option("--against", _AGAINST, "OTHER")] = None,
    baseline: Annotated[str | None, option("--baseline", _BASELINE, "FILE")] = None,
    contract: Annotated[bool, option("--contract", _CONTRACT)] = False,
) -> int:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch.

    Without any target or case option, what pyproject.toml configures under tool.gradprobe is checked.
    """
    request = call.request
    modes = {"battery": battery, "against": against, "baseline": baseline, "contract": contract}
    given = [name for name, word in modes.items() if word not in (None, False)]
    if len(given) > 1:
        words = f"--{given[0]} and --{given[1]} ask for two things"
        raise UsageFailure(words, "give one of them")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        words = "check: torchrun started this, and gradprobe starts the ranks itself"
        raise UsageFailure(words, "gradprobe check TARGET --ranks N")
    others = call.forms.files.keys() - {"--json"}
    if others and (contract or baseline is not None):
        raise UsageFailure(f"{min(others)}: this is written as --json alone")
    if contract:
        return apart(call, _read_contract, request, call.forms.json)
    if baseline is not None:
        words = "--inputs: a file is one draw, and a baseline takes several"
        refuse_if("inputs" in request.options, words, "drop it")
        words = "--baseline is of one kernel, and no TARGET is given"
        refuse_if(call.target is None, words, "name it")
        return apart(call, _check_baseline, request, baseline, call.forms.json)
    if battery is not None:
        return _check_battery(call, battery)
    asked = (call.target, request.family, request.reference, request.options or None)
    is_asked = any(word is not None for word in asked)
    settings = call.settings()
    if not is_asked and (configured := settings.configured()):
        if against is not None:
            raise UsageFailure("--against takes one plain check", "name a TARGET")
        how = call.setting(settings, several=True, beyond=True)
        return _check_several(call, Plan(configured), how)
    whole = settings.over(request)
    planned = PlannedCheck("", whole, fresh=call.fresh, chosen=call.chosen)
    how = call.setting(settings, beyond=True)
    if against is not None:
        return check_against(planned, against, call.forms, how)
    return check_one(planned, call.forms, how)


def _check_battery(call: Call, word: str) -> int:
    from ..commands.suite.battery import battery_plan, refuse_battery

    refuse_battery(word, call.request.options)  # a case replaces what a project sets
    settings = call.settings()
    how = call.setting(settings, several=True)
    return _check_several(call, *battery_plan(word, settings.over(call.request), how))


def _check_several(call: Call, plan: Plan, how: Setting) -> int:
    from ..commands.suite.runner import Runner
    from .checks import check_several

    return check_several(Runner(plan, how), call.forms)


def _read_contract(request: CheckRequest, json_file: str | None) -> int:
    from ..commands.contract_request import read_contract, render_contract
    from ..render.terminal import width

    contract = read_contract(request)
    show_document(json_file, contract.as_json(), render_contract(contract, width()))
    return 1 if contract.unread else 0


def _check_baseline(request: CheckRequest, file: str, json_file: str | None) -> int:
    from ..commands.baseline import check_baseline

    return check_baseline(request, file, json_file)
