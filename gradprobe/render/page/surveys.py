"""Surveys: the pages of many layouts or checks, the matrix first, and of what changed between two reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from ...model.documents import Reports
from ...model.layout_run import PROGRAM
from ...model.number import plural
from ...model.report import Diagnosis, Report
from ..comparison import KINDS, changes_of, counts_in_words, pairs_of, wrong_heads
from ..comparison import sentences_of as sentences_of_changes
from ..comparison import verdict_of as verdict_of_changes
from ..layout_survey import (
    BLANK,
    culprits_of,
    legend,
    memory_told,
    sentences_of,
    tried_as,
    verdict_of,
    warning_told,
    wrong_layouts,
)
from ..notation import UTF8, cause_in_words, ratio, told_apart
from ..source_places import base_of
from . import check_matrix as matrix
from .opened import CheckSummary, ids_of, of_check, of_layout
from .sources import CodeBlock, diff_lines, excerpts
from .wholes import Wholes, of_layouts


def parts_of_layouts(report: Report) -> dict[str, Any]:
    """What `layouts.html` reads, of a survey of layouts."""
    ids = ids_of([run.layout for run in report.runs], "layout")
    verdict, _, words = verdict_of(report)
    return {
        "report": report,
        "verdict": verdict,
        "words": words,
        "culprits": culprits_of(report),
        "causes": _causes(report),
        "memory": list(memory_told(report, wrong_layouts(report))),
        "warnings": [warning_told(report, warned) for warned in report.warnings],
        "diff_lines": diff_lines,
        "matrix": matrix.of_layouts(report, ids),
        "legend": legend(report, UTF8),
        "programs": [
            matrix.cell_of(run, run.layout, ids[run.layout]) for run in report.runs if tried_as(run).kind == PROGRAM
        ],
        "opened": [of_layout(report, run, ids[run.layout]) for run in report.runs],
        "each": list(of_layouts(report, ids)),
        "wholes": Wholes(),
        "sentences": list(sentences_of(report)),
    }


def parts_of_checks(several: Reports, reports: Sequence[Report]) -> dict[str, Any]:
    """What `several.html` reads, of several checks.

    Args:
        reports: those of the document, and one that is not finished where more are to come.
    """
    reports = told_apart(sorted(reports, key=lambda report: report.number))
    ids = ids_of([report.name for report in reports], "check")
    groups = ids_of([group.titles[0] for group in several.groups], "cause")
    causes = {
        title: (groups[group.titles[0]], group.summary or group.cause)
        for group in several.groups
        for title in group.titles
    }
    by_title = {report.title: report for report in reversed(reports)}
    verdicts = Counter(map(matrix.verdict_of, reports))
    counts = [f"{verdicts[word]} {word}" for word in matrix.SIGNS if verdicts[word]]
    names = ", ".join(dict.fromkeys(report.target.name for report in reports if report.target.name))
    made = matrix.of_checks(reports, ids, combined=several.coverage is not None)
    signs = {sign: matrix.SAID[word] for word, sign in matrix.SIGNS.items() if verdicts[word]}
    return {
        "verdict": structs.replace(several, reports=tuple(reports)).verdict,
        "words": f"{names}: {', '.join([plural(len(reports), 'check'), *counts])}",
        "matrix": made,
        "legend": signs | ({BLANK: "no such check"} if made is not None and made.has_blanks else {}),
        "groups": [(groups[one.titles[0]], one, _causes(by_title.get(one.titles[0]))) for one in several.groups],
        "diff_lines": diff_lines,
        "ids": {title: ids[report.name] for title, report in by_title.items()},
        "opened": [of_check(report, ids[report.name], causes.get(report.title)) for report in reports],
        "each": [(ids[report.name], report) for report in reports],
        "wholes": Wholes(),
        "not_taken": several.not_taken or (),
    }


def _causes(report: Report | None) -> list[tuple[Diagnosis, list[CodeBlock]]]:
    """The causes that are named, each with its lines."""
    return [(one, excerpts(report, one, base_of(report))) for one in report.causes] if report else []


@dataclass(frozen=True)
class Side:
    """An intermediate of a layout in two reports."""

    title: str
    layout: str
    old: tuple[str, str] | None
    """Its status, and how far and in which heads it is wrong; None where it is not there."""
    new: tuple[str, str] | None


def parts_of_comparison(before: Reports, after: Reports) -> dict[str, Any]:
    """What `comparison.html` reads."""
    changes, pairs = changes_of(before, after), pairs_of(before, after)
    told = {
        name: [
            (became, sentence)
            for became in KINDS
            for sentence in sentences_of_changes([one for one in changes if (one.check, one.became) == (name, became)])
        ]
        for name, _, _ in pairs
    }
    return {
        "verdict": verdict_of_changes(changes),
        "words": counts_in_words(changes),
        "told": told,
        "pairs": [(name, _opened(old), _opened(new), *_sides(old, new)) for name, old, new in pairs],
    }


def _opened(report: Report | None) -> CheckSummary | None:
    if report is None:
        return None
    return of_check(report, "", next((("", cause_in_words(one)) for one in report.causes), None))


def _sides(old: Report | None, new: Report | None) -> tuple[list[Side], list[Side]]:
    """What both hold of each intermediate: where they differ, and where they do not."""
    here, there = (_of_intermediates(report) for report in (old, new))
    made = [Side(*key, here.get(key), there.get(key)) for key in dict.fromkeys((*here, *there))]
    return [one for one in made if one.old != one.new], [one for one in made if one.old == one.new]


def _of_intermediates(report: Report | None) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (intermediate.title, run.layout): (
            intermediate.status,
            f"{ratio(intermediate.ratio)}x, {wrong_heads(intermediate)}",
        )
        for run in (report.runs if report else ())
        for intermediate in run.compares
    }
