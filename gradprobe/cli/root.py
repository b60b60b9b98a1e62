"""`gradprobe --version`."""

from __future__ import annotations

from typing import Annotated

import typer


def root(version: Annotated[bool, typer.Option("--version", help="Versions and device, in one line")] = False) -> None:
    if version:
        from ..probing.receipt import environment

        found = environment("cuda" if _has_cuda() else "cpu")
        typer.echo(" ".join(f"{name} {value}" for name, value in found.items()))
        raise typer.Exit


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
