"""`gradprobe init`: files that a user starts from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..screen import put
from ..targets.scaffold import DEFAULT, FAMILIES, write_adapter
from .failing import failures_told
from .words import Traceback


def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file to write")] = DEFAULT,
    family: Annotated[str, typer.Option(help=f"Of your kernel: {' or '.join(FAMILIES)}")] = FAMILIES[0],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there")] = False,
    show_traceback: Traceback = False,
) -> None:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is."""
    with failures_told(None, "gradprobe init", show_traceback):
        write_adapter(Path(path), family, force=force)
        put(f"wrote {path}\nnext: {shlex.join(['gradprobe', 'check', f'{path}:backward'])}\n")
