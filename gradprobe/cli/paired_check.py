"""`gradprobe check A --against B`: two kernels judged side by side, and where they differ."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from ..commands.suite.checked import Counterpart, PlannedCheck
from ..commands.suite.checking import Setting
from ..commands.suite.other_check import report_beside
from ..render.terminal import Progress
from .checks import check_one, say
from .report_forms import Forms


def check_against(planned: PlannedCheck, word: str, forms: Forms, setting: Setting) -> int:
    """Checks another target, then this one, and shows this one with what it differs in; the exit code.

    Raises:
        UsageFailure: as `report_beside` does.
    """
    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder:
        kept = Path(folder) / "given.pt"
        with Progress() as tick:
            tick(f"checking {word}", None)
            report = report_beside(planned, word, str(kept), setting)
        say(report, setting.tracebacks)
        beside = Counterpart(word, report, str(kept) if kept.exists() else "")
        return check_one(replace(planned, against=beside), forms, setting)
