"""A target's kernels, read down to the line: `findings_of` for diagnoses, `read_views` for `gradprobe lint`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..model.case import Case
from ..source.triton_source import functions_of
from ..targets.find import Target
from .catching import catch
from .rules import LintFinding, findings_in
from .view import KernelView, view_by_name, views_of


@dataclass
class ReadKernel:
    """A kernel that was read."""

    name: str
    file: str
    line: int
    launched: bool
    """Whether its arguments were caught; if not, its parameters are taken for what they are called."""
    accesses: int
    """How many loads, stores and atomics were read in it."""
    lost: list[str]
    """The parameters of pointers that could not be followed everywhere."""


@dataclass(frozen=True)
class KernelReading:
    """What came of reading some kernels."""

    findings: tuple[LintFinding, ...]
    kernels: tuple[ReadKernel, ...]


def findings_of(target: Target, case: Case) -> tuple[LintFinding, ...]:
    """The wrong strides of the kernels that a target launches; none where nothing can be caught.

    Kernels are not run, and no value counts: only the case's options and dtype do.
    """
    return read_views(list(views_of(catch(target, case)))).findings


def read_views(views: Sequence[KernelView], scopes: Iterable[tuple[dict[str, object], str]] = ()) -> KernelReading:
    """What is found of launched kernels, and of those beside them.

    Args:
        scopes: modules to look in for kernels that were not launched: what their names mean, and their files.
    """
    launched = {view.function.name for view in views}
    beside = list[KernelView]()
    for scope, file in scopes:
        functions = functions_of(scope, file)
        called = [jit.fn for function in functions for _, jit in function.calls]
        alone = [each for each in functions if each.name not in launched and each.plain not in called]
        beside += [view for view in map(view_by_name, alone) if view.record.accesses]
    kernels, found = dict[tuple[str, int], ReadKernel](), dict[tuple[object, ...], LintFinding]()
    for view in (*views, *beside):
        of, record = view.function, view.record
        before = kernels.setdefault((of.file, of.line), ReadKernel(of.name, of.file, of.line, bool(view.launch), 0, []))
        before.accesses = max(before.accesses, len(record.accesses))
        before.lost = sorted({*before.lost, *record.lost})
        for one in findings_in(view):
            found.setdefault((one.where.file, one.where.line, one.where.column, one.tensor), one)
    ordered = sorted(found.values(), key=lambda one: (one.by_name, one.where.file, one.where.line))
    return KernelReading(tuple(ordered), tuple(kernels.values()))
