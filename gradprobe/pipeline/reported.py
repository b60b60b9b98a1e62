"""Report of a probe: the one place where tensors become numbers."""

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from msgspec import structs

from ..model import layout_run as parts
from ..model.case import Case
from ..model.intermediates import steps
from ..model.layout_run import CloseUp, Counts, Element, Error, Head, Intermediate, Run
from ..model.number import Number
from ..model.report import Report
from ..numerics.evidence import LayoutRun, MeasuredRun, ProbeResult, Steps
from ..numerics.finding import Finding, ranges_of
from ..reference.attention import MATRICES
from ..runtime.run import dtype_of

_OF_PROBE = (
    "verdict", "case", "diagnoses", "known", "compile_errors", "sought", "notes", "beyond", "not_checked",
    "undeclared", "reproduce",
)  # fmt: skip
_OF_RUN = ("layout", "verdict", "skipped", "memory", "repeats", "repeated", "laid")
_OF_FINDING = ("name", "status", "mismatched", "total", "non_finite")


def _fields(of: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def report_of(probed: ProbeResult, close_ups: Iterable[CloseUp] = ()) -> Report:
    runs = tuple(map(partial(run_of, probed.case, steps=probed.steps), probed.runs))
    failing, coarser = probed.failing, dict[str, str]()
    for _, found in probed.measured:
        for each in found.coarser:
            coarser[each.name] = each.sentence
    return Report(
        **_fields(probed, _OF_PROBE),
        target=probed.provenance,
        environment={name: str(value) for name, value in probed.environment.items()},
        runs=runs,
        first_mismatch=_placed(failing[1].first, probed.case, probed.steps) if failing else None,
        error=_compile_failure(probed) if probed.compile_errors else None,
        coarser=tuple(coarser.values()),
        target_warnings=probed.warned,
        compared=parts.add_counts(map(attrgetter("compared"), runs)),
        warnings=tuple(probed.warnings),
        seconds={stage: round(seconds, 4) for stage, seconds in probed.seconds.items()},
        close_ups=tuple(close_ups),
    )


def _compile_failure(probed: ProbeResult) -> Error:
    first, *others = probed.compile_errors
    matches = "" if probed.failing else "matches in the interpreter, but "
    code = [f"    {first.code}"] if first.code else []
    return Error(
        **_fields(first, ("way_out", "file", "line", "function", "code")),
        kind=type(first).__name__,
        message=f"{matches}{first.sentence}",
        details=(*code, *map(attrgetter("sentence"), others)),
    )


def run_of(case: Case, run: LayoutRun, steps: Steps = MappingProxyType({})) -> Run:
    found, measured = Run(**_fields(run, _OF_RUN)), run.shown
    if measured is None:
        return found
    return structs.replace(
        found,
        precision=measured.comparison.precision.name,
        undecided=measured.comparison.undecided,
        coarser=tuple(map(attrgetter("sentence"), measured.coarser)),
        inside=run.inside.sentences if run.inside else (),
        intermediates=tuple(_intermediates(case, measured)),
        first_mismatch=_placed(measured.first, case, steps),
        compared=_counts(case, measured),
        invariants=measured.invariants,
    )


def _placed(element: Element | None, case: Case, steps: Steps) -> Element | None:
    if case.ranks is None:
        return element
    from ..sharded.shards import on_ranks

    return on_ranks(element, case, steps)


def _counts(case: Case, measured: MeasuredRun) -> Counts:
    rows, heads = list(map(attrgetter("finding"), measured.rows)), case.batch * case.heads
    names = measured.comparison.findings.keys() - set(map(attrgetter("name"), rows))
    findings = [*rows, *map(measured.comparison.findings.__getitem__, names)]
    total = sum(map(attrgetter("total"), findings))
    return Counts(heads, heads * case.seqlen_q, total, len(findings))


def _intermediates(case: Case, measured: MeasuredRun) -> Iterator[Intermediate]:
    findings, absent = measured.comparison.findings, measured.comparison.absent
    seen = set(map(attrgetter("finding.name"), measured.rows))
    for row, _ in steps(case.family):
        name = row.name
        for kernel in measured.rows if name == "dQ" else ():
            of_kernel = _intermediate(kernel.finding, kernel.measured)
            yield structs.replace(of_kernel, source="seen", kernel=kernel.kernel, dtype=None)
        if name in findings and name not in seen:
            yield _intermediate(findings[name], measured)
        elif name in absent:
            yield Intermediate(name=name, status=parts.NOT_EXPOSED)


def _intermediate(finding: Finding, measured: MeasuredRun) -> Intermediate:
    adds = measured.comparison.reading.get(finding.name)
    return Intermediate(
        **_fields(finding, _OF_FINDING),
        source=measured.trace.sources[finding.name],
        dtype=dtype_of(measured.trace, finding.name),
        reading_adds=None if adds is None else Number(adds),
        max_abs_err=Number(finding.max_abs_err),
        max_budget_ratio=Number(finding.max_ratio),
        length=finding.wrong_rows.shape[2],
        heads=tuple(_heads(finding)),
    )


def _heads(finding: Finding) -> Iterator[Head]:
    wrong, has_keys = finding.wrong.tolist(), finding.name in MATRICES
    for batch, of_batch in enumerate(finding.ratio.tolist()):
        for head, ratio in enumerate(of_batch):
            yield Head(
                batch=batch if finding.axes[0] == "b" else None,
                head=head,
                status=finding.head_status(batch, head),
                mismatched=wrong[batch][head],
                max_budget_ratio=Number(ratio),
                rows=ranges_of(finding.wrong_rows[batch, head]) if wrong[batch][head] else (),
                keys=ranges_of(finding.wrong_columns[batch, head]) if has_keys else (),
            )
