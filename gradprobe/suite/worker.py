"""The worker of a process of its own: one check after another."""

from __future__ import annotations

import json
import os
import time
import traceback
from dataclasses import dataclass

from ..answer import answer
from ..failures import as_failure
from ..screen import Look, painted, rendered
from .checked import Checked, Planned
from .documents import of_failure, titled

FACTORY = "gradprobe.suite.worker:Checker"


@dataclass(frozen=True)
class Setting:
    """What the process that shows the results says to those that make them."""

    look: Look
    tracebacks: bool = False
    workers: int = 1
    """How many share the cores."""


class Checker:
    """`Checker(setting)(planned)` makes a check. What takes long to import is imported first, outside any timeout."""

    def __init__(self, setting: Setting) -> None:
        import torch

        from ..probe import probe  # noqa: F401

        self._setting = setting
        if setting.workers > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // setting.workers))

    def __call__(self, planned: Planned) -> Checked:
        start = time.perf_counter()
        try:
            report = answer(planned.asked, planned.again())
        except Exception as error:
            failure = as_failure(error)
            lines = tuple(traceback.format_exc().splitlines()) if self._setting.tracebacks else ()
            document = of_failure(planned, failure, time.perf_counter() - start)
            return Checked(planned.title, planned.asked, document, lines, failure.exit_code)
        from ..report.as_json import as_json

        look = self._setting.look
        lines = tuple(painted(rendered(report, look), look).splitlines())
        # Some of its strings are of classes of torch, which the process that shows them need not import.
        document = json.loads(json.dumps(as_json(report), allow_nan=False))
        return Checked(planned.title, planned.asked, titled(document, planned.title), lines, 1 if report.failing else 0)
