"""A survey of layouts for people: its words, and the matrix of tensors and layouts."""

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
from ..model.number import listed, plural
from ..model.report import Report
from .notation import BAD, CAUTION, GOOD, Signs, blame, greppable, quoted, stray_line
from .notes import in_short, target_warnings
from .report_blocks import CellGrid, ReportBlock, TextLine, Title, Words
from .rows import ALL

# Findings that are printed, the others are in the JSON; layouts that are named in one sentence.
_MOST = _NAMED = 4
_STYLES = {MATCH: "green", MISMATCH: BAD, SKIPPED: CAUTION, FAILED: f"bold {CAUTION}"}


def _tried_as(run: Run) -> SurveyedLayout:
    assert run.tried is not None
    return run.tried


def _memory_in(report: Report, run: Run) -> list[MemoryFinding]:
    """What was seen in one layout."""
    return [finding for finding in report.memory if finding.layout == run.layout]


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


def _having(report: Report, verdict: str) -> list[Run]:
    """The layouts of one verdict that are no warnings."""
    return [run for run in report.runs if run.verdict == verdict and run.severity != WARNING]


def verdict_of(report: Report, rows: int = ALL) -> Words:
    """The verdict, and the sentence beside it."""
    wrong, right = wrong_layouts(report), _having(report, MATCH)
    failed, refused = (_having(report, verdict) for verdict in (FAILED, SKIPPED))
    tried = plural(len(report.runs), "layout")
    if wrong:
        contiguous = "also" if report.runs[0] in wrong else "right"
        verdict, style = "MISMATCH", BAD
        words = f"wrong in {len(wrong):,} of {tried}, {contiguous} when contiguous"
    elif failed:
        verdict, style = "NOT RUN", _STYLES[FAILED]
        words = f"{len(failed):,} of {tried} could not be run"
    else:
        warned = f", {plural(len(report.warnings), 'warning')}" if report.warnings else ""
        verdict, style = f"MATCH{warned}", GOOD
        exact = sum(run.how == BITS for run in report.runs)
        words = f"right in {plural(len(right), 'layout')}, {exact:,} of them bit for bit as "
        words += f"when contiguous ({report.runs[0].precision})"
        words += f"; {len(refused):,} refused" if refused else ""
    return Words(f"{report.target.name}: {words}", verdict, style, rows, hangs=rows == ALL)


def _blame_in(run: Run) -> str:
    """What is wrong in a layout; "" where only memory was touched wrongly."""
    return blame(run) if run.has_wrong_elements or run.broken else ""


def _words_of(run: Run) -> str:
    """Why it was refused, or could not be run."""
    return run.skipped or (run.error if isinstance(run.error, str) else "")


def place_of_run(report: Report, run: Run) -> tuple[str, str]:
    """The greppable line of a wrong layout, and what is wrong there."""
    blamed = _blame_in(run)
    line = greppable(run) if blamed else stray_line(_memory_in(report, run)[0])
    return line, f"with {run.layout}" + (f": {blamed}" if blamed else "")


def culprits_of(report: Report) -> list[str]:
    """What the layouts that fail have in common: `wrong when do.stride(1) != o.stride(1)`."""
    return [culprit.words for culprit in (report.strides.culprits if report.strides else ())]


def tensors_of(report: Report) -> Iterator[str]:
    """In which layouts each tensor comes out wrong, tensors that are alike together; then those that are right."""
    wrong = {run.layout for run in wrong_layouts(report)}
    alike: dict[tuple[str, ...], list[str]] = {}
    for row, runs in _cells_of(report).items():
        failing = [run for run in runs if run is not None and run.layout in wrong]
        alike.setdefault(tuple(_tried_as(run).layout for run in failing), []).append(row)
    right = alike.pop((), [])
    for layouts, rows in alike.items():
        yield f"wrong with {listed(rows)} in {', '.join(layouts)}"
    if right:
        yield f"not wrong with {listed(right)} in any layout that was tried"


def memory_told(report: Report, wrong: Sequence[Run]) -> Iterator[str]:
    """What was seen of memory in wrong layouts, the worst first; of much the first few."""
    memory = _telling(report, wrong)
    yield from (f"with {finding.layout}: {finding.sentence}" for finding in memory[:_MOST])
    if len(memory) > _MOST:
        more = plural(len(memory) - _MOST, "more finding")
        yield f"and {more} about memory, none worse: --json FILE has them"


def warning_told(report: Report, warned: WarningNote) -> tuple[str, str]:
    """A warning with the layouts that show it, and what was seen in the first of them."""
    first = next(run for run in report.runs if run.layout in warned.layouts)
    memory = _telling(report, [first])
    seen = filter(None, (_words_of(first), memory[0].sentence if memory else _blame_in(first)))
    return f"{warned.words} ({_named(warned.layouts)})", f"with {first.layout}: {'; '.join(seen)}"


