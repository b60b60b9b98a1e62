"""A report on one screen: the verdict, the place, the cause with its line, the edit, and what else must be known.

Each section is a function of the report. `--details` has everything that is left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.number import plural, ratio
from ...model.report import Report
from ..console import (
    beyond_the_case,
    first_line,
    on_ranks,
    receipt,
    render_layouts,
    sources,
    verdict_words,
    wrong_rows,
)
from ..notation import ASCII, CAUTION, UTF8, Signs, blame, size_in_words
from ..rows import MOST, MOST_OF_A_MATCH, Section, fitted, headed, headed_in, rows_of, short
from .notes import findings, limits, unseen
from .reasons import cause_lines, edit_lines, second_cause

_BAD, _GOOD = "bold red", "bold green"


def render_screen(
    report: Report, width: int, *, utf8: bool = True, rest: str = "", is_said: bool = False
) -> list[Text]:
    """The report in at most 24 rows of 80 columns, a match in 10; nothing where nothing was measured.

    Args:
        rest: the command that shows all of it; "" for the same one with --details.
        is_said: whether what ended the check stands there already.
    """
    marks = UTF8 if utf8 else ASCII
    if report.verdict == FAILED or not report.measured:
        return _failed(report, width, utf8=utf8, is_said=is_said)
    fails = report.failing is not None
    sections = _of_mismatch(report, width, marks) if fails else _of_match(report, width)
    most = MOST if fails else MOST_OF_A_MATCH
    kept = 1 if fails else max(1, len(limits(report)))
    return closed(
        report,
        [*sections],
        findings(report),
        most,
        width,
        rest,
        unseen(report),
        is_again=fails,
        kept=kept,
    )


def closed(
    report: Report,
    sections: Sequence[Section],
    sentences: Sequence[str],
    most: int,
    width: int,
    rest: str = "",
    left: int = 0,
    *,
    is_again: bool,
    kept: int = 1,
) -> list[Text]:
    """Sections, as many sentences below them as there is room for, and the commands that go on.

    Args:
        rest: the command that shows all of it; "" for the same one with --details.
        left: how many more notes there are.
        is_again: whether the command that repeats the check is one of them.
        kept: of how many sentences the sections make room.
    """
    again = [Text(f"  again: {report.reproduce}")] if is_again and report.reproduce else []
    closing, rows = rows_of(again, width) + 1, 2 if is_again or kept > 1 else 3
    folded = [short(sentence, width, rows) for sentence in sentences]
    lines = fitted(sections, most - closing - sum(map(len, folded[:kept])), width)
    room, taken = most - closing - rows_of(lines, width), list[Text]()
    folded[:1] = [short(sentence, width, min(rows, max(1, room))) for sentence in sentences[:1]]
    while folded and len(folded[0]) <= room:
        room -= len(folded[0])
        taken += folded.pop(0)
    left += len(folded)
    rest, notes = (
        rest or ("the same with --details" if report.reproduce else ""),
        plural(left, "note"),
    )
    words = f"{rest} ({notes})" if rest and left else rest or notes
    return [*lines, *taken, *again, *([Text(f"  more: {words}", "dim")] if rest or left else [])]


def _of_match(report: Report, width: int) -> list[Section]:
    verdict = headed_in(f"{MATCH.upper()} ", _GOOD, verdict_words(report), width)
    backend, device = report.target.backend, report.environment.get("device")
    ran = f"{receipt(report)}; ran {backend} on {device} in {report.seconds.get('total', 0.0):.1f} s"
    return [
        Section([*verdict, *_against(report, width)]),
        Section(list(_worst(report))),
        Section([*short(sources(report.shown), width), *short(ran, width, 3)], 0, ""),
        Section(short(beyond_the_case(report), width, 4), 3),
    ]


def _worst(report: Report) -> Iterator[Text]:
    """The worst error of all layouts."""
    found = [
        (one.ratio, one.title, run.layout) for run in report.measured for one in run.compares
    ]
    if found:
        times, title, layout = max(found)
        yield Text(
            f"  the worst error is {ratio(times)} of what is allowed, in {title} ({layout})"
        )


def _against(report: Report, width: int) -> list[Text]:
    if report.against is None:
        return []
    from ..target_pair import render_against

    return list(render_against(report, width))


def _of_mismatch(report: Report, width: int, marks: Signs) -> Iterator[Section]:
    from .head_table import head_table, legend

    beyond = short(beyond_the_case(report), width)
    yield Section([*_verdict(report, width), *beyond, Text(first_line(report), "bold")])
    yield Section(_place(report, width), 1, "")
    yield Section(_against(report, width))
    yield Section(list(cause_lines(report, width)))
    edit = list(edit_lines(report, width))
    yield Section(edit, least=min(len(edit), 4))
    run = report.shown
    yield Section(list(head_table(report, run, width, marks)) if run.compares else [], 2, "row")
    yield Section([legend(marks)] if run.first_mismatch else [], 0, "")
    yield Section(list(second_cause(report, width)))


def core(report: Report, width: int) -> list[Text]:
    """The verdict, the place, the cause with its line, the edit and the command that repeats it."""
    place = [*_verdict(report, width), Text(first_line(report), "bold")]
    edit = Section(list(edit_lines(report, width)), 4).cut(5, width)
    return [
        *place,
        *cause_lines(report, width),
        *edit.lines,
        Text(f"  again: {report.reproduce}"),
    ]


def _verdict(report: Report, width: int) -> list[Text]:
    """With the target and with what only inherits, as far as that fits."""
    run = report.failing
    assert run is not None
    own = blame(run, inherits=False) if run.has_wrong_elements else verdict_words(report)
    for words in (
        verdict_words(report),
        f"{own} ({report.target.name}, {run.layout})",
        f"{own} ({run.layout})",
    ):
        lines = list(headed(MISMATCH.upper(), _BAD, words, width))
        if len(lines) <= 2:
            return lines
    return headed_in(f"{MISMATCH.upper()} ", _BAD, own, width)


def _place(report: Report, width: int) -> list[Text]:
    """Where else: on which rank, in which rows, in which layouts."""
    shown, first, words = report.shown, report.shown.first_mismatch, list[str]()
    if first is not None and report.case is not None:
        words += [on_ranks(report.case, first)] if first.shard is not None else []
        words += ["masked, so nothing may be there"] if first.masked else []
        words += filter(None, [size_in_words(first)])
        axis = "keys" if first.intermediate in ("dK", "dV") else "rows"
        words += [f"wrong {axis}: {rows}" for rows in [wrong_rows(shown, first)] if rows]
    return short("; ".join([*words, *_layouts(report)]), width)


def _layouts(report: Report) -> Iterator[str]:
    """Which layouts are wrong, and which are right."""
    for verdict, word in ((MISMATCH, "wrong in"), (MATCH, "right in")):
        layouts = [
            run.layout for run in report.measured if run.verdict == verdict and run.is_plain
        ]
        if layouts:
            yield f"{word} {', '.join(layouts)}"


def _failed(report: Report, width: int, *, utf8: bool, is_said: bool) -> list[Text]:
    """What ended it, and the layouts before that."""
    if report.error is None or not report.runs:
        return []
    layouts = Section(list(render_layouts(report, width, utf8=utf8)), 3, "line")
    again = Section([Text(f"  again: {report.reproduce}")])
    words = [] if is_said else headed_in("ERROR ", f"bold {CAUTION}", report.error.message, width)
    head = Section([*words, *(short(beyond_the_case(report), width) if report.beyond else [])])
    # What gives way last stands first.
    lines = fitted([head, again, layouts], MOST, width)
    return [*lines[: len(head.lines)], *lines[len(head.lines) + 1 :], *again.lines]
