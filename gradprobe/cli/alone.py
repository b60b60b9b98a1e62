"""One check in a process of its own: what it says where it ends as any check does, and where it crashes."""

from __future__ import annotations

import sys

from .. import last
from ..failures import Failure
from ..progress import Progress
from ..screen import look, put, say
from ..suite.checked import Planned
from ..suite.checking import check_each
from ..suite.worker import Setting
from .forms import Forms


def check_alone(asked: last.Asked, forms: Forms, *, timeout: float | None, show_traceback: bool) -> int:
    """The check of this process, made in another; a crash or a hang is an error, with its words on stderr."""
    setting = Setting(look(), show_traceback)
    with Progress() as tick:
        tick("checking in a process of its own", 0.0)
        (checked,) = check_each([Planned("", asked)], setting, timeout=timeout, echo=sys.stderr.write)
    said = ""
    if checked.verdict == "error":
        error = checked.document["error"]
        if show_traceback and "stderr_tail" not in error:
            print("\n".join(checked.lines), file=sys.stderr)
        said = error["message"]
        say(Failure(said, error["way_out"]))
    else:
        last.save(asked)
    if not forms.on_stdout:
        put("".join(f"{line}\n" for line in checked.lines) if checked.verdict != "error" else "")
    return forms.write([checked.document], checked.code, said=said)
