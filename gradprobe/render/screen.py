"""A report on one screen: the verdict, the place, the cause with its line, the edit, and what else must be known.

`--details`, and audits, show all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..model.layout_run import FAILED
from ..model.number import plural, ratio
from ..model.report import Report
from . import layout_survey as survey
from .comparison import against
from .console import (
    beyond_the_case,
    first_line,
    headline,
    layouts_of,
    receipt,
    sources,
    verdict_words,
    whereabouts,
)
from .details import all_of, close_up_in_full
from .notation import ASCII, BAD, CAUTION, GOOD, UTF8, Signs, blame
from .notes import findings, limits, unseen
from .reasons import FACTS, cause_in_short, edit_in_short, second_cause
from .report_blocks import CommandLine, ReportBlock, TextLine, Words, lines_in, sentences
from .rows import MOST, MOST_OF_A_MATCH, Section, fitted, rows_of, short
from .tables import (
    HeadTable,
    close_up_head,
    close_up_map,
    close_up_rows,
    legend,
    numbers_around,
)
from .terminal import Terminal, terminal


def rendered(report: Report, on: Terminal | None = None) -> list[Text]:
    """The report on one screen; where all of it is asked for, and of an audit, in full."""
    on = on or terminal()
    if report.audit is not None:
        return lines_in(all_of(report, on.columns, marks_of(on)), on.columns)
    if any(run.tried for run in report.runs):
        return _in_full(report, on) if on.details else _survey(report, on)
    if report.close_up is not None:
        return _close_up(report, on)
    if report.verdict == FAILED or not report.measured:
        return _failed(report, on)
    if on.details:
        return _in_full(report, on)
    return _mismatch(report, on) if report.failing else _match(report, on)


def marks_of(on: Terminal) -> Signs:
    """The signs that a terminal takes."""
    return UTF8 if on.utf8 else ASCII


def core(report: Report, width: int) -> list[Text]:
    """The verdict, the place, the cause with its line, the edit and the command that repeats it."""
    edit = _section(edit_in_short(report), width, 4).cut(5, width)
    place = lines_in([_verdict(report, width), TextLine(Text(first_line(report), "bold"))], width)
    lines = [*place, *lines_in(cause_in_short(report, width), width)]
    return [*lines, *edit.lines, *CommandLine(report.reproduce).lines(width)]


def _section(
    blocks: Iterable[ReportBlock], width: int, least: int | None = None, noun: str = "line"
) -> Section:
    lines = lines_in(blocks, width)
    return Section(lines, None if least is None else min(least, len(lines)), noun)


def _closed(
    report: Report,
    on: Terminal,
    sections: Sequence[Section],
    further: Sequence[str] = (),
    *,
    most: int,
    left: int = 0,
    is_again: bool = True,
    kept: int = 1,
) -> list[Text]:
    """Sections, as many sentences below them as there is room for, and the commands that go on.

    Args:
        left: how many more notes there are.
        is_again: whether the command that repeats the check is told.
        kept: of how many further sentences the sections make room.
    """
    width = on.columns
    again = CommandLine(report.reproduce).lines(width) if is_again and report.reproduce else []
    closing, rows = rows_of(again, width) + 1, 2 if is_again or kept > 1 else 3
    notes = [short(sentence, width, rows) for sentence in further]
    lines = fitted(sections, most - closing - sum(map(len, notes[:kept])), width)
    room = most - closing - rows_of(lines, width)
    if notes:
        notes[0] = short(further[0], width, min(rows, max(1, room)))
    while notes and len(notes[0]) <= room:
        room -= len(notes[0])
        lines += notes.pop(0)
    left += len(notes)
    more = on.rest or ("the same with --details" if report.reproduce else "")
    if left:
        more = f"{more} ({plural(left, 'note')})" if more else plural(left, "note")
    return [*lines, *again, *([Text(f"  more: {more}", "dim")] if more else [])]


def _match(report: Report, on: Terminal) -> list[Text]:
    width, device = on.columns, report.environment.get("device")
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    ran = f"{receipt(report)}; ran {report.target.backend} on {device} in {seconds}"
    verdict = Words(verdict_words(report), "MATCH", GOOD, rows=2)
    made = [Words(sources(report.shown), rows=2), Words(ran, rows=3)]
    sections = [
        _section([verdict, *(against(report, report.against) if report.against else ())], width),
        _section(_worst(report), width),
        _section(made, width, 0, ""),
        _section([Words(beyond_the_case(report), rows=4)], width, 3),
    ]
    kept, left = max(1, len(limits(report))), unseen(report, FACTS)
    most = MOST_OF_A_MATCH
    return _closed(
        report, on, sections, findings(report), most=most, left=left, is_again=False, kept=kept
    )


def _worst(report: Report) -> Iterator[Words]:
    """The worst error of all layouts."""
    runs = [(run, one) for run in report.measured for one in run.compares]
    if runs:
        times, title, layout = max((one.ratio, one.title, run.layout) for run, one in runs)
        words = f"{ratio(times)} of what is allowed, in {title} ({layout})"
        yield Words(f"the worst error is {words}")


def _mismatch(report: Report, on: Terminal) -> list[Text]:
    width, run, signs = on.columns, report.shown, marks_of(on)
    beyond, first = Words(beyond_the_case(report), rows=2), Text(first_line(report), "bold")
    heads = [HeadTable(report, run, signs)] if run.compares else []
    sections = [
        _section([_verdict(report, width), beyond, TextLine(first)], width),
        _section([Words("; ".join(whereabouts(report)), rows=2)], width, 1, ""),
        _section(against(report, report.against) if report.against else (), width),
        _section(cause_in_short(report, width), width),
        _section(edit_in_short(report), width, 4),
        _section(heads, width, 2, "row"),
        _section([legend(signs)] if run.first_mismatch else [], width, 0, ""),
        _section(second_cause(report, width), width),
    ]
    return _closed(report, on, sections, findings(report), most=MOST, left=unseen(report, FACTS))


def _verdict(report: Report, width: int) -> Words:
    """With the target and with what only inherits, as far as that fits."""
    run = report.failing
    assert run is not None
    own = blame(run, inherits=False) if run.has_wrong_elements else verdict_words(report)
    target = f"{own} ({report.target.name}, {run.layout})"
    for words in (verdict_words(report), target, f"{own} ({run.layout})"):
        verdict = Words(words, "MISMATCH", BAD, hangs=True)
        if len(verdict.lines(width)) <= 2:
            return verdict
    return Words(own, "MISMATCH", BAD, rows=2)


def _failed(report: Report, on: Terminal) -> list[Text]:
    """What ended it, and the layouts before that; nothing where there is none: it is said elsewhere."""
    if report.error is None or not report.runs:
        return []
    width, again = on.columns, CommandLine(report.reproduce).lines(on.columns)
    error = Words(report.error.message, "ERROR", f"bold {CAUTION}", rows=2)
    beyond = Words(beyond_the_case(report) if report.beyond else "")
    head = lines_in([beyond] if on.is_said else [error, beyond], width)
    layouts = _section(layouts_of(report, marks_of(on)), width, 3)
    if not on.details:
        layouts = layouts.cut(MOST - rows_of([*head, *again], width), width)
    return [*head, *layouts.lines, *again]


def _in_full(report: Report, on: Terminal) -> list[Text]:
    """All that a check has to say; of more than a screen the verdict once more below."""
    lines = lines_in(all_of(report, on.columns, marks_of(on)), on.columns)
    is_tall = on.rows is not None and len(lines) >= on.rows and report.strides is None
    return [*lines, *(headline(report, on.columns) if is_tall else [])]


def _close_up(report: Report, on: Terminal) -> list[Text]:
    """One intermediate close up: the map of its tiles, its worst rows, the numbers around an element."""
    view, width, signs = report.close_up, on.columns, marks_of(on).tiles
    assert view is not None
    is_wrong = view.mismatched > 0
    if on.details:
        return lines_in(close_up_in_full(report, view, width, signs), width)
    title, *tiles, meanings = close_up_map(view, width, signs)
    sections = [
        _section([close_up_head(view)], width),
        _section([title, *tiles], width, 3, "row"),
        _section([meanings], width),
        _section(close_up_rows(view), width, 3 if is_wrong else 2, "row"),
    ]
    if is_wrong:
        sections.append(_section(numbers_around(view.element, width, one_row=True), width))
        sections.append(_section(cause_in_short(report, width), width))
    most = (MOST if is_wrong else MOST_OF_A_MATCH) - 2  # `diff` says which check it repeats
    return _closed(report, on, sections, most=most, is_again=False)


def _survey(report: Report, on: Terminal) -> list[Text]:
    """A survey of layouts, where words say what the matrix shows."""
    wrong, width = survey.wrong_layouts(report), on.columns
    sections = [_section([survey.verdict_of(report, rows=2)], width)]
    if wrong:
        line, words = survey.place_of_run(report, wrong[0])
        sections += [
            _section([TextLine(Text(line, "bold")), Words(words, rows=2)], width),
            _section(cause_in_short(report, width), width),
            _section(edit_in_short(report), width, 4),
            _section(sentences(survey.in_common(report), 2), width, 3),
            _section(second_cause(report, width), width),
        ]
    notes = list(survey.notes_in_short(report))
    most = MOST if wrong else MOST_OF_A_MATCH
    return _closed(report, on, sections, notes, most=most, is_again=bool(wrong))
