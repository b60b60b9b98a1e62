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
    """The first mismatched intermediate; `head`, `batch` and, where it is known beforehand, `row` are its place."""
    head: int
    batch: int | None = 0
    row: int | None = None
    own: frozenset[str] = frozenset()
    """Every intermediate that is wrong by itself; `inherited`: wrong, and right given its wrong parents."""
    inherited: frozenset[str] = frozenset()
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


def edited(source: str, edits: tuple[Edit, ...], *, cuda: bool = False) -> str:
    """A kernel file's source with the replacements made."""
    for edit in edits:
        head = rf"^[^\n]*\b{edit.kernel}\(" if cuda else rf"def {edit.kernel}\("
        begins = re.compile(head, re.MULTILINE).search(source)
        assert begins is not None, f"no {edit.kernel}"
        start, end = (
            begins.start(),
            re.compile("^}" if cuda else r"^(@triton\.jit|def )", re.MULTILINE),
        )
        ends = end.search(source, source.index("\n", start))
        stop = len(source) if ends is None else ends.start()
        body = source[start:stop]
        assert body.count(edit.find) == 1, (
            f"{edit.find!r} stands {body.count(edit.find)} times in {edit.kernel}"
        )
        source = source[:start] + body.replace(edit.find, edit.replace) + source[stop:]
    return source


def names(words: str) -> frozenset[str]:
    return frozenset(words.split())


def everywhere(kernels: tuple[str, ...], find: str, replace: str) -> tuple[Edit, ...]:
    return tuple(Edit(kernel, find, replace) for kernel in kernels)


def probe_planted(
    fault: Planted, folder: Path, file: str, function: str, case: Case
) -> ProbeResult:
    """A probe of a function of a kernel file with the fault in it, whose copy is written into a folder."""
    copy = folder / f"{fault.name}.py"
    copy.write_text(fault.plant((KERNELS / file).read_text()))
    return probe(case, find_target(f"{copy}:{function}"), why=False)


def assert_as_recorded(fault: Planted, report: ProbeResult) -> None:
    """The verdict, the layouts, the first place and every status are those of the record."""
    assert report.verdict == "mismatch"
    measured = report.failing[1]
    findings, first = measured.comparison.findings, measured.first
    for status, names_of in (("mismatch", fault.own), ("inherited", fault.inherited)):
        assert {name for name, one in findings.items() if one.status == status} == names_of
    assert {run.layout for run in report.runs if run.verdict == "match"} == fault.passes
    assert (first.intermediate, first.batch, first.head) == (fault.first, fault.batch, fault.head)
    # The first mismatch is wrong by the order of the worst; what is wrong at all begins in the row of the record.
    (start, _), *_ = findings[first.intermediate].row_ranges(first.batch or 0, first.head)
    assert fault.row is None or start == fault.row
