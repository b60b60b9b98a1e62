"""A report on one screen: the verdict, the place, the cause with its line, the edit, and what else must be known.

Each section is a function of the report. `--details` has everything that is left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..model.layout_run import FAILED, MATCH, MISMATCH, Run
from ..model.number import listed, plural, ratio
from ..model.report import Report, Source
from .comparison import render_against
from .console import (
    beyond_the_case,
    first_line,
    headline,
    on_ranks,
    receipt,
    render_layouts,
    sources,
    verdict_lines,
    verdict_words,
    wrong_rows,
)
from .notation import (
    ASCII,
    BAD,
    CAUTION,
    GOOD,
    UTF8,
    Signs,
    blame,
    element_line,
    place_in_words,
    size_in_words,
)
from .notes import all_notes, findings, limits, unseen
from .reasons import FACTS, cause_lines, edit_lines, render_reasons, second_cause
from .rows import (
    MOST,
    MOST_OF_A_MATCH,
    Section,
    fitted,
    folded,
    headed,
    headed_in,
    rows_of,
    short,
)
from .source_places import base_of
from .tables import (
    close_up_head,
    close_up_lines,
    close_up_map,
    close_up_rows,
    head_table,
    legend,
    numbers_around,
)
from .terminal import Terminal, terminal


def rendered(report: Report, on: Terminal | None = None) -> list[Text]:
    """The report on one screen; where all of it is asked for, and of an audit, in full."""
    on = on or terminal()
    if report.audit is not None:
        return list(_audit(report, on.columns))
    if any(run.tried for run in report.runs):
        return _survey_in_full(report, on) if on.details else _survey(report, on)
    if report.close_up is not None:
        return _close_up(report, on)
    if report.verdict == FAILED or not report.measured:
        return _failed(report, on)
    if on.details:
        return list(_in_full(report, on))
    return _mismatch(report, on) if report.failing else _match(report, on)


def marks_of(on: Terminal) -> Signs:
    """The signs that a terminal takes."""
    return UTF8 if on.utf8 else ASCII


def core(report: Report, width: int) -> list[Text]:
    """The verdict, the place, the cause with its line, the edit and the command that repeats it."""
    edit = Section(list(edit_lines(report, width)), 4).cut(5, width)
    place = [*_verdict(report, width), Text(first_line(report), "bold")]
    return [*place, *cause_lines(report, width), *edit.lines, _again(report)]


def _again(report: Report) -> Text:
    return Text(f"  again: {report.reproduce}", overflow="ignore")


def _folded_all(sentences: Iterable[str], width: int) -> list[Text]:
    return [line for sentence in sentences for line in folded(sentence, width)]


def _closed(
    report: Report,
    on: Terminal,
    sections: Sequence[Section],
    sentences: Sequence[str] = (),
    *,
    most: int = 0,
    left: int = 0,
    is_wrong: bool,
    is_again: bool | None = None,
    kept: int = 1,
) -> list[Text]:
    """Sections, as many sentences below them as there is room for, and the commands that go on.

    Args:
        left: how many more notes there are.
        is_again: whether the command that repeats the check is told; where it is wrong by default.
        kept: of how many sentences the sections make room.
    """
    width, most = on.columns, most or (MOST if is_wrong else MOST_OF_A_MATCH)
    is_again = is_wrong if is_again is None else is_again
    again = [_again(report)] if is_again and report.reproduce else []
    closing, rows = rows_of(again, width) + 1, 2 if is_again or kept > 1 else 3
    notes = [short(sentence, width, rows) for sentence in sentences]
    lines = fitted(sections, most - closing - sum(map(len, notes[:kept])), width)
    room = most - closing - rows_of(lines, width)
    if notes:
        notes[0] = short(sentences[0], width, min(rows, max(1, room)))
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
    verdict = headed_in("MATCH", GOOD, verdict_words(report), width)
    seconds = f"{report.seconds.get('total', 0.0):.1f} s"
    ran = f"{receipt(report)}; ran {report.target.backend} on {device} in {seconds}"
    sections = [
        Section([*verdict, *_against(report, width)]),
        Section(list(_worst(report))),
        Section([*short(sources(report.shown), width), *short(ran, width, 3)], 0, ""),
        Section(short(beyond_the_case(report), width, 4), 3),
    ]
    kept = max(1, len(limits(report)))
    left = unseen(report, FACTS)
    return _closed(report, on, sections, findings(report), left=left, is_wrong=False, kept=kept)


def _against(report: Report, width: int) -> list[Text]:
    return list(render_against(report, width)) if report.against else []


def _worst(report: Report) -> Iterator[Text]:
    """The worst error of all layouts."""
    runs = [(run, one) for run in report.measured for one in run.compares]
    if found := [(one.ratio, one.title, run.layout) for run, one in runs]:
        times, title, layout = max(found)
        words = f"{ratio(times)} of what is allowed, in {title} ({layout})"
        yield Text(f"  the worst error is {words}")


def _mismatch(report: Report, on: Terminal) -> list[Text]:
    width, run, marks = on.columns, report.shown, marks_of(on)
    beyond, first = short(beyond_the_case(report), width), Text(first_line(report), "bold")
    edit = list(edit_lines(report, width))
    sections = [
        Section([*_verdict(report, width), *beyond, first]),
        Section(short("; ".join(_place(report)), width), 1, ""),
        Section(_against(report, width)),
        Section(list(cause_lines(report, width))),
        Section(edit, min(len(edit), 4)),
        Section(head_table(report, run, width, marks) if run.compares else [], 2, "row"),
        Section([legend(marks)] if run.first_mismatch else [], 0, ""),
        Section(list(second_cause(report, width))),
    ]
    return _closed(
        report, on, sections, findings(report), left=unseen(report, FACTS), is_wrong=True
    )


def _verdict(report: Report, width: int) -> list[Text]:
    """With the target and with what only inherits, as far as that fits."""
    run = report.failing
    assert run is not None
    own = blame(run, inherits=False) if run.has_wrong_elements else verdict_words(report)
    target = f"{own} ({report.target.name}, {run.layout})"
    for words in (verdict_words(report), target, f"{own} ({run.layout})"):
        lines = list(headed("MISMATCH", BAD, words, width))
        if len(lines) <= 2:
            return lines
    return headed_in("MISMATCH", BAD, own, width)


def _place(report: Report) -> Iterator[str]:
    """Where else: on which rank, in which rows, in which layouts."""
    first = report.shown.first_mismatch
    if first is not None and report.case is not None:
        if first.shard is not None:
            yield on_ranks(report.case, first)
        if first.masked:
            yield "masked, so nothing may be there"
        yield from filter(None, [size_in_words(first)])
        axis = "keys" if first.intermediate in ("dK", "dV") else "rows"
        if rows := wrong_rows(report.shown, first):
            yield f"wrong {axis}: {rows}"
    for verdict, word in ((MISMATCH, "wrong in"), (MATCH, "right in")):
        runs = [run for run in report.measured if run.verdict == verdict and run.is_plain]
        if runs:
            yield f"{word} {', '.join(run.layout for run in runs)}"


def _failed(report: Report, on: Terminal) -> list[Text]:
    """What ended it, and the layouts before that; nothing where there is none: it is said elsewhere."""
    if report.error is None or not report.runs:
        return []
    width, message = on.columns, report.error.message
    head = [] if on.is_said else headed_in("ERROR", f"bold {CAUTION}", message, width)
    head += folded(beyond_the_case(report), width) if report.beyond else []
    layouts = Section(list(render_layouts(report, width, utf8=on.utf8)), 3)
    if not on.details:
        layouts = layouts.cut(MOST - rows_of([*head, _again(report)], width), width)
    return [*head, *layouts.lines, _again(report)]


def _in_full(report: Report, on: Terminal) -> Iterator[Text]:
    """All that a check has to say; of more than a screen the verdict once more below."""
    lines = list(_details(report, on))
    yield from lines
    if on.rows is not None and len(lines) >= on.rows:
        yield from headline(report, on.columns)


def _details(report: Report, on: Terminal) -> Iterator[Text]:
    width, run, marks = on.columns, report.shown, marks_of(on)
    first = run.first_mismatch
    yield from verdict_lines(report, width)
    yield from _against(report, width)
    if report.failing:
        yield Text(first_line(report), "bold")
        yield from folded(", ".join(_whereabouts(report)), width, "dim")
        # Beside the cause one row of numbers is enough.
        yield from numbers_around(first, width, one_row=bool(report.causes)) if first else ()
        yield from render_reasons(report, width)
    if run.compares:
        yield Text()
        yield from head_table(report, run, width, marks, each=True)
        yield from [legend(marks)] if first else []
        yield from folded("; ".join([sources(run), *_dtypes(run)]), width, "dim")
    yield Text()
    yield from render_layouts(report, width, utf8=on.utf8)
    yield from _folded_all((*_rows_told(report), *all_notes(report), receipt(report)), width)
    yield from _provenance(report, width)


def _whereabouts(report: Report) -> Iterator[str]:
    element, case = report.shown.first_mismatch, report.case
    if element is None or case is None:
        return
    m, n = element.tile
    if element.shard is not None:
        yield on_ranks(case, element)
    if m is not None:
        yield f"row tile {m} (of {case.block_m} rows)"
    if n is not None:
        yield f"key tile {n} (of {case.block_n} keys)"
    if element.masked is not None:
        yield "masked, so nothing may be there" if element.masked else "not masked"
    yield from filter(None, [size_in_words(element)])


def _dtypes(run: Run) -> list[str]:
    """In which dtypes it came; what was recovered has none."""
    names: dict[str, list[str]] = {}
    for intermediate in run.compares:
        if intermediate.dtype:
            names.setdefault(intermediate.dtype, []).append(intermediate.name)
    if len(names) == 1:
        return [f"all results are {next(iter(names))}"]
    return [f"{dtype}: {', '.join(of_it)}" for dtype, of_it in names.items()]


def _rows_told(report: Report) -> Iterator[str]:
    run, first = report.shown, report.shown.first_mismatch
    if report.failing and run.compares and first is None:
        yield "no single element is out of bounds"
    elif first is not None and (rows := wrong_rows(run, first)):
        yield f"wrong rows: {first.title} {place_in_words(first)}: {rows}"


def _provenance(report: Report, width: int) -> Iterator[Text]:
    """What ran, in which files, and the command that repeats it."""
    target, base = report.target, base_of(report)
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    ran = f"ran {target.backend} on {report.environment.get('device')}; seconds: {seconds}"
    yield from folded(ran, width)
    files: dict[tuple[str, str], list[str]] = {}
    own = Source(name=target.function, file=target.file, line=target.line, sha256=target.sha256)
    for source in target.kernels or (own,):
        files.setdefault((source.file, source.sha256), []).append(f"{source.name}:{source.line}")
    for (file, digest), names in files.items():
        yield Text(f"  {base.short(file)} sha256 {digest[:12]}", "dim", overflow="ignore")
        yield from folded("  " + " ".join(names), width)
    if cache := report.environment.get("triton_cache"):
        yield Text(f"  Triton's cache: {base.short(cache)}", "dim")
    if report.failing and report.reproduce:
        yield _again(report)


def _close_up(report: Report, on: Terminal) -> list[Text]:
    """One intermediate close up: the map of its tiles, its worst rows, the numbers around an element."""
    view, width, signs = report.close_up, on.columns, marks_of(on).tiles
    assert view is not None
    is_wrong = view.mismatched > 0
    if on.details:
        why = render_reasons(report, width) if is_wrong else ()
        return [*close_up_lines(view, width, signs), *why]
    title, *tiles, legend = close_up_map(view, width, signs)
    sections = [
        Section([close_up_head(view)]),
        Section([title, *tiles], 3, "row"),
        Section([legend]),
        Section(list(close_up_rows(view)), 3 if is_wrong else 2, "row"),
    ]
    if is_wrong:
        sections.append(Section(numbers_around(view.element, width, one_row=True)))
        sections.append(Section(list(cause_lines(report, width))))
    most = (MOST if is_wrong else MOST_OF_A_MATCH) - 2  # `diff` says which check it repeats
    return _closed(report, on, sections, most=most, is_wrong=is_wrong, is_again=False)


def _survey(report: Report, on: Terminal) -> list[Text]:
    """A survey of layouts, where words say what the matrix shows."""
    from . import layout_survey as survey

    wrong, width = survey.wrong_layouts(report), on.columns
    sections = [Section(headed_in(*survey.verdict_of(report), width))]
    if wrong:
        line, words = survey.place_of_run(report, wrong[0])
        edit = list(edit_lines(report, width))
        culprits = [line for words in survey.culprits_of(report) for line in short(words, width)]
        tensors = [line for words in survey.tensors_of(report) for line in short(words, width)]
        sections += [
            Section([Text(line, "bold"), *short(words, width)]),
            Section(list(cause_lines(report, width))),
            Section(edit, min(len(edit), 4)),
            Section(culprits, 1),
            Section(tensors, 2),
            Section(list(second_cause(report, width))),
        ]
    notes = list(survey.notes_in_short(report, wrong))
    return _closed(report, on, sections, notes, is_wrong=bool(wrong))


def _survey_in_full(report: Report, on: Terminal) -> list[Text]:
    from . import layout_survey as survey

    wrong, width, marks = survey.wrong_layouts(report), on.columns, marks_of(on)
    lines = list(headed(*survey.verdict_of(report), width))
    if wrong:
        line, words = survey.place_of_run(report, wrong[0])
        lines += [Text(line, "bold"), *folded(words, width)]
        first = wrong[0].first_mismatch
        lines += numbers_around(first, width) if first is not None else []
        lines += render_reasons(report, width)
    lines += _folded_all((*survey.culprits_of(report), *survey.memory_told(report, wrong)), width)
    for warned in report.warnings:
        words, seen = survey.warning_told(report, warned)
        lines += [*headed("WARNING", CAUTION, words, width), *folded(seen, width)]
    lines += [Text(), *survey.matrix_lines(report, marks), Text()]
    lines += [
        *survey.program_lines(report, marks),
        *_folded_all(survey.sentences_of(report), width),
    ]
    return [*lines, _again(report)]


def _audit(report: Report, width: int) -> Iterator[Text]:
    """An audit of a reference: the verdict, the first wrong formula with its line, then what is wrong where."""
    audit, name, is_right = report.audit, report.target.name, report.verdict == MATCH
    assert audit is not None
    if is_right:
        words = f"is right: every element in {plural(len(report.runs), 'case')}, to float32"
    else:
        causes = [cause for cause in report.diagnoses[:1] if cause.where]
        places = [f" from line {cause.where[0].line} on: {cause.summary}" for cause in causes]
        words = f"is wrong{''.join(places)}"
    verdict = ("MATCH", GOOD) if is_right else ("MISMATCH", BAD)
    yield from headed(*verdict, f"{name} {words}", width)
    if report.first_mismatch is not None:
        yield Text(element_line(report.first_mismatch), "bold")
    if not is_right:
        yield from render_reasons(report, width)
    right = _cases(run.layout for run in report.runs if run.verdict == MATCH)
    wrong = _cases(run.layout for run in report.runs if run.verdict != MATCH)
    told = [f"{listed(audit.wrong)} wrong in {wrong}"] if wrong else []
    told += [f"right in {right}"] if right else []
    where = base_of(report).short(report.target.file)
    ran = f"ran {report.target.function} of {where}, sha256 {report.target.sha256[:12]}"
    yield from _folded_all(["; ".join(told), f"called with {'; '.join(audit.taken)}", ran], width)
    yield _again(report)


def _cases(layouts: Iterable[str]) -> str:
    """`causal (seeds 0, 1, 2)`, with draws of one kind together."""
    kinds: dict[str, list[str]] = {}
    for layout in layouts:
        kind, _, seed = layout.rpartition(" seed=")
        kinds.setdefault(kind, []).append(seed)
    return ", ".join(f"{kind} (seeds {', '.join(seeds)})" for kind, seeds in kinds.items())
