"""Planned -> Checked, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ..isolation import Ended, run_each
from .checked import Checked, Planned
from .documents import of_crash, of_raised
from .worker import FACTORY, Setting


def check_each(
    planned: Sequence[Planned],
    setting: Setting,
    *,
    timeout: float | None = None,
    echo: Callable[[str], object] | None = None,
) -> Iterator[Checked]:
    """Each check as it is made; with one worker in the order of the plan. One that crashes or hangs is one too.

    Checks of one target on one device share a process. Others do not: what a module does to torch at its import, and
    whether Triton interprets, holds for a process as a whole.

    Args:
        timeout: seconds for one check, not counting the imports of the tool; None for no limit.
        echo: told what targets print, as it comes, from another thread.

    Raises:
        Failure: no process can be started at all.
    """
    for _, group in groupby(enumerate(planned), lambda numbered: _shares(numbered[1])):
        numbers, plans = zip(*group, strict=True)
        for ended in run_each(FACTORY, setting, plans, timeout=timeout, workers=setting.workers, echo=echo):
            yield replace(_checked(ended, setting), number=numbers[ended.index])


def _shares(planned: Planned) -> tuple[object, ...]:
    asked = planned.asked
    return asked.target, asked.reference, asked.options.get("device")


def _checked(ended: Ended, setting: Setting) -> Checked:
    planned: Planned = ended.item
    if ended.crash is not None:
        lines = tuple(ended.crash.stderr_tail.splitlines())
        return Checked(planned.title, planned.asked, of_crash(planned, ended.crash), lines, 3)
    if ended.raised is not None:
        document = of_raised(planned, ended.raised)
        lines = tuple(ended.raised.traceback.splitlines()) if setting.tracebacks else ()
        return Checked(planned.title, planned.asked, document, lines, ended.raised.exit_code)
    assert isinstance(ended.result, Checked)
    return ended.result
