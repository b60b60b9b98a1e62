"""Planted faults: find-and-replace records against the real kernel source, each with what must be said of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gradprobe.kernels
from gradprobe.model.case import Case
from gradprobe.numerics.evidence import ProbeResult
from gradprobe.targets.find import find_target
from tests.probe import probe

KERNELS = Path(gradprobe.kernels.__path__[0]) / "triton"


class Unzeroed:
    """torch for an adapter whose zeros are left as they come: patched there alone, since the tool uses them too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, "empty" if name == "zeros" else name)


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
    says: tuple[str, ...] = ()
    """Parts of what is said of the disagreements inside a black box."""
    cause: str = ""
    """As in `trials.Scored`; "" where the score does not count it. So is `why`."""
    why: str = ""
    seen: str = ""
    """The first mismatched intermediate where the kernels are watched, if that is another."""

    def plant(self, source: str) -> str:
        """The kernel's source with the fault in it."""
        return edited(source, self.edits)


def edited(source: str, edits: tuple[Edit, ...]) -> str:
    """A kernel file's source with the replacements made."""
    for edit in edits:
        source = _replaced(source, edit)
    return source


def _replaced(source: str, edit: Edit) -> str:
    start = source.index(f"def {edit.kernel}(")
    following = re.compile(r"^(@triton\.jit|def )", re.MULTILINE).search(
        source, source.index("\n", start)
    )
    end = following.start() if following else len(source)
    body = source[start:end]
    assert body.count(edit.find) == 1, (
        f"{edit.find!r} stands {body.count(edit.find)} times in {edit.kernel}"
    )
    return source[:start] + body.replace(edit.find, edit.replace) + source[end:]


def names(words: str) -> frozenset[str]:
    return frozenset(words.split())


def everywhere(kernels: tuple[str, ...], find: str, replace: str) -> tuple[Edit, ...]:
    return tuple(Edit(kernel, find, replace) for kernel in kernels)


def probe_planted(
    fault: Planted, folder: Path, file: str, function: str, case: Case
) -> ProbeResult:
    """A probe of a function of a kernel file with the fault in it.

    Args:
        folder: where the faulty copy is written.
        file: the kernel file's name.
    """
    copy = folder / f"{fault.name}.py"
    copy.write_text(fault.plant((KERNELS / file).read_text()))
    return probe(case, find_target(f"{copy}:{function}"), why=False)


def assert_as_recorded(fault: Planted, report: ProbeResult) -> None:
    """The verdict, the layouts, the first place and every status are those of the record."""
    assert report.verdict == "mismatch"
    measured = report.failing[1]
    statuses = {name: finding.status for name, finding in measured.comparison.findings.items()}
    assert {name for name, status in statuses.items() if status == "mismatch"} == fault.own
    assert {name for name, status in statuses.items() if status == "inherited"} == fault.inherited
    assert {run.layout for run in report.runs if run.verdict == "match"} == fault.passes
    first = measured.first
    assert (first.intermediate, first.batch, first.head) == (fault.first, fault.batch, fault.head)
    # The first mismatch is wrong by the order of the worst; what is wrong at all begins in the row of the record.
    (start, _), *_ = measured.comparison.findings[first.intermediate].row_ranges(
        first.batch or 0, first.head
    )
    assert fault.row is None or start == fault.row
