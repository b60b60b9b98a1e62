"""Report of a probe: the one place where tensors become numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType

from msgspec import structs

from ..model.case import Case
from ..model.intermediates import steps
from ..model.layout_run import (
    NOT_EXPOSED,
    CloseUp,
    Counts,
    Element,
    Error,
    Head,
    Intermediate,
    Run,
    add_counts,
)
from ..model.number import Number
from ..model.report import Listing, Report, explained_diagnoses
from ..numerics import evidence as verdict
from ..numerics.evidence import Measured, Probed
from ..numerics.tally import Finding
from ..reference.attention import MATRICES
from ..runtime.trace import dtype_of

# What a report calls as a probe does.
_ALIKE = (
    "verdict", "case", "diagnoses", "known", "compile_errors", "sought", "notes", "beyond", "not_checked",
    "undeclared", "reproduce",
)  # fmt: skip


def report_of(probed: Probed, close_ups: Iterable[CloseUp] = ()) -> Report:
    """What a probe found, without its tensors."""
    failing, runs = probed.failing, tuple(run_of(probed.case, run, probed.steps) for run in probed.runs)
    return Report(
        **{name: getattr(probed, name) for name in _ALIKE},
        target=probed.provenance,
        # Some are of classes of torch, which whoever reads this need not import.
        environment={name: str(value) for name, value in probed.environment.items()},
        runs=runs,
        first_mismatch=_placed(failing[1].first, probed.case, probed.steps) if failing else None,
        listings=_listings(probed),
        error=_compile_failure(probed),
        coarser=tuple({one.name: one.sentence for _, found in probed.measured for one in found.coarser}.values()),
        target_warnings=probed.warned,
        compared=add_counts(run.compared for run in runs),
        warnings=tuple(probed.warnings),
        seconds={stage: round(seconds, 4) for stage, seconds in probed.seconds.items()},
        close_ups=tuple(close_ups),
    )


def _listings(probed: Probed) -> tuple[Listing, ...]:
    wheres = [where for cause in explained_diagnoses(probed.diagnoses) for where in cause.where]
    if not wheres:
        return ()
    from ..source.listing import listings_of

    return listings_of(wheres)


def _compile_failure(probed: Probed) -> Error | None:
    """What is told in the place of a match, or beside a mismatch, of kernels that no compiler takes."""
    if not probed.compile_errors:
        return None
    first, *others = probed.compile_errors
    matches = "" if probed.failing else "matches in the interpreter, but "
    code = [f"    {first.code}"] if first.code else []
    return Error(
        kind=type(first).__name__, message=f"{matches}{first.sentence}", way_out=first.way_out,
        details=(*code, *(one.sentence for one in others)),
        file=first.file, line=first.line, function=first.function, code=first.code,
    )  # fmt: skip


def run_of(case: Case, run: verdict.LayoutRun, steps: verdict.Steps = MappingProxyType({})) -> Run:
    """One of a probe's runs: its own results, and what was recovered beside them."""
    measured = run.shown
    if measured is None:
        return Run(layout=run.layout, verdict=run.verdict, skipped=run.skipped, memory=run.memory, laid=run.laid)
    return Run(
        layout=run.layout,
        verdict=run.verdict,
        skipped=run.skipped,
        precision=measured.comparison.precision.name,
        undecided=measured.comparison.undecided,
        coarser=tuple(coarser.sentence for coarser in measured.coarser),
        memory=run.memory,
        inside=run.inside.sentences if run.inside else (),
        intermediates=tuple(_intermediates(case, measured)),
        first_mismatch=_placed(measured.first, case, steps),
        compared=_counts(case, measured),
        invariants=measured.invariants,
        repeats=run.repeats,
        repeated=run.repeated,
        laid=run.laid,
    )


def _placed(element: Element | None, case: Case, steps: verdict.Steps) -> Element | None:
    """The element; of a sharded target with the rank that holds it, and the step that made it wrong."""
    if case.ranks is None:
        return element
    from ..sharded import on_ranks

    return on_ranks(element, case, steps)


def _counts(case: Case, measured: Measured) -> Counts:
    seen = [row.finding for row in measured.rows]
    names, heads = {finding.name for finding in seen}, case.batch * case.heads
    findings = [*seen, *(each for each in measured.comparison.findings.values() if each.name not in names)]
    return Counts(heads, heads * case.seqlen_q, sum(finding.total for finding in findings), len(findings))


def _intermediates(case: Case, measured: Measured) -> Iterator[Intermediate]:
    findings, absent = measured.comparison.findings, measured.comparison.absent
    seen = {row.finding.name for row in measured.rows}
    for row, _ in steps(case.family):
        if row.name == "dQ":
            for kernel in measured.rows:
                of_kernel = _intermediate(kernel.finding, kernel.measured)
                yield structs.replace(of_kernel, source="seen", kernel=kernel.kernel, dtype=None)
        if row.name in findings and row.name not in seen:
            yield _intermediate(findings[row.name], measured)
        elif row.name in absent:
            yield Intermediate(name=row.name, status=NOT_EXPOSED)


def _intermediate(finding: Finding, measured: Measured) -> Intermediate:
    adds = measured.comparison.reading.get(finding.name)
    return Intermediate(
        name=finding.name,
        status=finding.status,
        source=measured.trace.sources[finding.name],
        dtype=dtype_of(measured.trace, finding.name),
        reading_adds=None if adds is None else Number(adds),
        mismatched=finding.mismatched,
        total=finding.total,
        non_finite=finding.non_finite,
        max_abs_err=Number(finding.max_abs_err),
        max_budget_ratio=Number(finding.max_ratio),
        length=finding.wrong_rows.shape[2],
        heads=tuple(_heads(finding)),
        tile=finding.cell,
        bounded=finding.bounded,
    )


def _heads(finding: Finding) -> Iterator[Head]:
    ratios, wrong = finding.ratio.tolist(), finding.wrong.tolist()
    signs = None if finding.signs is None else finding.signs.tolist()
    for batch, of_batch in enumerate(ratios):
        for head, ratio in enumerate(of_batch):
            yield Head(
                batch=batch if finding.axes[0] == "b" else None,
                head=head,
                status=finding.head_status(batch, head),
                mismatched=wrong[batch][head],
                max_budget_ratio=Number(ratio),
                rows=tuple(finding.row_ranges(batch, head)) if wrong[batch][head] else (),
                keys=tuple(finding.column_ranges(batch, head)) if finding.name in MATRICES else (),
                tiles=() if signs is None else tuple(bytes(row).decode() for row in signs[batch][head]),
            )
