"""The command `gradprobe`, and `python -m gradprobe`: a process that ends as soon as there is a verdict."""

from __future__ import annotations

import contextlib
import os
import sys

from .cli import main


def run() -> None:
    """Runs the command. What Python does at an end takes a tenth of a second, in which a kill would belie the verdict.

    Raises:
        SystemExit: where a user looks into this process, and may have something to do at its end.
    """
    try:
        main()
    except SystemExit as ended:
        if (
            not isinstance(ended.code, int)
            or "--no-isolate" in sys.argv
            or sys.gettrace()
            or sys.getprofile()
        ):
            raise
        with contextlib.suppress(OSError, ValueError):  # closed by who reads them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code)


if __name__ == "__main__":
    run()
