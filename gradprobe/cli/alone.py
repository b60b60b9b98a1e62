"""One check in a process of its own: what it says where it ends as any check does, and where it crashes."""

from __future__ import annotations

import sys

from .. import last
from ..failures import Failure
from ..progress import Progress
from ..screen import dump, look, put, say
from ..suite.checked import Planned
from ..suite.checking import check_each
from ..suite.worker import Setting


def check_alone(asked: last.Asked, json_file: str | None, *, timeout: float | None, show_traceback: bool) -> int:
    """The check of this process, made in another; a crash or a hang is an error, with its words on stderr.

    Raises:
        UsageFailure: the file cannot be written.
    """
    setting = Setting(look(), show_traceback)
    with Progress() as tick:
        tick("checking in a process of its own", 0.0)
        (checked,) = check_each([Planned("", asked)], setting, timeout=timeout, echo=sys.stderr.write)
    if checked.verdict == "error":
        error = checked.document["error"]
        if show_traceback and "stderr_tail" not in error:
            print("\n".join(checked.lines), file=sys.stderr)
        say(Failure(error["message"], error["way_out"]))
    else:
        last.save(asked)
    if json_file is not None:
        dump(json_file, dict(checked.document))
    if json_file != "-":
        put("".join(f"{line}\n" for line in checked.lines) if checked.verdict != "error" else "")
    return checked.code
