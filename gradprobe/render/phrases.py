"""What reports say, in the words that every form for CI uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ..model.documents import Reports, report_from
from ..model.memory import MemoryFinding
from ..model.report import MATCH, MISMATCH, Head, Identity, Intermediate, Report, Run
from ..model.severity import WARNING
from ..model.spans import in_words, plural, spans
from . import incomplete
from .text import ratio


def errors_of(report: Report) -> Report:
    """The report without what does not count: runs, findings about memory, or all of a check that is a warning."""
    if report.is_warning:
        return replace(report, verdict=MATCH, runs=(), error=None, strides=None, first_mismatch=None, diagnoses=())
    runs = tuple(replace(run, memory=_counted(run.memory)) for run in report.runs if run.severity != WARNING)
    survey = report.strides and replace(report.strides, findings=_counted(report.strides.findings))
    return replace(report, runs=runs, strides=survey)


def _counted(findings: Iterable[MemoryFinding]) -> tuple[MemoryFinding, ...]:
    return tuple(finding for finding in findings if finding.severity != WARNING)


def so_far(several: Reports, code: int | None) -> Sequence[Report]:
    """The reports, and as long as the command has no exit code, that of a check that is not finished."""
    unfinished = [report_from(incomplete.document(""))] if code is None else []
    return [*several.reports, *unfinished]


def told_apart(reports: Iterable[Report]) -> list[Report]:
    """The reports, where two would go by one name the later ones with a number in their titles."""
    found: dict[str, Report] = {}
    for report in reports:
        named, number = report, 1
        while named.name in found:
            number += 1
            named = replace(report, title=f"{report.title} {number}".strip())
        found[named.name] = named
    return list(found.values())


def identities(run: Run) -> dict[str, Identity]:
    """The target's identities by key; of one tried more than once, the one that is broken."""
    found: dict[str, Identity] = {}
    for identity in run.invariants:
        if identity.of == "target" and (identity.key not in found or not identity.holds):
            found[identity.key] = identity
    return found


def residual(identity: Identity) -> str:
    """How far an identity is from holding."""
    left = "a value that is not finite" if identity.residual is None else f"{identity.residual:.4g}"
    return f"{identity.name} is off by {left}, {ratio(identity.ratio)}x what is allowed"


def head_name(name: str, head: Head) -> str:
    """`dS batch 0 head 1`; without a batch where the intermediate has none."""
    batch = "" if head.batch is None else f" batch {head.batch}"
    return f"{name}{batch} head {head.head}"


def heads_in_words(one: Intermediate, status: str) -> str:
    """`head 1 of 4`, `every head`, of those with a status."""
    wrong = sorted({head.head for head in one.having(status)})
    count = len({head.head for head in one.heads})
    if len(wrong) == count:
        return "every head" if count > 1 else "the only head"
    return f"head{'s' if len(wrong) != 1 else ''} {in_words(spans(wrong))} of {count}"


def counts_in_words(part: Intermediate | Head) -> str:
    """`72 elements wrong, worst 51x what is allowed, rows 0-71`, of an intermediate or a head."""
    words = f"{plural(part.mismatched, 'element')} wrong, worst {ratio(part.ratio)}x what is allowed"
    rows = part.rows if isinstance(part, Head) else ()
    return words + (f", rows {in_words(rows)}" if rows else "")


def is_silent(report: Report) -> bool:
    """Whether a mismatch was found that no intermediate, identity or memory finding of the report accounts for."""
    seen = report.memory or any(
        MISMATCH in (one.status for one in run.intermediates)
        or not all(identity.holds for identity in identities(run).values())
        for run in report.runs
    )
    return report.verdict == MISMATCH and not seen
