"""A survey of layouts for people: its words, and the matrix of tensors and layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.text import Text

from ..model.assignment import LAYOUTS
from ..model.layout_run import (
    ALONE,
    FAILED,
    MATCH,
    MISMATCH,
    PROGRAM,
    SKIPPED,
    TOGETHER,
    Run,
    SurveyedLayout,
)
from ..model.memory_finding import COUNTED, WARNING, MemoryFinding, worst_first
from ..model.number import listed, plural
from ..model.report import Report
from .notation import BAD, CAUTION, GOOD, Signs, blame, greppable, in_short, quoted
from .notes import target_warnings
from .rows import ALL, CellGrid, ReportBlock, TextLine, Title, Words

# Findings that are printed, the others are in the JSON; layouts that are named in one sentence.
_MOST = _NAMED = 4
_FAILED = f"bold {CAUTION}"


def _tried_as(run: Run) -> SurveyedLayout:
    assert run.tried is not None
    return run.tried


def _memory_in(report: Report, run: Run) -> list[MemoryFinding]:
    """What was seen in one layout."""
    kept = (finding for finding in report.memory if finding.layout == run.layout)
    return [*run.memory] or [*kept]


def _having(report: Report, verdict: str) -> list[Run]:
    """The layouts of one verdict that are no warnings."""
    return [run for run in report.runs if run.verdict == verdict and run.severity != WARNING]


def wrong_layouts(report: Report) -> list[Run]:
    """The wrong layouts: the contiguous one first, then those with a first mismatch, then the simplest.

    One that ended its process is wrong where it is known what its kernels did to memory.
    """

    def order(run: Run) -> tuple[bool, bool, int]:
        kind = (ALONE, PROGRAM, TOGETHER).index(_tried_as(run).kind)
        return run.layout != LAYOUTS[0], not (run.has_wrong_elements or run.broken), kind

    counted = (run for run in report.runs if run.severity != WARNING)
    wrong = (run for run in counted if run.verdict == MISMATCH or _memory_in(report, run))
    return sorted(wrong, key=order)


def verdict_of(report: Report, rows: int = ALL) -> Words:
    """The verdict, and the sentence beside it."""
    wrong, failed = wrong_layouts(report), _having(report, FAILED)
    tried = plural(len(report.runs), "layout")
    if wrong:
        contiguous = "also" if report.runs[0] in wrong else "right"
        verdict, style = "MISMATCH", BAD
        words = f"wrong in {len(wrong):,} of {tried}, {contiguous} when contiguous"
    elif failed:
        verdict, style = "NOT RUN", _FAILED
        words = f"{len(failed):,} of {tried} could not be run"
    else:
        warned = f", {plural(len(report.warnings), 'warning')}" if report.warnings else ""
        verdict, style = f"MATCH{warned}", GOOD
        right = plural(len(_having(report, MATCH)), "layout")
        words = f"right in {right} ({report.runs[0].precision})"
        if refused := _having(report, SKIPPED):
            words += f"; {len(refused):,} refused"
    return Words(f"{report.target.name}: {words}", verdict, style, rows, hangs=rows == ALL)


def place_of_run(report: Report, run: Run) -> tuple[str, str]:
    """The greppable line of a wrong layout, and what is wrong there."""
    blamed = blame(run) if run.has_wrong_elements or run.broken else ""
    line = greppable(run, _memory_in(report, run))
    return line, f"with {run.layout}" + (f": {blamed}" if blamed else "")


def in_common(report: Report) -> Iterator[str]:
    """What the layouts that fail have in common: in which each tensor is wrong, tensors that are alike together."""
    wrong = {run.layout for run in wrong_layouts(report)}
    alike: dict[tuple[str, ...], list[str]] = {}
    for row, runs in _cells_of(report).items():
        failing = [run for run in runs if run is not None and run.layout in wrong]
        alike.setdefault(tuple(_tried_as(run).layout for run in failing), []).append(row)
    right = alike.pop((), [])
    for layouts, rows in alike.items():
        yield f"wrong with {listed(rows)} in {', '.join(layouts)}"
    if right and wrong:
        yield f"not wrong with {listed(right)} in any layout that was tried"


def memory_told(report: Report) -> Iterator[str]:
    """What was seen of memory, each once with the simplest layout that shows it, the worst first; of much a few."""
    first: dict[object, MemoryFinding] = {}
    warned = (run for run in report.runs if run.severity == WARNING)
    for run in (*wrong_layouts(report), *warned):
        for one in _memory_in(report, run):
            first.setdefault((one.kind, one.tensor.lower(), one.file, one.line), one)
    memory = worst_first(first.values())
    yield from (f"with {finding.layout}: {finding.sentence}" for finding in memory[:_MOST])
    if len(memory) > _MOST:
        more = plural(len(memory) - _MOST, "more finding")
        yield f"and {more} about memory, none worse: --json FILE has them"


def warning_words(report: Report) -> Iterator[str]:
    """Each warning with the layouts that show it, and what ended the first of them."""
    for warned in report.warnings:
        first = next(run for run in report.runs if run.layout in warned.layouts)
        why = f": {first.error}" if isinstance(first.error, str) else ""
        yield f"{warned.words} ({_named(warned.layouts)}){why}"


def notes_in_short(report: Report) -> Iterator[str]:
    """What one screen tells besides, the most important first."""
    yield from (f"WARNING  {words}" for words in warning_words(report))
    yield from map(in_short, memory_told(report))
    yield from (*sentences_of(report), *target_warnings(report))


def _cells_of(report: Report) -> dict[str, list[Run | None]]:
    """By tensor, and "all" last, the run of each layout but the contiguous one; None where none was made."""
    at = {(_tried_as(run).row, _tried_as(run).layout): run for run in report.runs}
    rows = (*dict.fromkeys(row for row, _ in at if row not in ("", "all")), "all")
    return {row: [at.get((row, layout)) for layout in LAYOUTS[1:]] for row in rows}


def matrix(report: Report, marks: Signs) -> Iterator[ReportBlock]:
    """A row a tensor, a column a layout; what the signs mean that stand in it; a line for each program."""
    shown = {  # sign, style and meaning
        MATCH: ("=", "green", "right"),
        MISMATCH: (marks.mismatch, BAD, "wrong"),
        WARNING: ("!", CAUTION, "wrong, a warning"),
        SKIPPED: ("-", CAUTION, "refused"),
        FAILED: ("crash", _FAILED, "not run"),
        "": ("", "", "not tried"),
    }
    rows: list[list[str | Text]] = [
        ["", *(layout.replace("-", "\n-") for layout in LAYOUTS[1:])]
    ]
    seen = set(map(_state, report.runs))
    for row, runs in _cells_of(report).items():
        seen |= set(map(_state, runs))
        rows.append([row, *(Text(*shown[_state(run)][:2]) for run in runs)])
    yield Words("one tensor in each layout, the others contiguous; then all at once", "", "dim")
    yield CellGrid(rows)
    meanings = [f"{shown[one][0] or 'blank:'} {shown[one][2]}" for one in shown if one in seen]
    yield Words("   ".join(meanings), "", "dim")
    if programs := [run for run in report.runs if _tried_as(run).kind == PROGRAM]:
        yield Title("Programs")
        yield TextLine(Text("  as programs lay them", "dim"))
    for run in programs:
        sign, style, _ = shown[_state(run)]
        yield TextLine(Text.assemble("  ", (f"{sign:>5}", style), f"  {run.layout}"))


def _state(run: Run | None) -> str:
    if run is None:
        return ""
    return WARNING if run.severity == WARNING else run.verdict


def sentences_of(report: Report) -> Iterator[str]:
    """Layouts of which the same is told but for its numbers are one sentence, in the words of the first."""
    told = list[tuple[str, str, str]]()
    for verdict, word in ((SKIPPED, "refused in {}: {}"), (FAILED, "not run in {}: {}")):
        for run in _having(report, verdict):
            words = run.skipped or (run.error if isinstance(run.error, str) else "")
            told.append((word, run.layout, words))
    copied = "the wrapper copied {1} in {0}, so the kernels never saw those strides"
    told += ((copied, run.layout, ", ".join(run.copied)) for run in report.runs if run.copied)
    alike: dict[tuple[str, str], tuple[list[str], str]] = {}
    for sentence, layout, words in told:
        alike.setdefault((sentence, re.sub(r"\d+", "0", words)), ([], words))[0].append(layout)
    for (sentence, _), (layouts, words) in alike.items():
        yield sentence.format(_named(layouts), words)
    if report.warnings:
        yield COUNTED
    yield from report.notes
    count, twice = len(report.runs), sum(_tried_as(run).thorough for run in report.runs)
    also = " and" if twice == count else f", {twice:,} of them also"
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    yield f"tried {plural(count, 'layout')} in {seconds}, each in guard bands of NaN{also} of large numbers"


def _named(titles: Iterable[str]) -> str:
    """The first few; the matrix shows them all."""
    names = list(map(quoted, titles))
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1:,} more"
