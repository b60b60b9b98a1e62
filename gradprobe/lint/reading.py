"""A target's kernels, read down to the line: `findings_of` for diagnoses, `read_views` for `gradprobe lint`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..model.case import Case
from ..source.pointers import Record
from ..source.triton_source import Function
from ..targets.find import Target
from .catching import catch
from .finding import LintFinding
from .rules import findings_in
from .unlaunched import functions_of, siblings
from .view import KernelView, views_of


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


def read_views(views: Sequence[KernelView], scopes: Iterable[tuple[dict[str, object], str]] = ()) -> KernelReading:
    """What is found of launched kernels, and of those beside them.

    Args:
        scopes: more modules to look for kernels in: what their names mean, and their files.
    """
    found, kernels = list[LintFinding](), dict[str, ReadKernel]()
    for view in views:
        found += findings_in(view)
        kernel = _kernel(view.function, view.record, launched=True)
        before = kernels.get(view.name, kernel)
        lost = tuple(sorted({*before.lost, *kernel.lost}))
        kernels[view.name] = replace(kernel, expressions=max(before.expressions, kernel.expressions), lost=lost)
    beside = {view.function.file: view.function.plain.__globals__ for view in views}
    launched = set(kernels)
    for file, scope in {**beside, **{file: scope for scope, file in scopes}}.items():
        for function, record, by_name in siblings(functions_of(scope, file), launched):
            kernels[f"{file}:{function.line}"] = _kernel(function, record, launched=False)
            found += by_name
    return KernelReading(_once(found), tuple(kernels.values()))


def _once(found: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    """Each finding once, in the order of the text, behind those of launched kernels what names alone tell."""
    places: dict[tuple[object, ...], LintFinding] = {}
    for one in found:
        places.setdefault((one.rule, one.file, one.line, one.column, one.tensor), one)
    return tuple(sorted(places.values(), key=lambda finding: (finding.by_name, finding.file, finding.line)))


def _kernel(function: Function, record: Record, *, launched: bool) -> ReadKernel:
    lost = tuple(sorted(record.lost))
    return ReadKernel(function.name, function.file, function.line, launched, len(record.expressions), lost)
