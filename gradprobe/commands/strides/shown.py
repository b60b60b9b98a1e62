"""A survey of layouts for people: the verdict, the place, the reason, then the matrix of tensors and layouts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.text import Text

from ...model.assignment import LAYOUTS
from ...model.memory import GUARD, OUTSIDE, MemoryFinding, worst_first
from ...model.report import MATCH, MISMATCH, SKIPPED, Report
from ...model.severity import COUNTED
from ...model.spans import plural
from ...render.console import folded, headed, window
from ...render.terminal import rendered, terminal
from ...render.text import ASCII, CAUTION, UTF8, Marks, stray_line
from .culprits import Hazard
from .reported import survey_of
from .survey import Survey
from .trials import BITS, CONTIGUOUS, PROGRAM, Result

_ROW, _CELL = 8, 9
# Findings that are printed; the others are in the JSON.
_MOST = 4
# Layouts that are named in one sentence.
_NAMED = 4
_STYLES = {MATCH: "green", MISMATCH: "bold red", SKIPPED: CAUTION, "error": f"bold {CAUTION}"}
_WARNING, _WARNED = CAUTION, "!"


def survey_lines(report: Report) -> list[Text]:
    """A survey's report as lines; where no layout was tried, as those of any other."""
    if report.strides is None or not any(run.tried for run in report.runs):
        return rendered(report)
    on = terminal()
    return render_survey(survey_of(report), on.columns, utf8=on.utf8)


def render_survey(found: Survey, width: int, *, utf8: bool = True) -> list[Text]:
    """The survey as lines; the matrix fits 80 columns, sentences are folded to `width`."""
    marks = UTF8 if utf8 else ASCII
    lines = [*_verdict(found, width)]
    if found.wrong:
        lines += _place(found, found.wrong[0], width)
    lines += [line for sentence in _reasons(found) for line in folded(sentence, width)]
    lines += [line for hazard in found.warnings for line in _warning(hazard, width)]
    lines += [Text(), *_matrix(found, marks), Text(), *_programs(found, marks, width)]
    lines += [line for sentence in _sentences(found) for line in folded(sentence, width)]
    return [*lines, Text(f"  again: {found.repro_command}")]


def _verdict(found: Survey, width: int) -> Iterator[Text]:
    target = found.plan.report.target.name
    wrong, (failed, refused) = len(found.wrong), (len(found.having(verdict)) for verdict in ("error", SKIPPED))
    tried = plural(len(found.results), "layout")
    if wrong:
        contiguous = found.results[0] in found.wrong
        words = f"{target}: wrong in {wrong:,} of {tried}, {'also' if contiguous else 'right'} when contiguous"
        yield from headed("MISMATCH", _STYLES[MISMATCH], words, width)
    elif failed:
        yield from headed("NOT RUN", _STYLES["error"], f"{target}: {failed:,} of {tried} could not be run", width)
    else:
        exact = sum(result.how == BITS for result in found.results)
        words = f"{target}: right in {plural(len(found.having(MATCH)), 'layout')}, {exact:,} of them bit for bit as "
        words += f"when contiguous ({found.plan.precision})" + (f"; {refused:,} refused" if refused else "")
        warned = f", {plural(len(found.warnings), 'warning')}" if found.warnings else ""
        yield from headed(f"MATCH{warned}", "bold green", words, width)


def _place(found: Survey, result: Result, width: int) -> Iterator[Text]:
    yield Text(result.line or stray_line(result.memory[0]), "bold")
    words = f": {result.blame}" if result.blame else ""
    yield from folded(f"with {result.trial.title}{words}", width)
    if result.first is not None:
        yield from window(result.first, width)


def _reasons(found: Survey) -> Iterator[str]:
    yield from (culprit.words for culprit in found.culprits)
    memory = _telling(found.wrong)
    yield from (f"with {layout}: {memory_finding.sentence}" for layout, memory_finding in memory[:_MOST])
    if len(memory) > _MOST:
        yield f"and {plural(len(memory) - _MOST, 'finding')} more about memory, none worse, in --json FILE"


def _warning(hazard: Hazard, width: int) -> Iterator[Text]:
    """What is told and does not count, and the first that was seen of it: a line, or what came out wrong."""
    warned, first = hazard.warned, hazard.results[0]
    yield from headed("WARNING", _WARNING, f"{warned.words} ({_named(list(warned.layouts))})", width)
    memory = _telling([first])
    seen = filter(None, (first.words, memory[0][1].sentence if memory else first.blame))
    yield from folded(f"with {first.trial.title}: {'; '.join(seen)}", width)