def notes_in_short(report: Report, wrong: Sequence[Run]) -> Iterator[str]:
    """What one screen tells besides, the most important first."""
    for warned in report.warnings:
        words, seen = warning_told(report, warned)
        yield from (f"WARNING  {words}", in_short(seen))
    causes = {cause.summary for cause in report.causes}
    yield from (in_short(words) for words in memory_told(report, wrong) if words not in causes)
    yield from (*sentences_of(report), *target_warnings(report))


def _telling(report: Report, wrong: Sequence[Run]) -> list[MemoryFinding]:
    """Each finding once with the simplest layout that shows it, the worst first; a line says what it explains."""
    first: dict[object, MemoryFinding] = {}
    for run in wrong:
        for one in _memory_in(report, run):
            first.setdefault((one.kind, one.tensor.lower(), one.file, one.line), one)
    explained = {one.tensor.lower() for one in first.values() if one.kind == OUTSIDE}
    return worst_first(
        one for one in first.values() if one.kind != GUARD or one.tensor.lower() not in explained
    )


def _cells_of(report: Report) -> dict[str, list[Run | None]]:
    """By tensor, and "all" last, the run of each layout but the contiguous one; None where none was made."""
    at = {(_tried_as(run).row, _tried_as(run).layout): run for run in report.runs}
    rows = (*dict.fromkeys(row for row, _ in at if row not in ("", "all")), "all")
    return {row: [at.get((row, layout)) for layout in LAYOUTS[1:]] for row in rows}


def matrix(report: Report, marks: Signs) -> Iterator[ReportBlock]:
    """A row a tensor, a column a layout, and what the signs mean that stand in it."""
    yield Words("one tensor in each layout, the others contiguous; then all at once", "", "dim")
    cells = _cells_of(report)
    rows: list[list[str | Text]] = [["", *(layout.replace("-", "\n-") for layout in LAYOUTS[1:])]]
    for row, runs in cells.items():
        rows.append([row, *(Text() if run is None else _sign(run, marks) for run in runs)])
    yield CellGrid(rows)
    meanings = {
        "=": "right, bit for bit",
        marks.about: "right, other bits",
        marks.mismatch: "wrong",
        "!": "wrong, a warning",
        "-": "refused",
        "crash": "not run",
        "blank:": "not tried",
    }
    seen = {_sign(run, marks).plain for run in report.runs}
    seen |= {"blank:"} if any(None in runs for runs in cells.values()) else set()
    signs = (f"{sign} {words}" for sign, words in meanings.items() if sign in seen)
    yield Words("   ".join(signs), "", "dim")


def _sign(run: Run, marks: Signs) -> Text:
    if run.severity == WARNING and run.verdict != MATCH:
        return Text("!", CAUTION)
    right = "=" if run.how == BITS else marks.about
    signs = {MATCH: right, MISMATCH: marks.mismatch, SKIPPED: "-"}
    return Text(signs.get(run.verdict, "crash"), _STYLES[run.verdict])


def programs(report: Report, marks: Signs) -> Iterator[ReportBlock]:
    """The layouts that programs are known to make."""
    found = [run for run in report.runs if _tried_as(run).kind == PROGRAM]
    if found:
        yield Title("Programs")
        yield TextLine(Text("  as programs lay them", "dim"))
    for run in found:
        sign = _sign(run, marks)
        yield TextLine(Text.assemble("  ", (f"{sign.plain:>5}", sign.style), f"  {run.layout}"))


def sentences_of(report: Report) -> Iterator[str]:
    for verdict, word in ((SKIPPED, "refused"), (FAILED, "not run")):
        runs = _having(report, verdict)
        for titles, words in _grouped((run.layout, _words_of(run)) for run in runs):
            yield f"{word} in {_named(titles)}: {words}"
    copied = [(run.layout, ", ".join(run.copied)) for run in report.runs if run.copied]
    for titles, names in _grouped(copied):
        yield f"the wrapper copied {names} in {_named(titles)}, so the kernels never saw those strides"
    if report.warnings:
        yield COUNTED
    yield from report.notes
    count, twice = len(report.runs), sum(_tried_as(run).thorough for run in report.runs)
    also = " and" if twice == count else f", {twice:,} of them also"
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    yield f"tried {plural(count, 'layout')} in {seconds}, each in guard bands of NaN{also} of large numbers"


def _grouped(told: Iterable[tuple[str, str]]) -> Iterator[tuple[list[str], str]]:
    """The layouts of which the same is told but for its numbers, and that in the words of the first."""
    found: dict[str, tuple[list[str], str]] = {}
    for layout, words in told:
        found.setdefault(re.sub(r"\d+", "0", words), ([], words))[0].append(layout)
    yield from found.values()


def _named(titles: Sequence[str]) -> str:
    """The first few; the matrix shows them all."""
    names = list(map(quoted, titles))
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1:,} more"
