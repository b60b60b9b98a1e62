"""A report on one screen, or with `--details` in full."""

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..model.layout_run import FAILED, MATCH
from ..model.number import listed, plural, ratio
from ..model.report import Report, Source
from . import console, tables
from .comparison import against
from .notation import BAD, CAUTION, GOOD, blame, element_line, group
from .notes import all_notes, findings, limits
from .reasons import cause_in_short, edit_in_short, reasons, second_cause
from .rows import (
    MOST,
    MOST_OF_A_MATCH,
    CommandLine,
    ReportBlock,
    Section,
    TextLine,
    Title,
    Words,
    fitted,
    folded,
    lines_in,
    rows_of,
    sentences,
)
from .source_places import base_of
from .terminal import Terminal, terminal

Part = tuple[Iterable[ReportBlock], int | None, str]
"""Blocks, how many of their lines stay (None: all), and what a line is called."""


def rendered(report: Report, on: Terminal | None = None) -> list[Text]:
    on = on or terminal()
    if report.close_up is not None:
        return _close_up(report, on)
    is_failed = report.verdict == FAILED or not report.measured
    if on.details and not is_failed or report.audit is not None:
        return lines_in(all_of(report, on.columns), on.columns)
    return _failed(report, on) if is_failed else _check(report, on)


def core(report: Report, width: int) -> list[Text]:
    first = TextLine(Text(console.first_line(report), "bold"))
    lines = lines_in([_verdict(report, width), first, *cause_in_short(report, width)], width)
    lines += Section(lines_in(edit_in_short(report), width), 4).cut(5, width).lines
    return [*lines, *CommandLine(report.reproduce).lines(width)]


def _closed(
    report: Report, on: Terminal, parts: Iterable[Part], further: Sequence[str] = (), *, is_wrong: bool, kept: int = 1
) -> list[Text]:  # fmt: skip
    """Parts, which make room for `kept` of the further sentences, then as many more as fit."""
    width, again = on.columns, list[Text]()
    most = (MOST if is_wrong else MOST_OF_A_MATCH) - 1
    if report.close_up is not None:
        most -= 2
    elif is_wrong and report.reproduce:
        again += CommandLine(report.reproduce).lines(width)
        most -= rows_of(again, width)
    notes = [folded(sentence, width, rows=2) for sentence in further]
    sections = [Section(lines_in(blocks, width), least, noun) for blocks, least, noun in parts]
    lines = fitted(sections, most - sum(map(len, notes[:kept])), width)
    room = most - rows_of(lines, width)
    while notes and len(notes[0]) <= room:
        room -= len(notes[0])
        lines += notes.pop(0)
    more = on.rest or ("the same with --details" if report.reproduce else "")
    if notes:
        more = f"{more} ({plural(len(notes), 'note')})".lstrip()
    return [*lines, *again, *([Text(f"  more: {more}", "dim")] if more else [])]


def _check(report: Report, on: Terminal) -> list[Text]:
    width, run, notes = on.columns, report.shown, findings(report)
    beside = list(against(report) if report.against else ())
    if report.failing:
        first = TextLine(Text(console.first_line(report), "bold"))
        beyond = Words(console.beyond_the_case(report), rows=2)
        where = Words("; ".join(console.whereabouts(report)), rows=2)
        parts: list[Part] = [
            ([_verdict(report, width), beyond, first], None, ""),
            ([where], 1, ""),
            ([*beside, *cause_in_short(report, width)], None, ""),
            (edit_in_short(report), 4, "line"),
            ([tables.HeadTable(report, run)] if run.compares else [], 2, "row"),
            ([tables.LEGEND] if run.first_mismatch else [], 0, ""),
            (second_cause(report, width), None, ""),
        ]
        return _closed(report, on, parts, notes, is_wrong=True)
    backend, device = report.target.backend, report.environment.get("device")
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    ran = f"{console.receipt(report)}; ran {backend} on {device} in {seconds}"
    verdict = Words(console.verdict_words(report), "MATCH", GOOD, rows=2)
    parts = [
        ([verdict, *beside, *_worst(report)], None, ""),
        ([Words(console.sources(run), rows=2), Words(ran, rows=3)], 0, ""),
        ([Words(console.beyond_the_case(report), rows=4)], 3, "line"),
    ]
    kept = max(1, len(limits(report)))
    return _closed(report, on, parts, notes, is_wrong=False, kept=kept)


def _worst(report: Report) -> Iterator[Words]:
    found = [(one, run.layout) for run in report.measured for one in run.compares]
    if found:
        worst, layout = max(found, key=lambda pair: pair[0].ratio)
        where = f"in {worst.title} ({layout})"
        yield Words(f"the worst error is {ratio(worst.ratio)} of what is allowed, {where}")


