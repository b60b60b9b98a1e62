"""One check on the command line: whatever its target does, a report and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..commands.suite.checked import Checked, Planned
from ..commands.suite.checking import check_each
from ..commands.suite.worker import Setting
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import INTERRUPTED, Failure
from ..model.report import FAILED
from ..render.progress import Progress, interrupted
from ..render.terminal import print_failure, rendered, show
from .forms import Forms


def check_one(planned: Planned, forms: Forms, setting: Setting) -> int:
    """Makes a check, shows it, and writes every form that was asked for; its exit code.

    What kept it from being made, or ended it, is said on stderr; what was measured before stands on stdout.
    """
    made: list[Checked] = []
    try:
        with Progress() as tick:
            tick("importing torch and the target", None)
            for checked in check_each([planned], setting, echo=sys.stderr.write, tick=_by_layout(planned, tick)):
                made.append(checked)
    except KeyboardInterrupt:
        return _tell_interrupted(made, forms)
    (checked,) = made
    if checked.verdict != FAILED and planned.close_up is None:
        last.save(planned.request, checked.report)
    return tell(checked, forms)


def _tell_interrupted(made: Sequence[Checked], forms: Forms) -> int:
    """Shows the layouts that were measured before Ctrl-C, which the files hold too, marked as incomplete."""
    for checked in made:
        if not forms.on_stdout:
            show(rendered(checked.report))
        _say(checked)
        forms.write_so_far(Reports(reports=(checked.report,)))
    if not made:
        print_failure(interrupted(0, 0, ""))
    return INTERRUPTED


def tell(checked: Checked, forms: Forms) -> int:
    """Shows a check that was made, and writes every form that was asked for; its exit code."""
    said = _say(checked)
    if not forms.on_stdout:
        show(rendered(checked.report))
    return forms.write(Reports(reports=(checked.report,)), checked.code, said=said)


def _by_layout(planned: Planned, tick: Progress) -> Callable[[str, float, str], None]:
    """Tells how many of the layouts are done; of a single one, how far its comparison is."""
    begun, of = list[str](), len(planned.layouts)

    def told(stage: str, fraction: float, layout: str) -> None:
        name = layout.partition(", ")[0]
        if name and name not in begun:
            begun.append(name)
        if of == 1 or name not in begun[-1:] or len(begun) > of:  # or a look at what went wrong, of no known length
            tick(stage, fraction or None)
        else:
            tick(f"layout {len(begun)} of {of}: {stage}", (len(begun) - 1) / of)

    return told


def _say(checked: Checked) -> str:
    """Says on stderr what ended a check before its end; the words, "" where nothing did."""
    error = checked.report.error
    if error is None:
        return ""
    sys.stderr.write("".join(f"{line}\n" for line in checked.left))
    print_failure(Failure(error.message, error.way_out))
    return error.message
