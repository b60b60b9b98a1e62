"""All that a report has to say, block by block: what `--details` shows, and a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ..model.layout_run import MATCH, CloseUp, Run
from ..model.number import listed, plural
from ..model.report import Report, Source
from . import layout_survey as survey
from .comparison import against
from .console import first_line, layouts_of, receipt, sources, verdict_of, whereabouts
from .notation import BAD, CAUTION, GOOD, Signs, element_line
from .notes import all_notes
from .reasons import reasons
from .report_blocks import CommandLine, ReportBlock, TextLine, Title, Words, sentences
from .source_places import base_of
from .tables import HeadTable, close_up, legend, numbers_around


def all_of(report: Report, width: int, signs: Signs) -> Iterator[ReportBlock]:
    """A check that came to results, a survey of layouts, or an audit."""
    if report.audit is not None:
        return _audit(report)
    is_survey = any(run.tried for run in report.runs)
    return _survey(report, width, signs) if is_survey else _check(report, width, signs)


def close_up_in_full(
    report: Report, view: CloseUp, width: int, signs: str
) -> Iterator[ReportBlock]:
    yield from close_up(view, width, signs)
    if view.mismatched:
        yield from reasons(report)


def _check(report: Report, width: int, signs: Signs) -> Iterator[ReportBlock]:
    run = report.shown
    first = run.first_mismatch
    yield from verdict_of(report)
    yield from against(report, report.against) if report.against else ()
    if report.failing:
        yield TextLine(Text(first_line(report), "bold"))
        yield Words("; ".join(whereabouts(report)), "", "dim")
        # Beside the cause one row of numbers is enough.
        yield from numbers_around(first, width, one_row=bool(report.causes)) if first else ()
        yield from reasons(report)
    if run.compares:
        yield Title("Every head")
        yield HeadTable(report, run, signs, each=True)
        yield from [legend(signs)] if first else []
        yield Words("; ".join([sources(run), *_dtypes(run)]), "", "dim")
    yield Title("Layouts")
    yield from layouts_of(report, signs)
    yield from sentences((*all_notes(report), receipt(report)))
    yield from _provenance(report)


def _dtypes(run: Run) -> list[str]:
    """In which dtypes it came; what was recovered has none."""
    names: dict[str, list[str]] = {}
    for one in run.compares:
        if one.dtype:
            names.setdefault(one.dtype, []).append(one.name)
    if len(names) == 1:
        return [f"all results are {next(iter(names))}"]
    return [f"{dtype}: {', '.join(of_it)}" for dtype, of_it in names.items()]


def _provenance(report: Report) -> Iterator[ReportBlock]:
    """What ran, in which files, and the command that repeats it."""
    target, base = report.target, base_of(report)
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    yield Words(f"ran {target.backend} on {report.environment.get('device')}; seconds: {seconds}")
    files: dict[tuple[str, str], list[str]] = {}
    own = Source(name=target.function, file=target.file, line=target.line, sha256=target.sha256)
    for source in target.kernels or (own,):
        files.setdefault((source.file, source.sha256), []).append(f"{source.name}:{source.line}")
    for (file, digest), names in files.items():
        yield Words(f"{base.short(file)} sha256 {digest[:12]}: {' '.join(names)}", "", "dim")
    if cache := report.environment.get("triton_cache"):
        yield Words(f"Triton's cache: {base.short(cache)}", "", "dim")
    if report.failing and report.reproduce:
        yield CommandLine(report.reproduce)


def _survey(report: Report, width: int, signs: Signs) -> Iterator[ReportBlock]:
    wrong = survey.wrong_layouts(report)
    yield survey.verdict_of(report)
    if wrong:
        line, words = survey.place_of_run(report, wrong[0])
        yield TextLine(Text(line, "bold"))
        yield Words(words)
        first = wrong[0].first_mismatch
        yield from numbers_around(first, width) if first is not None else ()
        yield from reasons(report)
    yield from sentences((*survey.in_common(report), *survey.memory_told(report)))
    for words in survey.warning_words(report):
        yield Words(words, "WARNING", CAUTION, hangs=True)
    yield Title("Every layout")
    yield from survey.matrix(report, signs)
    yield Title("Besides")
    yield from sentences(survey.sentences_of(report))
    yield CommandLine(report.reproduce)


def _audit(report: Report) -> Iterator[ReportBlock]:
    """The verdict of a reference, the first wrong formula with its line, then what is wrong where."""
    audit, name, is_right = report.audit, report.target.name, report.verdict == MATCH
    assert audit is not None
    if is_right:
        words = f"is right: every element in {plural(len(report.runs), 'case')}, to float32"
    else:
        causes = [cause for cause in report.diagnoses[:1] if cause.where]
        places = [f" from line {cause.where[0].line} on: {cause.summary}" for cause in causes]
        words = f"is wrong{''.join(places)}"
    verdict = ("MATCH", GOOD) if is_right else ("MISMATCH", BAD)
    yield Words(f"{name} {words}", *verdict, hangs=True)
    if report.first_mismatch is not None:
        yield TextLine(Text(element_line(report.first_mismatch), "bold"))
    if not is_right:
        yield from reasons(report)
    right, wrong = (_cases(report, is_right=right) for right in (True, False))
    told = [f"{listed(audit.wrong)} wrong in {wrong}"] if wrong else []
    told += [f"right in {right}"] if right else []
    where = base_of(report).short(report.target.file)
    ran = f"ran {report.target.function} of {where}, sha256 {report.target.sha256[:12]}"
    yield from sentences(("; ".join(told), f"called with {'; '.join(audit.taken)}", ran))
    yield CommandLine(report.reproduce)


def _cases(report: Report, *, is_right: bool) -> str:
    """`causal (seeds 0, 1, 2)`, with draws of one kind together."""
    kinds: dict[str, list[str]] = {}
    for run in report.runs:
        if (run.verdict == MATCH) == is_right:
            kind, _, seed = run.layout.rpartition(" seed=")
            kinds.setdefault(kind, []).append(seed)
    return ", ".join(f"{kind} (seeds {', '.join(seeds)})" for kind, seeds in kinds.items())
