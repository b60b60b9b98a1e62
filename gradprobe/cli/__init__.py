"""The command line: options -> probe -> report -> exit code. The only folder that imports typer."""

from __future__ import annotations

import contextlib
import os
import sys

from ..model.failures import INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def run() -> None:
    """Runs the command. What Python does at an end takes a tenth of a second, in which a kill would belie the verdict.

    Raises:
        SystemExit: where a user looks into this process, and may have something to do at its end.
    """
    try:
        main()
    except SystemExit as ended:
        is_looked_into = "--no-isolate" in sys.argv or sys.gettrace() or sys.getprofile()
        if not isinstance(ended.code, int) or is_looked_into:
            raise
        with contextlib.suppress(OSError, ValueError):  # closed by who reads them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code)


def main() -> None:
    """The `gradprobe` command. Files of an earlier run are replaced before anything is imported that takes long."""
    try:
        if any(word.startswith("-") for word in sys.argv[1:]):  # only an option names a file
            from ..render.files import begin

            begin(sys.argv[1:])
        from ..processes.resource_limits import one_for_numpy

        one_for_numpy()  # before a child begins early, which is taken while it has this process's environment
        with _begun_early(sys.argv[1:]):
            from .root import main as app_main

            app_main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


# The commands that run a check in a child, and what of theirs says that none runs.
_CHECKING, _NOT_CHECKING = {"check", "diff", "fix"}, {"--help", "-h", "--no-isolate"}


# What a check needs and what torch does not: it is imported while torch's library is loaded.
_WITHOUT_TORCH = (
    "numpy",
    "asyncio",
    "unittest.mock",
    "gradprobe.runtime.run",
    "gradprobe.targets.find",
)


@contextlib.contextmanager
def _begun_early(words: list[str]) -> Iterator[None]:
    """Where another core is free, the child imports torch there while this process imports its parser, and parses."""
    if words[:1] and words[0] in _CHECKING and _NOT_CHECKING.isdisjoint(words):
        from ..processes.process import begun_early
        from ..processes.resource_limits import cores

        if cores() > 1:
            with begun_early((*_WITHOUT_TORCH, "torch", "gradprobe.pipeline.probe")):
                yield
                return
    yield


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    from .root import app

    return app
