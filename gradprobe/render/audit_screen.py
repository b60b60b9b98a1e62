"""An audit of a reference for people: the verdict, the first wrong formula with its line, then what is wrong where."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ..model.layout_run import MATCH
from ..model.number import listed, plural
from ..model.report import Report
from .notation import element_line
from .rows import folded, headed
from .screen.reasons import render_reasons
from .source_places import base_of


def render_audit(report: Report, width: int) -> list[Text]:
    """The audit as lines; sentences are folded to `width`."""
    assert report.audit is not None
    lines = [*_verdict(report, width)]
    if report.first_mismatch is not None:
        lines.append(Text(element_line(report.first_mismatch), "bold"))
    if report.verdict != MATCH:
        lines += render_reasons(report, width)
    lines += [line for sentence in _sentences(report) for line in folded(sentence, width)]
    return [*lines, Text(f"  again: {report.reproduce}", overflow="ignore")]


def _verdict(report: Report, width: int) -> Iterator[Text]:
    name = report.target.name
    if report.verdict == MATCH:
        count = plural(len(report.runs), "case")
        return headed(
            "MATCH", "bold green", f"{name} is right: every element in {count}, to float32", width
        )
    if report.diagnoses and report.diagnoses[0].where:
        where = report.diagnoses[0].where[0]
        words = f"{name} is wrong from line {where.line} on: {report.diagnoses[0].summary}"
    else:
        words = f"{name} is wrong"
    return headed("MISMATCH", "bold red", words, width)


def _sentences(report: Report) -> Iterator[str]:
    audit = report.audit
    assert audit is not None
    if report.verdict != MATCH:
        wrong = [run.layout for run in report.runs if run.verdict != MATCH]
        right = [run.layout for run in report.runs if run.verdict == MATCH]
        yield f"{listed(audit.wrong)} wrong in {_cases(wrong)}" + (
            f"; right in {_cases(right)}" if right else ""
        )
    else:
        yield f"right in {_cases([run.layout for run in report.runs])}"
    yield f"called with {'; '.join(audit.taken)}"
    where = base_of(report).short(report.target.file)
    yield f"ran {report.target.function} of {where}, sha256 {report.target.sha256[:12]}"


def _cases(layouts: list[str]) -> str:
    """`causal (seeds 0, 1, 2)`, with draws of one kind together."""
    kinds: dict[str, list[str]] = {}
    for layout in layouts:
        kind, _, seed = layout.rpartition(" seed=")
        kinds.setdefault(kind, []).append(seed)
    return ", ".join(f"{kind} (seeds {', '.join(seeds)})" for kind, seeds in kinds.items())
