"""Paths as people read them."""

from __future__ import annotations

from pathlib import Path


def short(path: str) -> str:
    """A path relative to the current folder or the home folder, where that is shorter."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if Path(path).is_relative_to(base):
            return prefix + str(Path(path).relative_to(base))
    return path
