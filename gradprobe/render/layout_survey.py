"""A survey of layouts for people: the verdict, the place, the reason, then the matrix of tensors and layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..model.assignment import LAYOUTS
from ..model.layout_run import (
    ALONE,
    BITS,
    FAILED,
    MATCH,
    MISMATCH,
    PROGRAM,
    SKIPPED,
    TOGETHER,
    Run,
    SurveyedLayout,
)
from ..model.memory_finding import (
    COUNTED,
    GUARD,
    OUTSIDE,
    WARNING,
    MemoryFinding,
    WarningNote,
    worst_first,
)
from ..model.number import plural
from ..model.report import Report
from .notation import CAUTION, Signs, blame, greppable, quoted, stray_line

_ROW, _CELL = 8, 9
# Findings that are printed; the others are in the JSON.
_MOST = 4
# Layouts that are named in one sentence.
_NAMED = 4
_STYLES = {MATCH: "green", MISMATCH: "bold red", SKIPPED: CAUTION, FAILED: f"bold {CAUTION}"}
_WARNING, _WARNED = CAUTION, "!"
BLANK = "blank:"
"""What a legend calls a cell in which nothing stands."""


def tried_as(run: Run) -> SurveyedLayout:
    assert run.tried is not None
    return run.tried


def memory_in(report: Report, run: Run) -> list[MemoryFinding]:
    """What was seen in one layout."""
    return [finding for finding in report.memory if finding.layout == run.layout]


def wrong_layouts(report: Report) -> list[Run]:
    """The wrong layouts: the contiguous one first, then those with a first mismatch, then the simplest.

    One that ended its process is wrong where it is known what its kernels did to memory.
    """

    def order(run: Run) -> tuple[bool, bool, int]:
        has_line = run.has_wrong_elements or bool(run.broken)
        return (
            run.layout != LAYOUTS[0],
            not has_line,
            (ALONE, PROGRAM, TOGETHER).index(tried_as(run).kind),
        )

    wrong = (run for run in report.runs if run.verdict == MISMATCH or memory_in(report, run))
    return sorted((run for run in wrong if run.severity != WARNING), key=order)


def _having(report: Report, verdict: str) -> list[Run]:
    """The layouts of one verdict that are no warnings."""
    return [run for run in report.runs if run.verdict == verdict and run.severity != WARNING]


def verdict_of(report: Report) -> tuple[str, str, str]:
    """The verdict, its style, and the sentence beside it."""
    wrong = wrong_layouts(report)
    failed, refused = (len(_having(report, verdict)) for verdict in (FAILED, SKIPPED))
    target, tried = report.target.name, plural(len(report.runs), "layout")
    if wrong:
        contiguous = "also" if report.runs[0] in wrong else "right"
        words = f"{target}: wrong in {len(wrong):,} of {tried}, {contiguous} when contiguous"
        return "MISMATCH", _STYLES[MISMATCH], words
    if failed:
        return "NOT RUN", _STYLES[FAILED], f"{target}: {failed:,} of {tried} could not be run"
    exact = sum(run.how == BITS for run in report.runs)
    words = f"{target}: right in {plural(len(_having(report, MATCH)), 'layout')}, {exact:,} of them bit for bit as "
    words += f"when contiguous ({report.runs[0].precision})" + (
        f"; {refused:,} refused" if refused else ""
    )
    warned = f", {plural(len(report.warnings), 'warning')}" if report.warnings else ""
    return f"MATCH{warned}", "bold green", words


def blame_in(run: Run) -> str:
    """What is wrong in a layout; "" where only memory was touched wrongly."""
    return blame(run) if run.has_wrong_elements or run.broken else ""


def words_of(run: Run) -> str:
    """Why it was refused, or could not be run."""
    return run.skipped or (run.error if isinstance(run.error, str) else "")


def line_of(report: Report, run: Run) -> str:
    """The greppable line of a wrong layout."""
    return greppable(run) if blame_in(run) else stray_line(memory_in(report, run)[0])


def culprits_of(report: Report) -> list[str]:
    """What the layouts that fail have in common: `wrong when do.stride(1) != o.stride(1)`."""
    return [culprit.words for culprit in (report.strides.culprits if report.strides else ())]


def memory_told(report: Report, wrong: Sequence[Run]) -> Iterator[str]:
    """What was seen of memory in wrong layouts, the worst first; of much the first few."""
    memory = _telling(report, wrong)
    yield from (f"with {finding.layout}: {finding.sentence}" for finding in memory[:_MOST])
    if len(memory) > _MOST:
        yield f"and {plural(len(memory) - _MOST, 'more finding')} about memory, none worse: --json FILE has them"


def warning_told(report: Report, warned: WarningNote) -> tuple[str, str]:
    """A warning with the layouts that show it, and what was seen in the first of them."""
    first = next(run for run in report.runs if run.layout in warned.layouts)
    memory = _telling(report, [first])
    seen = filter(None, (words_of(first), memory[0].sentence if memory else blame_in(first)))
    return f"{warned.words} ({_named(warned.layouts)})", f"with {first.layout}: {'; '.join(seen)}"


def _telling(report: Report, wrong: Sequence[Run]) -> list[MemoryFinding]:
    """Each finding once with the simplest layout that shows it, the worst first; a line says what it explains."""
    first: dict[object, MemoryFinding] = {}
    for finding in (finding for run in wrong for finding in memory_in(report, run)):
        first.setdefault(
            (finding.kind, finding.tensor.lower(), finding.file, finding.line), finding
        )
    explained = {finding.tensor.lower() for finding in first.values() if finding.kind == OUTSIDE}
    return worst_first(
        finding
        for finding in first.values()
        if finding.kind != GUARD or finding.tensor.lower() not in explained
    )


def cells_of(report: Report) -> dict[str, list[Run | None]]:
    """By tensor, and "all" last, the run of each layout but the contiguous one; None where none was made."""
    at = {
        (tried_as(run).row, tried_as(run).layout): run for run in report.runs if tried_as(run).row
    }
    rows = (*dict.fromkeys(row for row, _ in at if row != "all"), "all")
    return {row: [at.get((row, layout)) for layout in LAYOUTS[1:]] for row in rows}


def matrix_lines(report: Report, marks: Signs) -> Iterator[Text]:
    yield Text("  one tensor in each layout, the others contiguous; then all at once", "dim")
    for part in (0, 1):
        heads = [layout.partition("-")[::2][part] for layout in LAYOUTS[1:]]
        heads = [f"-{head}" if part and head else head for head in heads]
        yield Text((" " * _ROW + "".join(f"{head:>{_CELL}}" for head in heads)).rstrip(), "dim")
    for row, runs in cells_of(report).items():
        line = Text.assemble(f"  {row:<{_ROW - 2}}", *(cell(run, marks) for run in runs))
        line.rstrip()
        yield line
    yield Text(
        "  " + "   ".join(f"{sign} {words}" for sign, words in legend(report, marks).items()),
        "dim",
    )


def legend(report: Report, marks: Signs) -> dict[str, str]:
    """What the signs mean that stand in the matrix."""
    meanings = {
        "=": "right, bit for bit",
        marks.about: "right, other bits",
        marks.mismatch: "wrong",
    }
    meanings |= {_WARNED: "wrong, a warning", "-": "refused", "crash": "not run"}
    meanings |= {BLANK: "not tried"}
    seen = {sign_of(run, marks) for run in report.runs}
    if any(None in runs for runs in cells_of(report).values()):
        seen.add(BLANK)
    return {sign: words for sign, words in meanings.items() if sign in seen}


def sign_of(run: Run, marks: Signs) -> str:
    if run.verdict == MATCH:
        return "=" if run.how == BITS else marks.about
    if run.severity == WARNING:
        return _WARNED
    return {MISMATCH: marks.mismatch, SKIPPED: "-"}.get(run.verdict, "crash")


def cell(run: Run | None, marks: Signs) -> tuple[str, str]:
    """A cell of the matrix, and its style."""
    if run is None:
        return " " * _CELL, ""
    return f"{sign_of(run, marks):>{_CELL}}", _WARNING if run.severity == WARNING else _STYLES[
        run.verdict
    ]


def program_lines(report: Report, marks: Signs) -> list[Text]:
    programs = [run for run in report.runs if tried_as(run).kind == PROGRAM]
    signs = [(f"{sign_of(run, marks):>5}", _STYLES[run.verdict]) for run in programs]
    lines = [
        Text.assemble("  ", sign, f"  {run.layout}")
        for sign, run in zip(signs, programs, strict=True)
    ]
    return [Text("  as programs lay them", "dim"), *lines, Text()] if lines else []


def sentences_of(report: Report) -> Iterator[str]:
    for verdict, word in ((SKIPPED, "refused"), (FAILED, "not run")):
        # What is the same but for its numbers is told once, in the words of the first.
        first: dict[str, str] = {}
        runs = {run.layout: words_of(run) for run in _having(report, verdict)}
        told = (
            (first.setdefault(re.sub(r"\d+", "0", words), words), layout)
            for layout, words in runs.items()
        )
        for words, titles in _grouped(told):
            yield f"{word} in {_named(titles)}: {words}"
    for names, titles in _grouped(
        (", ".join(run.copied), run.layout) for run in report.runs if run.copied
    ):
        yield f"the wrapper copied {names} in {_named(titles)}, so the kernels never saw those strides"
    if report.warnings:
        yield COUNTED
    yield from report.notes
    count, twice = len(report.runs), sum(tried_as(run).thorough for run in report.runs)
    also = " and" if twice == count else f", {twice:,} of them also"
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    yield f"tried {plural(count, 'layout')} in {seconds}, each in guard bands of NaN{also} of large numbers"


def _grouped(told: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """The layouts of which the same words are told."""
    found: dict[str, list[str]] = {}
    for words, layout in told:
        found.setdefault(words, []).append(layout)
    return found.items()


def _named(titles: Sequence[str]) -> str:
    """The first few; the matrix shows them all."""
    names = list(map(quoted, titles))
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1:,} more"
