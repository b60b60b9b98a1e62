"""A target's kernels, read down to the line: `findings_of` for diagnoses, `reading_of` for `gradprobe lint`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..model.case import Case
from ..source.triton_source import Function
from ..targets.find import Target
from .catching import Caught, catch
from .cuda import CudaKernel
from .finding import LintFinding
from .pointers import Record
from .rules import findings_in
from .unlaunched import functions_of, siblings
from .view import CallTensors, KernelView


@dataclass(frozen=True)
class ReadKernel:
    """A kernel that was read."""

    name: str
    file: str
    line: int
    launched: bool
    """Whether its arguments were caught; if not, its parameters are taken for what they are called."""
    expressions: int
    """How many pointer expressions were read in it."""
    lost: tuple[str, ...]
    """The parameters of pointers that could not be followed everywhere."""


@dataclass(frozen=True)
class KernelReading:
    """What came of reading some kernels."""

    findings: tuple[LintFinding, ...]
    kernels: tuple[ReadKernel, ...]

    @property
    def read(self) -> int:
        """The pointer expressions that were read."""
        return sum(kernel.expressions for kernel in self.kernels)


def findings_of(target: Target, case: Case) -> tuple[LintFinding, ...]:
    """The wrong strides of the kernels that a target launches; none where nothing can be caught.

    Kernels are not run, and no value counts: only the case's options and dtype do.
    """
    return _once(finding for view in views_of(catch(target, case)) for finding in findings_in(view))


def reading_of(target: Target, case: Case) -> KernelReading:
    """What can be read of the kernels of a target."""
    return read_views(views_of(catch(target, case)))


def views_of(calls: Iterable[Caught]) -> list[KernelView]:
    """The kernels that were launched in some calls, as they are in each launch."""
    return [
        KernelView(launch, tensors) for call in calls for tensors in [CallTensors(call)] for launch in call.launches
    ]


def read_views(views: Sequence[KernelView], scopes: Iterable[tuple[dict[str, object], str]] = ()) -> KernelReading:
    """What is found of launched kernels, and of those beside them.

    Args:
        scopes: more modules to look for kernels in: what their names mean, and their files.
    """
    triton = [view.function for view in views if not isinstance(view.function, CudaKernel)]
    beside = {each.file: each.plain.__globals__ for each in triton} | {file: scope for scope, file in scopes}
    alone = [each for file, scope in beside.items() for each in siblings(functions_of(scope, file), views)]
    kernels: dict[str, ReadKernel] = {}
    for view in views:
        kernel = _kernel(view.function, view.record, launched=True)
        before = kernels.get(view.name, kernel)
        lost = tuple(sorted({*before.lost, *kernel.lost}))
        kernels[view.name] = replace(kernel, expressions=max(before.expressions, kernel.expressions), lost=lost)
    others = (_kernel(function, record, launched=False) for function, record, _ in alone)
    of_launched = (finding for view in views for finding in findings_in(view))
    of_others = (finding for _, _, found in alone for finding in found)
    return KernelReading(_once((*of_launched, *of_others)), (*kernels.values(), *others))


def _once(found: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    """Each finding once, in the order of the text, behind those of launched kernels what names alone tell."""
    places: dict[tuple[object, ...], LintFinding] = {}
    for one in found:
        places.setdefault((one.rule, one.file, one.line, one.column, one.tensor), one)
    return tuple(sorted(places.values(), key=lambda finding: (finding.by_name, finding.file, finding.line)))


def _kernel(function: Function | CudaKernel, record: Record, *, launched: bool) -> ReadKernel:
    lost = tuple(sorted(record.lost))
    return ReadKernel(function.name, function.file, function.line, launched, len(record.expressions), lost)
