"""A target checked on several draws -> the Entry that is kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...pipeline.run_check import run_check
from .changes import Entry, Errors

if TYPE_CHECKING:
    from ...numerics.evidence import Probed
    from ...numerics.tally import Finding

# Significant digits of a figure: what the last one stands for is far below any noise.
DIGITS = 4


def measure(
    request: CheckRequest,
    seeds: Sequence[int],
    accept: Callable[[Probed], None] = lambda report: None,
    told: Callable[[int, int], object] = lambda number, of: None,
) -> Entry | Probed:
    """The errors of a target over several draws; the report of the first draw that is a mismatch, where one is.

    A black box is not looked into unless `--recover` asks for it: recovered intermediates are not the target's results.

    Args:
        asked: without a seed.
        accept: given the first report, raises where there is no use in going on.
        told: told before each draw its number, from 1, and how many there are.
    """
    reports: list[Probed] = []
    for number, seed in enumerate(seeds, 1):
        told(number, len(seeds))
        drawn = replace(request, options={"recover": False, **request.options, "seed": seed})
        chosen = {"family": request.family, "reference": request.reference}
        report = run_check(drawn, command_line("check", request.target, {**request.options, "seed": seed}, chosen))
        if report.failing:
            return report
        accept(report)
        reports.append(report)
    return _entry(request, tuple(seeds), reports)


def _entry(request: CheckRequest, seeds: tuple[int, ...], reports: Sequence[Probed]) -> Entry:
    report = reports[0]
    return Entry(
        request=request,
        seeds=seeds,
        ran=ran_on(report),
        environment={name: report.environment[name] for name in ("gradprobe", "torch", "triton", "device")},
        kernels={kernel.name: kernel.sha256[:12] for kernel in report.provenance.kernels},
        case=case_of(report),
        coarser=_coarser(reports),
        errors=_errors(reports),
    )


def ran_on(report: Probed) -> str:
    return f"{report.provenance.backend} on {report.case.device}"


def case_of(report: Probed) -> dict[str, Any]:
    """The resolved options, without those that are off and the seed."""
    from ...model.documents import document_of
    from ...pipeline.reported import report_of

    off: tuple[object, ...] = (None, False, [])
    return {
        name: value
        for name, value in document_of(report_of(report))["case"].items()
        if name != "seed" and value not in off
    }


def _coarser(reports: Sequence[Probed]) -> tuple[str, ...]:
    """Of most reports: a kernel at the border of its budget may show it in one draw and not in the next."""
    found = Counter(
        name for report in reports for name in {one.name for _, found in report.measured for one in found.coarser}
    )
    return tuple(sorted(name for name, times in found.items() if 2 * times > len(reports)))


def _errors(reports: Sequence[Probed]) -> dict[str, dict[str, Errors]]:
    """What every draw has, in the order of the first."""
    draws = [{run.layout: found.comparison.findings for run, found in report.measured} for report in reports]
    return {
        layout: {
            name: _figures([draw[layout][name] for draw in draws])
            for name in findings
            if all(name in draw[layout] for draw in draws)
        }
        for layout, findings in draws[0].items()
        if all(layout in draw for draw in draws)
    }


def _figures(findings: Sequence[Finding]) -> Errors:
    figures = ([one.rms_ratio for one in findings], [one.max_ratio for one in findings])
    return Errors(*(tuple(float(f"{figure:.{DIGITS - 1}e}") for figure in of) for of in figures))
