"""Exports in another convention: under --strict each is a mismatch, and the gradients that are made of it are right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..model.report import Diagnosis
from ..numerics.evidence import LayoutRun


def of_conventions(runs: Iterable[LayoutRun]) -> dict[Diagnosis, tuple[str, ...]]:
    """The exports that only a convention makes wrong, each with the layouts that show it."""
    shown: dict[tuple[str, str], tuple[str, ...]] = {}
    for run in runs:
        strict = run.measured is not None and run.measured.as_read is not None
        for convention in run.measured.conventions if run.measured is not None and strict else ():
            name = convention.name, convention.relation
            shown[name] = (*shown.get(name, ()), run.layout)
    return {_diagnosis(*of, also=number > 0): layouts for number, (of, layouts) in enumerate(shown.items())}


def still_failing(runs: Iterable[LayoutRun]) -> Sequence[LayoutRun]:
    """The runs that fail in any convention, with their exports read by it."""
    read = ((run, run.measured.as_read) for run in runs if run.measured is not None)
    found = (run if measured is None else replace(run, measured=measured) for run, measured in read)
    return [run for run in found if run.measured is not None and not run.measured.comparison.matches]


def _diagnosis(name: str, relation: str, *, also: bool) -> Diagnosis:
    summary = f"exports {relation} as {name}, another convention; the gradients made of it are right"
    evidence = ("--strict counts it as wrong; without --strict it is a note",)
    fix = f"return {name} itself, or leave out --strict"
    return Diagnosis(f"convention/{name}", "A", summary, 1.0, evidence, fix=fix, also=also, says_wrong=(name,))
