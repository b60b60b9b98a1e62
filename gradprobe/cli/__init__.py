"""The command line: options -> probe -> report -> exit code. The only folder that imports typer."""

from __future__ import annotations

import contextlib
import os
import sys

from ..model.failures import INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run() -> None:
    """Ends without Python's own clean-up, a tenth of a second in which a kill would belie the verdict."""
    try:
        main()
    except SystemExit as ended:
        is_looked_into = "--no-isolate" in sys.argv or sys.gettrace() or sys.getprofile()
        if not isinstance(ended.code, int) or is_looked_into:
            raise
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code)


def main() -> None:
    """Replaces report files of an earlier run before anything is imported that takes long."""
    words = sys.argv[1:]
    try:
        if any(word.startswith("-") for word in words):
            from ..render.files import begin

            begin(words)
        from ..processes.resource_limits import one_for_numpy

        one_for_numpy()  # a child takes this process's environment
        with _begun_early(words):
            from .root import main as app_main

            app_main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


IMPORTED_EARLY = ("torch", "gradprobe.pipeline.probe")
"""What a check's process imports before it is told of the check."""
_BEGUN = {"check", "diff", "fix", "strides"}


def _begun_early(words: list[str]) -> Any:
    if not _BEGUN & set(words[:1]) or {"--help", "-h", "--no-isolate"} & set(words):
        return contextlib.nullcontext()
    from ..processes.process import begun_early
    from ..processes.resource_limits import cores

    return begun_early(IMPORTED_EARLY) if cores() > 1 else contextlib.nullcontext()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    from .root import app

    return app
