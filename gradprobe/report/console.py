"""What a person reads in the terminal: the verdict first, the place second, the reason third."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..budgets.precision import LAMBDA
from ..cases.case import Case
from ..judging.locate import Location
from ..judging.measured import Measured
from ..judging.strays import (
    BARRIER,
    CHANGED,
    DTYPE,
    GUARD,
    MISALIGNED,
    OUTSIDE,
    RACE,
    SHARED,
    UNWRITTEN,
    grouped,
)  # fmt: skip
from ..judging.tally import INHERITED, MATCH, MISMATCH, Finding
from ..running.trace import dtype_of
from ..spans import in_words, plural, spans
from ..verdict import Report, Run
from .paths import short
from .reasons import render_reasons
from .text import (
    ASCII,
    CAUTION,
    STYLES,
    UTF8,
    Marks,
    broken_identity_line,
    first_mismatch_line,
    ratio,
    stray_line,
    value,
)

_NAME, _CELL = 9, 8
_MOST_STRAYS = 4
_STRAYED = {
    RACE: "races", OUTSIDE: "touches what is not its own", UNWRITTEN: "reads what nothing wrote",
    BARRIER: "has a barrier that not all threads reach", GUARD: "touches what is not its own",
    MISALIGNED: "makes a misaligned access", CHANGED: "writes over its inputs",
    SHARED: "returns what lies in another tensor's memory", DTYPE: "returns a coarser dtype than it was given",
}  # fmt: skip
# A fault of the formula moves an element by its own size, thousands of roundings. An accumulator of fewer bits than
# declared stays within the confidence factor of what was allowed, the room that a bound leaves beyond one rounding.
COARSE = LAMBDA


def render(report: Report, width: int, *, utf8: bool = True) -> list[Text]:
    """The report as lines; tables fit `width`, sentences are folded to it."""
    marks = UTF8 if utf8 else ASCII
    failing = report.failing
    shown = failing[1] if failing else report.measured[0][1]
    lines = [*_verdict(report, width)]
    if failing:
        lines += _place(report, failing[0], failing[1], width)
        lines += render_reasons(report, width)
    lines += [line for sentence in _reasons(report) for line in folded(sentence, width)]
    lines += [Text(), *_table(report, shown, width, marks), Text()]
    lines += render_layouts(report, width, utf8=utf8)
    lines += [line for sentence in _sentences(report, shown) for line in folded(sentence, width)]
    return [*lines, *_provenance(report, width)]


def headline(report: Report, width: int) -> list[Text]:
    """The verdict and the greppable line alone, to close a report that is taller than the screen."""
    return [*_verdict(report, width), *([greppable(*report.failing)] if report.failing else [])]


def greppable(run: Run, measured: Measured) -> Text:
    """The one line that names the first mismatch, or the first identity broken, or what memory was touched wrongly."""
    if measured.first:
        return Text(first_mismatch_line(measured.first), "bold")
    if measured.broken:
        return Text(broken_identity_line(measured.broken[0]), "bold")
    return Text(stray_line(run.strays[0]), "bold")


def _verdict(report: Report, width: int) -> Iterator[Text]:
    target, precision = report.provenance.target, report.measured[0][1].comparison.precision.name
    if report.failing is None:
        count, runs = len(report.measured[0][1].comparison.findings), len(report.measured)
        words = f"{target}: {plural(count, 'intermediate')} within budget in {plural(runs, 'layout')} ({precision})"
        yield from headed("MATCH", "bold green", words, width)
    else:
        run, measured = report.failing
        yield from headed("MISMATCH", "bold red", f"{_blame_of(run, measured)} ({target}, {run.layout})", width)


def headed(verdict: str, style: str, words: str, width: int) -> Iterator[Text]:
    """A verdict, and what it is about in lines of a width."""
    first, *rest = textwrap.wrap(words, max(width, 40) - len(verdict) - 2)
    yield Text.assemble((verdict, style), f"  {first}")
    yield from (Text(" " * (len(verdict) + 2) + line) for line in rest)


def _blame_of(run: Run, measured: Measured) -> str:
    if not measured.matches:
        return blame(measured)
    kinds = " and ".join(dict.fromkeys(_STRAYED[stray.kind] for stray in run.strays))
    whose = f"{run.strays[0].kernel or 'the target'} {kinds}"
    return f"every element is within budget, but {whose}{'' if run.measured else ' before the layout is refused'}"


def blame(measured: Measured) -> str:
    """Which intermediates are wrong by themselves, in which heads, and which only inherit."""
    findings = measured.comparison.findings
    own = [name for name, finding in findings.items() if finding.status == MISMATCH]
    inherited = [name for name, finding in findings.items() if finding.status == INHERITED]
    if not own:
        return f"every element is within budget, but the target breaks {measured.broken[0].name}"
    words = f"{own[0]} is the first wrong intermediate{_which_heads(findings[own[0]])}"
    words += f"; wrong by itself too: {', '.join(own[1:])}" if own[1:] else ""
    return words + (f"; only inherited: {', '.join(inherited)}" if inherited else "")


def _which_heads(finding: Finding) -> str:
    wrong, heads = _wrong_heads(finding), finding.wrong.shape[1]
    if len(wrong) == heads:
        return " in every head" if heads > 1 else ""
    return f" in head{'s' if len(wrong) > 1 else ''} {in_words(spans(wrong))} of {heads}"


def _wrong_heads(finding: Finding) -> list[int]:
    return [head for head in range(finding.own.shape[1]) if bool(finding.own[:, head].any())]


def _place(report: Report, run: Run, measured: Measured, width: int) -> Iterator[Text]:
    yield greppable(run, measured)
    if measured.first is None:
        return
    yield from _whereabouts(report.case, measured.first)
    # Beside the cause one row of numbers is enough.
    yield from window(measured.first, width, one_row=any(one.is_named for one in report.diagnoses[:1]))


def _whereabouts(case: Case, location: Location) -> Iterator[Text]:
    m, n = location.tile
    parts = [f"row tile {m} (of {case.block_m} rows)"] if m is not None else []
    parts += [f"key tile {n} (of {case.block_n} keys)"] if n is not None else []
    if location.masked is not None:
        parts.append("masked, so nothing may be there" if location.masked else "not masked")
    if parts:
        yield Text(f"  {', '.join(parts)}", "dim")


def window(location: Location, width: int, *, one_row: bool = False) -> Iterator[Text]:
    """The numbers around a place, actual above expected, the place in brackets; or those of its row alone."""
    around, place = location.window, location.place
    cells = max(1, min(len(around.cols), (width - 22) // 12))
    first = max(0, min(around.cols.index(place.col or 0) - cells // 2, len(around.cols) - cells))
    cols = around.cols[first : first + cells]
    yield Text(" " * 21 + "".join(f"{f'col {col}':>12}" for col in cols), "dim")
    for at, row in enumerate(around.rows):
        if one_row and row != (place.row or 0):
            continue
        for label, numbers in (("actual", around.actual[at]), ("expected", around.expected[at])):
            head = f"  row {row:<6}" if label == "actual" else " " * 12
            text = Text(f"{head}{label:>9}")
            for col, number in zip(cols, numbers[first : first + cells], strict=True):
                here = row == (place.row or 0) and col == (place.col or 0)
                written = f"[{value(number)}]" if here else f"{value(number)} "
                text.append(f"{written:>12}", STYLES[MISMATCH] if here and label == "actual" else "")
            text.rstrip()
            yield text


def _table(report: Report, measured: Measured, width: int, marks: Marks) -> Iterator[Text]:
    findings = measured.comparison.findings
    states = [[_status(one, report, [head]) for one in findings.values()] for head in range(report.case.heads)]
    groups = head_groups(states, max(1, (width - _NAME) // _CELL))
    label, each = ("head", "head") if len(groups) == report.case.heads else ("heads", "group of heads")
    yield Text(f"  worst error of each {each}, as a multiple of what is allowed", "dim")
    yield Text(f"  {label:<{_NAME - 2}}" + "".join(f"{_group_name(group):>{_CELL}}" for group in groups), "dim")
    for name, finding in findings.items():
        yield Text.assemble(f"  {name:<{_NAME - 2}}", *_cells(finding, groups, report, marks))
    yield from (
        Text(line, "dim") for words in (_sources(measured), _dtypes(measured)) for line in _wrapped(words, width)
    )
    if report.failing and measured.first:
        yield Text(
            f"  {marks.mismatch} wrong by itself   {marks.inherited} wrong, but right given its wrong inputs",
            "dim",
        )


def _sources(measured: Measured) -> str:
    """Which intermediates were exported, tapped or recovered, and which were not seen at all."""
    by_source: dict[str, list[str]] = {}
    reading = measured.comparison.reading
    for name in measured.comparison.findings:
        # What dP and delta come to lies in their budgets: it is large wherever P is small.
        adds = f" (to {reading[name]:.0e})" if name in reading and name in ("P", "dS") else ""
        by_source.setdefault(measured.trace.sources[name], []).append(name + adds)
    by_source["not exposed"] = list(measured.comparison.absent)
    order = ("exported", "tapped", "recovered", "not exposed")
    return "; ".join(f"{source}: {', '.join(by_source[source])}" for source in order if by_source.get(source))


def _dtypes(measured: Measured) -> str:
    """In which dtypes it came; what was recovered has none."""
    names: dict[str, list[str]] = {}
    for name in measured.comparison.findings:
        names.setdefault(dtype_of(measured.trace, name) or "", []).append(name)
    names.pop("", None)
    if len(names) == 1:
        return f"all results are {next(iter(names))}"
    return "; ".join(f"{dtype}: {', '.join(of_it)}" for dtype, of_it in names.items())


def head_groups(states: Sequence[object], columns: int) -> list[range]:
    """The heads of a table of so many columns: one each where they all fit, else neighbours of one state together.

    Args:
        states: of each head, what is wrong there. Where they change too often, the shortest neighbours share a column.
    """
    heads = range(len(states))
    first = [head for head in heads if len(heads) <= columns or head == 0 or states[head] != states[head - 1]]
    groups = [range(start, stop) for start, stop in zip(first, [*first[1:], len(heads)], strict=True)]
    while len(groups) > columns:
        at = min(range(len(groups) - 1), key=lambda left: groups[left + 1].stop - groups[left].start)
        groups[at : at + 2] = [range(groups[at].start, groups[at + 1].stop)]
    return groups


def _group_name(group: range) -> str:
    return str(group.start) if len(group) == 1 else f"{group.start}-{group.stop - 1}"


def _cells(finding: Finding, groups: Sequence[range], report: Report, marks: Marks) -> Iterator[tuple[str, str]]:
    for group in groups:
        worst = float(finding.ratio[:, _held(finding, report, group)].max())
        status = _status(finding, report, group)
        mark = {MISMATCH: marks.mismatch, INHERITED: marks.inherited, MATCH: ""}[status]
        times = marks.times if mark else ""
        yield f"{mark + ratio(worst) + times:>{_CELL}}", STYLES.get(status, "")


def _held(finding: Finding, report: Report, heads: Iterable[int]) -> list[int]:
    """The heads of an intermediate that some query heads have: key heads of dK and dV."""
    group_size = report.case.heads // finding.ratio.shape[1]
    return sorted({head // group_size for head in heads})


def _status(finding: Finding, report: Report, heads: Iterable[int]) -> str:
    """The worst of them, in every batch."""
    held = _held(finding, report, heads)
    statuses = {finding.head_status(batch, head) for batch in range(finding.ratio.shape[0]) for head in held}
    return next(known for known in (MISMATCH, INHERITED, MATCH) if known in statuses)


def render_layouts(report: Report, width: int, *, utf8: bool = True) -> Iterator[Text]:
    """A line for each layout."""
    marks = UTF8 if utf8 else ASCII
    styles = {"match": "green", "mismatch": "bold red", "skipped": CAUTION}
    for run in report.runs:
        shown = run.shown
        if shown is None:  # the target's words, of any length
            how = "skipped" if run.matches else "mismatch, then refused"
            words = _wrapped(f"{run.layout:<14} {how}: {run.skipped}", width)
            yield from (Text(line, styles[run.verdict]) for line in words)
            continue
        line = Text.assemble(f"  {run.layout:<14} ", (run.verdict, styles[run.verdict]))
        worst = max(shown.comparison.findings.values(), key=lambda finding: finding.max_ratio)
        line.append(f", worst {ratio(worst.max_ratio)}{marks.times} in {worst.name}")
        yield line


def _reasons(report: Report) -> Iterator[str]:
    """Why, as far as it is known."""
    verdicts = {run.layout: run.verdict for run in report.runs if run.is_plain}
    if verdicts.get("contiguous") == "match" and "mismatch" in verdicts.values():
        yield "right when contiguous and wrong otherwise: the arithmetic is right, an address (a stride) is not"
    run, shown = report.failing or report.measured[0]
    yield from _of_memory(report)
    yield from run.inside.sentences if run.inside else ()
    coarser = {coarser.name: coarser for _, found in report.measured for coarser in found.coarser}
    yield from (one.words for one in coarser.values())
    if report.failing and not coarser and _is_coarse(report):
        name = shown.comparison.precision.name
        yield f"no error exceeds {COARSE:.0f}x: rather a coarser arithmetic than {name} than a wrong formula"


def _of_memory(report: Report) -> Iterator[str]:
    """What kernels did to memory, the worst first, where no cause says it already."""
    causes = {one.summary for one in report.diagnoses[:1] if one.is_named}
    groups = grouped((run.layout, stray) for run in report.runs for stray in run.strays)
    groups = [group for group in groups if group.sentence not in causes]
    yield from (group.sentence for group in groups[:_MOST_STRAYS])
    if len(groups) > _MOST_STRAYS:
        yield f"and {plural(len(groups) - _MOST_STRAYS, 'finding')} more about memory, none worse, in --json FILE"


def _sentences(report: Report, shown: Measured) -> Iterator[str]:
    if report.failing:
        yield f"wrong rows: {_wrong_rows(shown)}" if shown.first else "no single element is out of bounds"
    for _, measured in report.measured:
        if measured.broken:
            yield f"identities broken: {'; '.join(invariant.name for invariant in measured.broken)}"
            break
    kept = [invariant.key for _, measured in report.measured for invariant in measured.invariants if invariant.holds]
    reference = [i.key for i in shown.invariants if i.of == "reference"]
    if not any(measured.broken for _, measured in report.measured):
        held, of_reference = (" ".join(sorted(set(keys), key=_rank)) for keys in (kept, reference))
        yield f"identities hold: {held} (and {of_reference} for the reference)"
    yield from report.notes
    undecided = shown.comparison.undecided
    if undecided:
        yield f"{plural(undecided, 'entry')} on the ReLU's kink, where rounding decides: either side is right"
    yield _receipt(report)


def _is_coarse(report: Report) -> bool:
    """Whether elements are wrong, and none by much."""
    ratios = [finding.max_ratio for _, found in report.measured for finding in found.comparison.findings.values()]
    return 1.0 < max(ratios) <= COARSE


def _wrong_rows(measured: Measured) -> str:
    assert measured.first is not None
    name, place = measured.first.intermediate, measured.first.place
    finding = measured.comparison.findings[name]
    ranges = finding.row_ranges(place.batch or 0, place.head)
    where = f"batch {place.batch}, head {place.head}" if place.batch is not None else f"head {place.head}"
    rows = sum(last - first + 1 for first, last in ranges)
    return f"{name} {where}: {in_words(ranges, 6)} ({rows} of {finding.wrong_rows.shape[2]})"


def _receipt(report: Report) -> str:
    counts, case, runs = report.compared, report.case, len(report.measured)
    seen = sorted({len(found.comparison.findings) for _, found in report.measured})
    names = plural(seen[0], "intermediate") if len(seen) == 1 else f"{seen[0]} to {plural(seen[-1], 'intermediate')}"
    return (
        f"compared {plural(counts['elements'], 'element')}: every one of {names} in "
        f"{plural(runs, 'run')}, {plural(case.batch, 'batch')}, {plural(case.heads, 'head')} "
        f"and {plural(case.seqlen_q, 'query row')}"
    )


def _rank(key: str) -> tuple[int, str]:
    """I2 before I10, and what is no number last."""
    return (int(key[1:]) if key[1:].isdigit() else 99, key)


def _provenance(report: Report, width: int) -> Iterator[Text]:
    provenance = report.provenance
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    yield from folded(f"ran {provenance.backend} on {report.environment['device']}; seconds: {seconds}", width)
    files: dict[tuple[str, str], list[str]] = {}
    for source in provenance.kernels or (provenance.source,):
        files.setdefault((source.file, source.sha256), []).append(f"{source.name}:{source.line}")
    for (file, digest), names in files.items():
        yield Text(f"  {short(file)} sha256 {digest[:12]}", "dim", overflow="ignore")
        yield from folded("  " + " ".join(names), width)
    for shadow in provenance.shadows:
        yield Text(f"  not this file, though of the same module name: {short(shadow)}", CAUTION)
    if provenance.triton_cache:
        yield Text(f"  Triton's cache: {short(provenance.triton_cache)}", "dim")
    if report.failing and report.reproduce:
        yield Text(f"  again: {report.reproduce}")


def folded(sentence: str, width: int) -> Iterator[Text]:
    """A sentence in lines of a width, indented."""
    yield from (Text(line) for line in _wrapped(sentence, width))


def _wrapped(sentence: str, width: int) -> list[str]:
    return textwrap.wrap(sentence, max(width, 40), initial_indent="  ", subsequent_indent="    ")
