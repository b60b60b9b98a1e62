"""One check on the command line: whatever its target does, a report and an exit code."""

from __future__ import annotations

import sys

from .. import last
from ..failures import Failure
from ..progress import Progress
from ..screen import put, say
from ..suite.checked import Checked, Planned
from ..suite.checking import check_each
from ..suite.worker import Setting
from .forms import Forms


def check_one(planned: Planned, forms: Forms, setting: Setting) -> int:
    """Makes a check, shows it, and writes every form that was asked for; its exit code.

    What kept it from being made, or ended it, is said on stderr; what was measured before stands on stdout.
    """
    with Progress() as tick:
        tick("starting", 0.0)
        (checked,) = check_each([planned], setting, echo=sys.stderr.write, tick=tick)
    if checked.verdict != "error" and planned.close_up is None:
        last.save(planned.asked)
    said = _say(checked)
    if not forms.on_stdout:
        put("".join(f"{line}\n" for line in _shown(checked)))
    return forms.write([checked.document], checked.code, said=said)


def _shown(checked: Checked) -> tuple[str, ...]:
    """What stands on stdout: of a check that was ended before anything was measured, nothing."""
    if checked.verdict != "error" or not checked.lines:
        return checked.lines
    again = f"  again: {checked.document['reproduce']}"
    return (f"ERROR  {checked.document['error']['message']}", *checked.lines, again)


def _say(checked: Checked) -> str:
    """Says on stderr what ended a check before its end; the words, "" where nothing did."""
    error = checked.document.get("error")
    if error is None:
        return ""
    sys.stderr.write("".join(f"{line}\n" for line in checked.left))
    say(Failure(error["message"], error["way_out"]))
    return str(error["message"])
