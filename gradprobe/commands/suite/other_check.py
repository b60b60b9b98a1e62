"""The check that another is set beside: read from a file, or made before it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...model.failures import UsageFailure, did_you_mean
from ...model.report import Report
from ...targets.builtin import BUILTINS
from ..saved_reports import read
from .checking import Setting, check_each
from .plan import PlannedCheck

# The same target, run otherwise: the word for it, and the device that it runs on then.
_RUN_OTHERWISE = {"interpreted": "cpu", "compiled": "cuda"}


def report_beside(
    planned: PlannedCheck,
    word: str,
    kept: str,
    setting: Setting,
    function: Callable[..., Any] | None = None,
) -> Report:
    """The report of another target in the case of a check, or of the same one run otherwise.

    Args:
        word: another target; "interpreted" or "compiled", for the same one in Triton's interpreter or on a GPU; or the
            file of a report.
        kept: the file that what it gives is written into.
        function: what stands in the place of another target.

    Raises:
        UsageFailure: the file holds no report of one check, or the other target is not there, or is this one run
            in the same way.
    """
    if function is None and word.endswith(".json"):
        several = read(word).reports
        if len(several) != 1:
            words = f"expected the report of one check, got {len(several)}"
            raise UsageFailure(f"--against {word}: {words}")
        return several[0]
    request, (own, reference) = planned.request, planned.functions
    if function is None and word in _RUN_OTHERWISE:
        if not setting.isolate:
            words = f"--against {word}: one process cannot do both"
            raise UsageFailure(words, "drop --no-isolate")
        other = replace(request, options={**request.options, "device": _RUN_OTHERWISE[word]})
    else:
        known = [*_RUN_OTHERWISE, *BUILTINS]
        if function is None and ":" not in word and word not in known:
            words = f"--against {word}: there is no such target"
            raise UsageFailure(words, did_you_mean(word, known))
        other, own = replace(request, target=word), function
    if (other, (own, reference)) == (request, planned.functions):
        raise UsageFailure(f"--against {word}: this is the target itself, run in the same way")
    beside = PlannedCheck("", other, kept=kept, functions=(own, reference))
    plain = replace(setting, fix_budget=0, beyond=False)
    (outcome,) = check_each([beside], plain, echo=sys.stderr.write)
    error = outcome.report.error
    if outcome.code == UsageFailure.exit_code and error is not None:
        raise UsageFailure(f"--against {word}: {error.message}", error.way_out)
    return outcome.report
