"""What diagnoses say of intermediates, held against the table of the very report that they stand in."""

from __future__ import annotations

from collections.abc import Iterator

from gradprobe.model.intermediates import lookup
from gradprobe.model.layout_run import MISMATCH, Intermediate
from gradprobe.model.report import Report

# By form that is no intermediate: what it is a step to, and what it is made of.
_STEPS = {
    "S": ("P O LSE", ""), "Q-K-T": ("P O LSE", ""), "S-LSE": ("P", "LSE"), "dP-delta": ("dS", "dP delta"),
    "P-dP": ("delta dS", "P dP"), "dT": ("dS dBias", "P dP delta"), "dS-K": ("dQ", "dS"), "dS-T-Q": ("dK", "dS"),
    "sum-of-dS": ("dBias", "dS"),
}  # fmt: skip


def denied(report: Report) -> list[str]:
    """A sentence for each value that a cause accuses although the table has it right, or what it is made of wrong."""
    run = next((run for run in report.runs if run.has_wrong_elements), None)
    return [] if run is None else [*_denied(report, {one.title: one for one in run.compares})]


def _denied(report: Report, table: dict[str, Intermediate]) -> Iterator[str]:
    for cause in report.causes:
        kind, _, form = cause.fault.partition("/")
        if kind != "value" or not cause.where:
            continue
        steps, made_of = _STEPS.get(form, (form, " ".join(_behind(form, report.target.family))))
        for kernel in {where.kernel for where in cause.where}:
            here = {one.name: one for title, one in table.items() if _is_of(one.kernel, kernel)}
            accused = [here.get(name) for name in steps.split() if lookup(name)]
            if accused and all(one is not None and one.status != MISMATCH for one in accused):
                yield f"{cause.summary}: the table has {steps} right or inherited in {kernel}"
            for name in made_of.split():
                if name in here and here[name].mismatched:
                    yield f"{cause.summary}: {name} is wrong in {kernel}"


def _is_of(at: str | None, kernel: str) -> bool:
    return not at or at == kernel or at.startswith(f"{kernel} for ")


def _behind(name: str, family: str) -> list[str]:
    row = lookup(name)
    step = row.step(family) if row is not None else None
    parents = [one for one in step.parents if lookup(one) is not None] if step is not None else []
    return [*parents, *(other for one in parents for other in _behind(one, family))]