def _verdict(report: Report, width: int) -> Words:
    run, words = report.failing, console.verdict_words(report)
    assert run is not None
    verdict = Words(words, "MISMATCH", BAD, hangs=True)
    if len(verdict.lines(width)) <= 2:
        return verdict
    own = blame(run, inherits=False) if run.has_wrong_elements else words
    return Words(f"{own} ({run.layout})", "MISMATCH", BAD, rows=2, hangs=True)


def _failed(report: Report, on: Terminal) -> list[Text]:
    if not report.runs:
        return []
    width, again = on.columns, CommandLine(report.reproduce).lines(on.columns)
    words = report.error.message if report.error else "not every layout could be run"
    error = Words(words, "ERROR", f"bold {CAUTION}", rows=2)
    beyond = Words(console.beyond_the_case(report) if report.beyond else "")
    head = lines_in([beyond] if on.is_said else [error, beyond], width)
    layouts = Section(lines_in(console.layouts_of(report), width), 3)
    if not on.details:
        layouts = layouts.cut(MOST - rows_of([*head, *again], width), width)
    return [*head, *layouts.lines, *again]


def _close_up(report: Report, on: Terminal) -> list[Text]:
    view, width = report.close_up, on.columns
    assert view is not None
    is_wrong = view.mismatched > 0
    if on.details:
        why = reasons(report) if is_wrong else ()
        return lines_in([*tables.close_up(view, width), *why], width)
    title, *tiles, meanings = tables.close_up_map(view, width)
    parts: list[Part] = [
        ([tables.close_up_head(view)], None, ""),
        ([title, *tiles], 3, "row"),
        ([meanings], None, ""),
        (tables.close_up_rows(view), 3 if is_wrong else 2, "row"),
    ]
    if is_wrong:
        numbers = tables.numbers_around(view.element, width, one_row=True)
        parts.append(([*numbers, *cause_in_short(report, width)], None, ""))
    return _closed(report, on, parts, is_wrong=is_wrong)


def all_of(report: Report, width: int) -> Iterator[ReportBlock]:
    if report.audit is not None:
        yield from _all_of_audit(report)
    elif report.measured:
        yield from _all_of_check(report, width)
    else:
        yield from reasons(report)
        yield from console.layouts_of(report)
    if report.reproduce:
        yield CommandLine(report.reproduce)


def _all_of_check(report: Report, width: int) -> Iterator[ReportBlock]:
    run = report.shown
    first = run.first_mismatch
    yield from console.verdict_of(report)
    yield from against(report) if report.against else ()
    if report.failing:
        yield TextLine(Text(console.first_line(report), "bold"))
        yield Words("; ".join(console.whereabouts(report)), "", "dim")
        # Beside the cause one row of numbers is enough.
        yield from tables.numbers_around(first, width, one_row=bool(report.causes))
        yield from reasons(report)
    if run.compares:
        yield Title("Every head")
        yield tables.HeadTable(report, run, each=True)
        yield from [tables.LEGEND] if first else []
        yield Words(console.sources(run), "", "dim")
    yield Title("Layouts")
    yield from console.layouts_of(report)
    yield from sentences((*all_notes(report), console.receipt(report)))
    target, base = report.target, base_of(report)
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    device = report.environment.get("device")
    yield Words(f"ran {target.backend} on {device}; seconds: {seconds}")
    own = Source(name=target.function, file=target.file, line=target.line, sha256=target.sha256)
    sources = group(target.kernels or (own,), lambda each: (each.file, each.sha256[:12]))
    for (file, digest), kernels in sources.items():
        names = " ".join(f"{kernel.name}:{kernel.line}" for kernel in kernels)
        yield Words(f"{base.short(file)} sha256 {digest}: {names}", "", "dim")


def _all_of_audit(report: Report) -> Iterator[ReportBlock]:
    audit, target = report.audit, report.target
    assert audit is not None
    verdict, style, words = "MISMATCH", BAD, "is wrong"
    if report.verdict == MATCH:
        verdict, style = "MATCH", GOOD
        words = f"is right: every element in {plural(len(report.runs), 'case')}, to float32"
    elif report.diagnoses and (where := report.diagnoses[0].where):
        words += f" from line {where[0].line} on: {report.diagnoses[0].summary}"
    yield Words(f"{target.name} {words}", verdict, style, hangs=True)
    if report.first_mismatch is not None:
        yield TextLine(Text(element_line(report.first_mismatch), "bold"))
    yield from reasons(report) if report.verdict != MATCH else ()
    runs_by, told = group(report.runs, lambda run: run.verdict == MATCH), list[str]()
    for is_right, runs in sorted(runs_by.items()):
        cases = ", ".join(dict.fromkeys(run.layout.rpartition(" seed=")[0] for run in runs))
        told.append(
            f"right in {cases}" if is_right else f"{listed(audit.wrong)} wrong in {cases}"
        )
    where_from = base_of(report).short(target.file)
    ran = f"ran {target.function} of {where_from}, sha256 {target.sha256[:12]}"
    yield from sentences(("; ".join(told), f"called with {'; '.join(audit.taken)}", ran))
