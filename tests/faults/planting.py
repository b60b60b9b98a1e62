"""Planted faults: find-and-replace records against the real kernel source, each with what must be said of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradprobe.kernels

LAZY = Path(gradprobe.kernels.__path__[0]) / "triton" / "lazy.py"


@dataclass(frozen=True)
class Edit:
    """One replacement inside one kernel; `find` must stand there exactly once."""

    kernel: str
    find: str
    replace: str


@dataclass(frozen=True)
class Planted:
    """A fault, and the verdict and place that it must get."""

    name: str
    fault_class: str
    """The class of the field's faults that it belongs to: S1, S3, M1, ..."""
    edits: tuple[Edit, ...]
    first: str
    """The first mismatched intermediate."""
    head: int
    """Of the first mismatch."""
    batch: int | None = 0
    row: int | None = None
    """Of the first mismatch, where it is known beforehand."""
    own: frozenset[str] = frozenset()
    """Every intermediate that is wrong by itself."""
    inherited: frozenset[str] = frozenset()
    """Every intermediate that is wrong, and right given its wrong parents."""
    passes: frozenset[str] = frozenset()
    """The layouts that do not show it."""
    options: dict[str, Any] = field(default_factory=dict)

    def plant(self, source: str) -> str:
        """The kernel's source with the fault in it."""
        for edit in self.edits:
            source = _replaced(source, edit)
        return source


def _replaced(source: str, edit: Edit) -> str:
    start = source.index(f"def {edit.kernel}(")
    following = re.compile(r"^(@triton\.jit|def )", re.MULTILINE).search(source, source.index("\n", start))
    end = following.start() if following else len(source)
    body = source[start:end]
    assert body.count(edit.find) == 1, f"{edit.find!r} stands {body.count(edit.find)} times in {edit.kernel}"
    return source[:start] + body.replace(edit.find, edit.replace) + source[end:]
