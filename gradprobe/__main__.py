"""The command `gradprobe`, and `python -m gradprobe`: a process that ends as soon as there is a verdict."""

from __future__ import annotations

import contextlib
import os
import sys

from .cli import main


def run() -> None:
    """Runs the command. What Python does at an end takes a tenth of a second, in which a kill would belie the verdict.

    Raises:
        SystemExit: where something of a user's ran in this process, or is watching it, and may have that to do.
    """
    try:
        main()
    except SystemExit as ended:
        if not isinstance(ended.code, int) or "torch" in sys.modules or sys.gettrace() or sys.getprofile():
            raise
        with contextlib.suppress(OSError, ValueError):  # closed by who reads them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code)


if __name__ == "__main__":
    run()