def _telling(wrong: Sequence[Result]) -> list[tuple[str, MemoryFinding]]:
    """Each finding once with the simplest layout that shows it, the worst first; a line says what it explains."""
    layouts: dict[object, str] = {}
    first: dict[object, MemoryFinding] = {}
    for result in wrong:
        for memory_finding in result.memory:
            key = (memory_finding.kind, memory_finding.tensor.lower(), memory_finding.file, memory_finding.line)
            layouts.setdefault(key, result.trial.title)
            first.setdefault(key, memory_finding)
    explained = {memory_finding.tensor.lower() for memory_finding in first.values() if memory_finding.kind == OUTSIDE}
    kept = {
        id(memory_finding): layouts[key] for key, memory_finding in first.items()
        if memory_finding.kind != GUARD or memory_finding.tensor.lower() not in explained
    }  # fmt: skip
    return [
        (kept[id(memory_finding)], memory_finding)
        for memory_finding in worst_first(first.values())
        if id(memory_finding) in kept
    ]


def _matrix(found: Survey, marks: Marks) -> Iterator[Text]:
    columns = [layout for layout in LAYOUTS if layout != CONTIGUOUS]
    cells = {(result.trial.row, result.trial.layout): result for result in found.results if result.trial.row}
    rows = list(dict.fromkeys(row for row, _ in cells if row != "all"))
    yield Text("  one tensor in each layout, the others contiguous; then all at once", "dim")
    for part in (0, 1):
        heads = [layout.partition("-")[::2][part] for layout in columns]
        heads = [f"-{head}" if part and head else head for head in heads]
        yield Text((" " * _ROW + "".join(f"{head:>{_CELL}}" for head in heads)).rstrip(), "dim")
    for row in (*rows, "all"):
        parts = [_cell(cells.get((row, layout)), marks) for layout in columns]
        line = Text.assemble(f"  {row:<{_ROW - 2}}", *parts)
        line.rstrip()
        yield line
    yield Text(f"  {_legend(found, marks)}", "dim")


def _sign(result: Result, marks: Marks) -> str:
    if result.verdict == MATCH:
        return "=" if result.how == BITS else marks.about
    if result.is_warning:
        return _WARNED
    return {MISMATCH: marks.mismatch, SKIPPED: "-"}.get(result.verdict, "crash")


def _cell(result: Result | None, marks: Marks) -> tuple[str, str]:
    if result is None:
        return " " * _CELL, ""
    return f"{_sign(result, marks):>{_CELL}}", _WARNING if result.is_warning else _STYLES[result.verdict]


def _legend(found: Survey, marks: Marks) -> str:
    meanings = {
        "=": "right, bit for bit",
        marks.about: "right, other bits",
        marks.mismatch: "wrong",
        _WARNED: "wrong, a warning",
        "-": "refused",
        "crash": "not run",
    }
    seen = {_sign(result, marks) for result in found.results}
    return "   ".join(f"{sign} {words}" for sign, words in meanings.items() if sign in seen)


def _programs(found: Survey, marks: Marks, width: int) -> Iterator[Text]:
    programs = [result for result in found.results if result.trial.kind == PROGRAM]
    if programs:
        yield Text("  as programs lay them", "dim")
    for result in programs:
        sign = _sign(result, marks)
        yield Text.assemble("  ", (f"{sign:>5}", _STYLES[result.verdict]), f"  {result.trial.title}")
    if programs:
        yield Text()


def _sentences(found: Survey) -> Iterator[str]:
    for verdict, word in ((SKIPPED, "refused"), ("error", "not run")):
        for words, titles in _by_words(found.having(verdict)).items():
            yield f"{word} in {_named(titles)}: {words}"
    for names, titles in _copies(found).items():
        yield f"{names} reached the kernels as copies in {_named(titles)}: strides end in the wrapper there"
    if found.warnings:
        yield COUNTED
    yield from found.plan.report.notes
    counts = plural(len(found.results), "layout")
    yield f"tried {counts} in {found.seconds.get('total', 0.0):.1f} s, {_bands(found)}"


def _named(titles: list[str]) -> str:
    """The first few, in quotes where a title has a comma of its own; the matrix shows them all."""
    names = [f'"{title}"' if "," in title else title for title in titles]
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1:,} more"


def _bands(found: Survey) -> str:
    twice = sum(result.trial.thorough for result in found.results)
    also = " and" if twice == len(found.results) else f", {twice:,} of them also"
    return f"each in guard bands of NaN{also} of large numbers"


def _by_words(results: Sequence[Result]) -> dict[str, list[str]]:
    """The trials that say the same, numbers aside, under the words of the first."""
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for result in results:
        words = first.setdefault(re.sub(r"\d+", "0", result.words), result.words)
        found.setdefault(words, []).append(result.trial.title)
    return found


def _copies(found: Survey) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for result in found.results:
        if result.copied:
            groups.setdefault(", ".join(result.copied), []).append(result.trial.title)
    return groups
