"""The command line: options -> probe -> report -> exit code. The only folder that imports typer."""

from __future__ import annotations

import sys

from ..model.failures import INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """The `gradprobe` command. Files of an earlier run are replaced before anything is imported that takes long."""
    try:
        from ..render.files import begin

        begin(sys.argv[1:])
        from .root import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    from .root import app

    return app
