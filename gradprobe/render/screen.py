"""A report on one screen: the verdict, the place, the cause with its line, the edit, and what else must be known.

`--details`, audits and pages show all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..model.layout_run import FAILED, MATCH, Run
from ..model.number import listed, plural, ratio
from ..model.report import Report, Source
from . import console, tables
from . import layout_survey as survey
from .comparison import against
from .notation import ASCII, BAD, CAUTION, GOOD, UTF8, Signs, blame, element_line, group
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


def rendered(report: Report, on: Terminal | None = None) -> list[Text]:
    """The report on one screen; where all of it is asked for, and of an audit, in full."""
    on = on or terminal()
    is_survey = any(run.tried for run in report.runs)
    is_failed = report.verdict == FAILED or not report.measured
    if report.close_up is not None and not is_survey:
        return _close_up(report, on)
    if is_failed and not is_survey and report.audit is None:
        return _failed(report, on)
    if on.details or report.audit is not None:
        return lines_in(all_of(report, on.columns, marks_of(on)), on.columns)
    return _survey(report, on) if is_survey else _check(report, on)


def marks_of(on: Terminal) -> Signs:
    return UTF8 if on.utf8 else ASCII


def core(report: Report, width: int) -> list[Text]:
    """The verdict, the place, the cause with its line, the edit and the command that repeats it."""
    lines = [*_verdict(report, width).lines(width), Text(console.first_line(report), "bold")]
    lines += lines_in(cause_in_short(report, width), width)
    lines += _section(edit_in_short(report), width, 4).cut(5, width).lines
    return [*lines, *CommandLine(report.reproduce).lines(width)]


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
    is_wrong: bool,
    kept: int = 1,
) -> list[Text]:
    """Sections, as many sentences below them as there is room for, and the commands that go on.

    Args:
        kept: of how many further sentences the sections make room.
    """
    width, again = on.columns, list[Text]()
    most = MOST if is_wrong else MOST_OF_A_MATCH
    if report.close_up is not None:
        most -= 2  # `diff` says which check it repeats
    elif is_wrong and report.reproduce:
        again += CommandLine(report.reproduce).lines(width)
    most -= rows_of(again, width) + 1
    notes = [folded(sentence, width, rows=2) for sentence in further]
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
    width, run, signs = on.columns, report.shown, marks_of(on)
    notes = findings(report)
    if report.failing:
        heads = [tables.HeadTable(report, run, signs)] if run.compares else []
        beyond = Words(console.beyond_the_case(report), rows=2)
        first = TextLine(Text(console.first_line(report), "bold"))
        sections = [
            _section([_verdict(report, width), beyond, first], width),
            _section([Words("; ".join(console.whereabouts(report)), rows=2)], width, 1, ""),
            _section(against(report) if report.against else (), width),
            _section(cause_in_short(report, width), width),
            _section(edit_in_short(report), width, 4),
            _section(heads, width, 2, "row"),
            _section([tables.legend(signs)] if run.first_mismatch else [], width, 0, ""),
            _section(second_cause(report, width), width),
        ]
        return _closed(report, on, sections, notes, is_wrong=True)
    backend, device = report.target.backend, report.environment.get("device")
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    ran = f"{console.receipt(report)}; ran {backend} on {device} in {seconds}"
    verdict = Words(console.verdict_words(report), "MATCH", GOOD, rows=2)
    made = [Words(console.sources(run), rows=2), Words(ran, rows=3)]
    beside = against(report) if report.against else ()
    sections = [
        _section([verdict, *beside, *_worst(report)], width),
        _section(made, width, 0, ""),
        _section([Words(console.beyond_the_case(report), rows=4)], width, 3),
    ]
    kept = max(1, len(limits(report)))
    return _closed(report, on, sections, notes, is_wrong=False, kept=kept)


def _worst(report: Report) -> Iterator[Words]:
    runs = [
        (one.ratio, one.title, run.layout) for run in report.measured for one in run.compares
    ]
    if runs:
        times, title, layout = max(runs)
        words = f"{ratio(times)} of what is allowed, in {title} ({layout})"
        yield Words(f"the worst error is {words}")


def _verdict(report: Report, width: int) -> Words:
    """With the target and with what only inherits, where that fits."""
    run, words = report.failing, console.verdict_words(report)
    assert run is not None
    verdict = Words(words, "MISMATCH", BAD, hangs=True)
    if len(verdict.lines(width)) <= 2:
        return verdict
    own = blame(run, inherits=False) if run.has_wrong_elements else words
    return Words(f"{own} ({run.layout})", "MISMATCH", BAD, rows=2, hangs=True)


def _failed(report: Report, on: Terminal) -> list[Text]:
    """What ended it, and the layouts before that; nothing where there is none: it is said elsewhere."""
    if report.error is None or not report.runs:
        return []
    width, again = on.columns, CommandLine(report.reproduce).lines(on.columns)
    error = Words(report.error.message, "ERROR", f"bold {CAUTION}", rows=2)
    beyond = Words(console.beyond_the_case(report) if report.beyond else "")
    head = lines_in([beyond] if on.is_said else [error, beyond], width)
    layouts = _section(console.layouts_of(report, marks_of(on)), width, 3)
    if not on.details:
        layouts = layouts.cut(MOST - rows_of([*head, *again], width), width)
    return [*head, *layouts.lines, *again]


def _close_up(report: Report, on: Terminal) -> list[Text]:
    """One intermediate close up: the map of its tiles, its worst rows, the numbers around an element."""
    view, width, signs = report.close_up, on.columns, marks_of(on).tiles
    assert view is not None
    is_wrong = view.mismatched > 0
    if on.details:
        why = reasons(report) if is_wrong else ()
        return lines_in([*tables.close_up(view, width, signs), *why], width)
    title, *tiles, meanings = tables.close_up_map(view, width, signs)
    sections = [
        _section([tables.close_up_head(view)], width),
        _section([title, *tiles], width, 3, "row"),
        _section([meanings], width),
        _section(tables.close_up_rows(view), width, 3 if is_wrong else 2, "row"),
    ]
    if is_wrong:
        sections.append(
            _section(tables.numbers_around(view.element, width, one_row=True), width)
        )
        sections.append(_section(cause_in_short(report, width), width))
    return _closed(report, on, sections, is_wrong=is_wrong)


def _survey(report: Report, on: Terminal) -> list[Text]:
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
    return _closed(report, on, sections, notes, is_wrong=bool(wrong))


def all_of(report: Report, width: int, signs: Signs) -> Iterator[ReportBlock]:
    if report.audit is not None:
        yield from _all_of_audit(report)
    elif any(run.tried for run in report.runs):
        yield from _all_of_survey(report, width, signs)
    elif report.measured:
        yield from _all_of_check(report, width, signs)
    else:
        yield from reasons(report)
        yield from console.layouts_of(report, signs)
    if report.reproduce:
        yield CommandLine(report.reproduce)


def _all_of_check(report: Report, width: int, signs: Signs) -> Iterator[ReportBlock]:
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
        yield tables.HeadTable(report, run, signs, each=True)
        yield from [tables.legend(signs)] if first else []
        yield Words(console.sources(run), "", "dim")
    yield Title("Layouts")
    yield from console.layouts_of(report, signs)
    yield from sentences((*all_notes(report), console.receipt(report)))
    target, base = report.target, base_of(report)
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    yield Words(
        f"ran {target.backend} on {report.environment.get('device')}; seconds: {seconds}"
    )
    own = Source(name=target.function, file=target.file, line=target.line, sha256=target.sha256)
    for (file, digest), kernels in group(
        target.kernels or (own,), lambda source: (source.file, source.sha256[:12])
    ).items():
        names = " ".join(f"{kernel.name}:{kernel.line}" for kernel in kernels)
        yield Words(f"{base.short(file)} sha256 {digest}: {names}", "", "dim")


def _all_of_survey(report: Report, width: int, signs: Signs) -> Iterator[ReportBlock]:
    wrong = survey.wrong_layouts(report)
    yield survey.verdict_of(report)
    if wrong:
        line, words = survey.place_of_run(report, wrong[0])
        yield TextLine(Text(line, "bold"))
        yield Words(words)
        yield from tables.numbers_around(wrong[0].first_mismatch, width)
        yield from reasons(report)
    yield from sentences((*survey.in_common(report), *survey.memory_told(report)))
    for words in survey.warning_words(report):
        yield Words(words, "WARNING", CAUTION, hangs=True)
    yield Title("Every layout")
    yield from survey.matrix(report, signs)
    yield Title("Besides")
    yield from sentences(survey.sentences_of(report))


def _all_of_audit(report: Report) -> Iterator[ReportBlock]:
    """The verdict of a reference, the first wrong formula with its line, then what is wrong where."""
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
    cases = group(report.runs, lambda run: run.verdict == MATCH)
    told = []
    if False in cases:
        told.append(f"{listed(audit.wrong)} wrong in {_drawn(cases[False])}")
    if True in cases:
        told.append(f"right in {_drawn(cases[True])}")
    where_from = base_of(report).short(target.file)
    ran = f"ran {target.function} of {where_from}, sha256 {target.sha256[:12]}"
    yield from sentences(("; ".join(told), f"called with {'; '.join(audit.taken)}", ran))


def _drawn(runs: Iterable[Run]) -> str:
    """`causal (seeds 0, 1, 2)`, with draws of one kind together."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        kind, _, seed = run.layout.rpartition(" seed=")
        kinds.setdefault(kind, []).append(seed)
    return ", ".join(f"{kind} (seeds {', '.join(seeds)})" for kind, seeds in kinds.items())
