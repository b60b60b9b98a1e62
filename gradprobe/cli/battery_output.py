"""`gradprobe check --battery`: its table, its files and its exit code."""

from __future__ import annotations

from ..commands.configuration.effective import EffectiveSettings
from ..commands.suite.batteries import begun, refuse_set_by_it
from ..commands.suite.checking import Setting
from ..inputs.history import CheckRequest
from .check_series import check_several
from .report_forms import Forms


def check_battery(
    word: str, request: CheckRequest, effective: EffectiveSettings, forms: Forms, setting: Setting
) -> int:
    """Makes the checks of a battery; the exit code of all.

    Raises:
        UsageFailure: an option was given that a case of it sets.
    """
    refuse_set_by_it(word, request.options)
    plan = begun(word, effective.over(request), setting)
    return check_several(
        plan.planned,
        forms,
        plan.setting,
        untaken=plan.untaken,
        closer=plan.battery.in_full,
        weigh=plan.battery.weighed,
        titles=plan.battery.titles,
        further=plan.battery,
    )
