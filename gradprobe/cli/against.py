"""`gradprobe check A --against B`: two kernels judged side by side, and where they differ."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ..commands.suite.checked import Beside, Planned
from ..commands.suite.checking import Setting, check_each
from ..model.failures import UsageFailure, did_you_mean
from ..model.report import Report
from ..render.terminal import Progress
from ..targets.builtin import BUILTINS
from .checks import check_one, say
from .forms import Forms
from .show import read

# The same target, run otherwise: the word for it, and the device that it runs on then.
_RUN_OTHERWISE = {"interpreted": "cpu", "compiled": "cuda"}


def check_against(planned: Planned, word: str, forms: Forms, setting: Setting) -> int:
    """Checks another target, then this one, and shows this one with what it differs in; the exit code.

    Args:
        word: another target; "interpreted" or "compiled", for the same one in Triton's interpreter or on a GPU; or the
            file of a report.

    Raises:
        UsageFailure: the file holds no report of one check, or the other target is not there, or is this one run
            in the same way.
    """
    if not word.endswith(".json") and ":" not in word and word not in (*_RUN_OTHERWISE, *BUILTINS):
        way_out = did_you_mean(word, [*_RUN_OTHERWISE, *BUILTINS])
        raise UsageFailure(f"--against {word}: there is no such target", way_out)
    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder:
        kept = Path(folder) / "given.pt"
        report = _saved(word) if word.endswith(".json") else _checked(planned, word, str(kept), setting)
        say(report, setting.tracebacks)
        beside = Beside(word, report, str(kept) if kept.exists() else "")
        return check_one(replace(planned, against=beside), forms, setting)


def _saved(file: str) -> Report:
    several = read(file).reports
    if len(several) != 1:
        raise UsageFailure(f"--against {file}: expected the report of one check, got {len(several)}")
    return several[0]


def _checked(planned: Planned, word: str, kept: str, setting: Setting) -> Report:
    request = planned.request
    if word in _RUN_OTHERWISE and not setting.isolate:
        raise UsageFailure(f"--against {word}: one process cannot do both", "drop --no-isolate")
    if word in _RUN_OTHERWISE:
        other = replace(request, options={**request.options, "device": _RUN_OTHERWISE[word]})
    else:
        other = replace(request, target=word)
    if other == request:
        raise UsageFailure(f"--against {word}: this is the target itself, run in the same way")
    plain = replace(setting, fix_budget=0.0, coincidence_budget=0.0)
    with Progress() as tick:
        tick(f"checking {word}", None)
        (checked,) = check_each([Planned("", other, kept=kept)], plain, echo=sys.stderr.write)
    error = checked.report.error
    if checked.code == UsageFailure.exit_code and error is not None:
        raise UsageFailure(f"--against {word}: {error.message}", error.way_out)
    return checked.report
