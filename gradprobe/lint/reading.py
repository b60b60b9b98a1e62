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
from .foreign import foreign
from .rules import functions_of, missing, siblings, swapped
from .values import Record
from .view import KernelView, memory_of


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
    """The wrong strides of a target's kernels, and of the kernels beside them; none where nothing can be caught.

    Kernels are not run, and no value counts: only the case's options and dtype do.
    """
    return reading_of([target], [case]).findings


def reading_of(targets: Sequence[Target], cases: Sequence[Case]) -> KernelReading:
    """What can be read of the kernels of some targets, each in a case of its own."""
    views = [view for target, case in zip(targets, cases, strict=True) for view in views_of(target, case)]
    return read_views(views, [])


def views_of(target: Target, case: Case) -> list[KernelView]:
    """The kernels that a target launches, as they are in each launch."""
    return [view for caught in catch(target, case) for view in _views(caught)]


def _views(caught: Caught) -> list[KernelView]:
    memory, other, names = memory_of(caught), caught.ordinary, [launch.name for launch in caught.launches]
    if other is None or [launch.name for launch in other.launches] != names:
        return [KernelView(launch, memory) for launch in caught.launches]
    second = memory_of(other)
    pairs = zip(caught.launches, other.launches, strict=True)
    return [KernelView(launch, memory, (ordinary, second)) for launch, ordinary in pairs]


def read_views(views: Sequence[KernelView], scopes: Iterable[tuple[dict[str, object], str]]) -> KernelReading:
    """What is found of launched kernels, and of those beside them.

    Args:
        scopes: more modules to look for kernels in: what their names mean, and their files.
    """
    triton = [(view.function.file, view.function) for view in views if not isinstance(view.function, CudaKernel)]
    beside = {file: function.plain.__globals__ for file, function in triton} | {file: scope for scope, file in scopes}
    read = [each for file, scope in beside.items() for each in siblings(functions_of(scope, file), views)]
    findings: dict[tuple[object, ...], LintFinding] = {}
    for one in (*(one for view in views for one in _findings(view)), *(one for _, found in read for one in found)):
        findings.setdefault((one.rule, one.file, one.line, one.column, one.tensor), one)
    kernels: dict[str, ReadKernel] = {}
    for kernel in (_kernel(view.function, view.record, launched=True) for view in views):
        most = max(kernel.expressions, kernels.get(kernel.name, kernel).expressions)
        kernels[kernel.name] = replace(kernel, expressions=most)
    alone = [_kernel(record.function, record, launched=False) for record, _ in read]
    ordered = sorted(findings.values(), key=lambda finding: (finding.by_name, finding.file, finding.line))
    return KernelReading(tuple(ordered), (*kernels.values(), *alone))


def _findings(view: KernelView) -> list[LintFinding]:
    # A loop's variable in C++ may run along another axis in the next loop.
    found = [*foreign(view), *([] if isinstance(view.function, CudaKernel) else swapped(view))]
    return [*found, *missing(view, found)]


def _kernel(function: Function | CudaKernel, record: Record, *, launched: bool) -> ReadKernel:
    lost = tuple(sorted(record.lost))
    return ReadKernel(function.name, function.file, function.line, launched, len(record.expressions), lost)
