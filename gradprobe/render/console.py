"""The words of a report: verdict, first line, layouts, and what was compared."""

import re
from collections.abc import Iterator

from rich.text import Text

from ..model.case import Case
from ..model.layout_run import FAILED, MATCH, MISMATCH, Element, Error, Ranges, Run
from ..model.memory_finding import WARNING
from ..model.number import in_words, plural, ratio, some
from ..model.report import Report
from .notation import BAD, CAUTION, GOOD, TIMES, blame, greppable, size_in_words
from .rows import ReportBlock, TextLine, Words, lines_in
from .source_places import Place, base_of


def headline(report: Report, width: int) -> list[Text]:
    if report.verdict == FAILED:
        return []
    first = [Text(first_line(report), "bold")] if report.failing else []
    return [*lines_in(verdict_of(report), width), *first]


def first_line(report: Report) -> str:
    """The greppable line; "" where all matches."""
    run = report.failing
    return "" if run is None else greppable(run, run.memory)


def verdict_of(report: Report) -> Iterator[ReportBlock]:
    verdict, style = ("MISMATCH", BAD) if report.failing else ("MATCH", GOOD)
    yield Words(verdict_words(report), verdict, style, hangs=True)
    if words := beyond_the_case(report):
        yield Words(words)


def beyond_the_case(report: Report) -> str:
    if report.beyond:
        return f"right as it was asked for, wrong with {report.beyond}"
    words = []
    if report.not_checked:
        words.append(f"not checked: {', '.join(report.not_checked)}")
    if report.undeclared:
        words.append(f"wrong, if it is meant to be taken so: {', '.join(report.undeclared)}")
    return "" if report.failing else "; ".join(words)


def verdict_words(report: Report) -> str:
    target, first, run = report.chosen or report.target.name, report.measured[0], report.failing
    if run is not None:
        if run.has_wrong_elements or run.broken:
            return f"{blame(run)} ({target}, {run.layout})"
        from .alerts import RULE_OF

        title = RULE_OF[run.memory[0].kind].title
        ended = "ends" if run.told_error else "is refused"
        before = "" if run.compares else f" before the layout {ended}"
        words = f"every element is within budget, but {title[0].lower()}{title[1:]}{before}"
        return f"{words} ({target}, {run.layout})"
    count, runs = plural(len(first.compares), "intermediate"), len(report.measured)
    words = f"{target}: {count} within budget in {plural(runs, 'layout')} ({first.precision})"
    if not (idle := report.target.idle):
        return words
    files = some(base_of(report).shorten(Place(file, None)) for file in idle)
    return f"{words}; torch alone ran: no kernel of {files} was launched"


def _on_ranks(case: Case, element: Element) -> str:
    rank, step = element.rank, element.step
    words = f"in the shard of rank {element.shard}"
    if rank is None or step is None or case.ranks is None:
        return words if rank in (None, element.shard) else f"{words}, from rank {rank}"
    keys = f"keys of rank {(rank - step) % case.ranks}"
    return f"{words}, from step {step} of rank {rank} ({keys})"


def sources(run: Run) -> str:
    words = list[str]()
    for source in ("exported", "tapped", "seen", "recovered"):
        if names := [each.name for each in run.compares if each.source == source]:
            words.append(f"{source}: {', '.join(dict.fromkeys(names))}")
    if run.absent:
        words.append(f"not exposed: {', '.join(run.absent)}")
    return "; ".join(words)


def layouts_of(report: Report) -> Iterator[ReportBlock]:
    for run in report.runs:
        verdict = WARNING if run.severity == WARNING else run.verdict
        style = {MATCH: "green", MISMATCH: BAD}.get(verdict, CAUTION)
        if run.told_error:
            yield Words(f"{run.layout:<14} {run.verdict}: {error_words(run)}", "", style)
        elif run.skipped and not run.is_judged:
            how = "mismatch, then refused" if run.verdict == MISMATCH else run.verdict
            yield Words(f"{run.layout:<14} {how}: {run.skipped}", "", style)
        else:
            line = Text.assemble(f"  {run.layout:<14} ", (verdict, style))
            if worst := max(run.compares, key=lambda each: each.ratio, default=None):
                line.append(f", worst {ratio(worst.ratio)}{TIMES} in {worst.title}")
            yield TextLine(line)


def error_words(run: Run) -> str:
    words = run.error.words if isinstance(run.error, Error) else ""
    message = run.told_error[1] if run.told_error else ""
    return words or re.sub(r"^target '.*?' ", "", message)


def whereabouts(report: Report) -> Iterator[str]:
    first = report.shown.first_mismatch
    if first is not None and report.case is not None:
        if first.shard is not None:
            yield _on_ranks(report.case, first)
        if first.masked:
            yield "masked, so nothing may be there"
        if small := size_in_words(first):
            yield small
        yield from _wrong_rows(report.shown, first)
    plain = [run for run in report.measured if run.is_plain]
    for word, runs in (
        ("wrong in", [run.layout for run in plain if run.is_wrong]),
        ("right in", [run.layout for run in plain if run.verdict == MATCH]),
    ):
        if runs:
            yield f"{word} {some(runs, 8)}" if report.strides else f"{word} {', '.join(runs)}"


def _wrong_rows(run: Run, first: Element) -> Iterator[str]:
    axis = "keys" if first.intermediate in ("dK", "dV") else "rows"
    for intermediate in run.compares:
        for head in intermediate.heads if intermediate.title == first.title else ():
            if (head.batch, head.head) == (first.batch, first.head) and head.rows:
                shown = intermediate.shown
                total = f"{_count(shown)} shown" if shown else f"{intermediate.length}"
                rows = f"{in_words(head.rows, 6)} ({_count(head.rows)} of {total})"
                keys = f"; keys: {in_words(head.keys, 6)} ({_count(head.keys)})"
                yield f"wrong {axis}: {rows}{keys if head.keys else ''}"


def _count(ranges: Ranges) -> int:
    return sum(last - start + 1 for start, last in ranges)


def receipt(report: Report) -> str:
    elements, case = plural(report.compared.elements, "element"), report.case
    counts = [len(run.compares) for run in report.measured]
    names = plural(max(counts), "intermediate")
    names = names if min(counts) == max(counts) else f"up to {names}"
    words = f"compared {elements}: every one of {names} in {plural(len(report.measured), 'run')}"
    if case is None:
        return words
    heads = f"{plural(case.batch, 'batch')}, {plural(case.heads, 'head')}"
    return f"{words}, {heads} and {plural(case.seqlen_q, 'query row')}"
