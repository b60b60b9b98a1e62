"""What a person reads in the terminal: the verdict first, the place second, the reason third."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from ..model.case import Case
from ..model.layout_run import FAILED, INHERITED, MATCH, MISMATCH, Element, Error, Head, Intermediate, Run
from ..model.memory_finding import (
    BARRIER,
    CHANGED,
    DTYPE,
    GUARD,
    MISALIGNED,
    OUTSIDE,
    RACE,
    SHARED,
    SHUFFLE,
    UNWRITTEN,
    grouped,
)
from ..model.number import LAMBDA, in_words, plural
from ..model.report import Report, Source
from .notation import (
    ASCII,
    CAUTION,
    STYLES,
    UTF8,
    Signs,
    blame,
    folded,
    greppable,
    headed,
    place_in_words,
    ratio,
    size_in_words,
    wrapped,
)
from .source_places import Base, Place, base_of

_NAME, _CELL = 9, 8
_MOST_STRAYS = 4
_STRAYED = {
    RACE: "races",
    OUTSIDE: "reads or writes outside a tensor",
    GUARD: "reads or writes outside a tensor",
    UNWRITTEN: "reads memory that nothing has written",
    BARRIER: "has a barrier that not all threads reach",
    SHUFFLE: "shuffles with lanes that give no value",
    MISALIGNED: "makes a misaligned access",
    CHANGED: "writes over its inputs",
    SHARED: "returns a tensor that shares memory with another",
    DTYPE: "returns a coarser dtype than it was given",
}
# A fault of the formula moves an element by its own size, thousands of roundings. An accumulator of fewer bits than
# declared stays within the confidence factor of what was allowed, the room that a bound leaves beyond one rounding.
COARSE = LAMBDA


def render(report: Report, width: int, *, utf8: bool = True, is_said: bool = False) -> list[Text]:
    """The report as lines; tables fit `width`, sentences are folded to it. Nothing where nothing was measured.

    Args:
        is_said: whether what ended it stands there already.
    """
    layouts = render_layouts(report, width, utf8=utf8)
    if report.verdict == FAILED or not report.measured:
        if report.error is None or not report.runs:
            return []
        head = [] if is_said else [Text(f"ERROR  {report.error.message}")]
        head += folded(beyond_the_case(report), width) if report.beyond else []
        return [*head, *layouts, Text(f"  again: {report.reproduce}")]
    from .excerpt import render_reasons
    from .target_pair import beside, render_against

    lines = [*_verdict(report, width), *render_against(report, width)]
    lines += _compile_errors(report, width)
    if report.failing:
        lines += [*_place(report, width), *render_reasons(report, width)]
    lines += [line for sentence in _reasons(report) for line in folded(sentence, width)]
    lines += [Text(), *_table(report, report.shown, width, UTF8 if utf8 else ASCII), Text(), *layouts]
    lines += [line for sentence in (*_sentences(report), *beside(report)) for line in folded(sentence, width)]
    return [*lines, *_provenance(report, width), *(Text(f"  {hint}") for hint in report.hints)]


def headline(report: Report, width: int) -> list[Text]:
    """The verdict and the greppable line alone, to close a report that is taller than the screen."""
    if report.verdict == FAILED:
        return []
    return [*_verdict(report, width), *([Text(first_line(report), "bold")] if report.failing else [])]


def first_line(report: Report) -> str:
    """The one line that names the first mismatch, identity broken or memory touched wrongly; "" where all matches."""
    run = report.failing
    return "" if run is None else greppable(report.shown, run.memory)


def _verdict(report: Report, width: int) -> Iterator[Text]:
    verdict, style = ("MISMATCH", "bold red") if report.failing else ("MATCH", "bold green")
    yield from headed(verdict, style, verdict_words(report), width)
    yield from (Text(line) for line in wrapped(beyond_the_case(report), width))


def beyond_the_case(report: Report) -> str:
    """What sets a second case that is wrong apart from the one that was asked for; of a match what was not checked."""
    if report.beyond:
        return f"right as it was asked for, wrong with {report.beyond}"
    if report.failing:
        return ""
    left = {"not checked": report.not_checked, "wrong, if it is meant to be taken so": report.undeclared}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in left.items() if names)


def verdict_words(report: Report) -> str:
    """What stands beside the verdict of a report that came to results."""
    target, first, run = report.chosen or report.target.name, report.measured[0], report.failing
    if run is not None:
        return f"{_blame_of(run)} ({target}, {run.layout})"
    count, runs = plural(len(first.compares), "intermediate"), plural(len(report.measured), "layout")
    return f"{target}: {count} within budget in {runs} ({first.precision}){_idle(report)}"


def _idle(report: Report) -> str:
    """Says of a match that is none of the kernels that stand beside the target."""
    idle = [base_of(report).shorten(Place(file, None)) for file in report.target.idle]
    files = " and ".join(idle) if len(idle) < 3 else f"{len(idle)} files"
    return f"; torch alone ran: no kernel of {files} was launched" if idle else ""


def _compile_errors(report: Report, width: int) -> Iterator[Text]:
    """What no compiler takes of kernels that are wrong besides; in the place of a match it is the verdict."""
    for error in report.compile_errors:
        yield from headed("COMPILE ERROR", "bold red", error.sentence, width)
        yield Text(f"    {error.code}", overflow="ignore")


def _blame_of(run: Run) -> str:
    if run.has_wrong_elements or run.broken:
        return blame(run)
    kinds = " and ".join(dict.fromkeys(_STRAYED[one.kind] for one in run.memory))
    whose = f"{run.memory[0].kernel or 'the target'} {kinds}"
    return f"every element is within budget, but {whose}{'' if run.compares else ' before the layout is refused'}"


def _place(report: Report, width: int) -> Iterator[Text]:
    yield Text(first_line(report), "bold")
    if (first := report.shown.first_mismatch) is not None:
        yield from _whereabouts(report.case, first) if report.case is not None else ()
        from .excerpt import window

        # Beside the cause one row of numbers is enough.
        yield from window(first, width, one_row=bool(report.causes))


def _whereabouts(case: Case, element: Element) -> Iterator[Text]:
    m, n = element.tile
    if element.shard is not None:
        yield Text(f"  {on_ranks(case, element)}", "dim")
    parts = [f"row tile {m} (of {case.block_m} rows)"] if m is not None else []
    parts += [f"key tile {n} (of {case.block_n} keys)"] if n is not None else []
    if element.masked is not None:
        parts.append("masked, so nothing may be there" if element.masked else "not masked")
    parts += filter(None, [size_in_words(element)])
    if parts:
        yield Text(f"  {', '.join(parts)}", "dim")


def on_ranks(case: Case, element: Element) -> str:
    """`in the shard of rank 1, from step 2 of rank 3 (keys of rank 1)`, as far as that is known."""
    rank, step = element.rank, element.step
    words = f"in the shard of rank {element.shard}"
    if rank is None or step is None or case.ranks is None:
        return words if rank in (None, element.shard) else f"{words}, from rank {rank}"
    return f"{words}, from step {step} of rank {rank} (keys of rank {(rank - step) % case.ranks})"


def _table(report: Report, run: Run, width: int, marks: Signs) -> Iterator[Text]:
    heads = report.case.heads if report.case else max(one.count for one in run.compares)
    states = [[status_in(one, heads, [head]) for one in run.compares] for head in range(heads)]
    groups = head_groups(states, max(1, (width - _NAME) // _CELL))
    label, each = ("head", "head") if len(groups) == heads else ("heads", "group of heads")
    yield Text(f"  worst error of each {each}, as a multiple of what is allowed", "dim")
    names = [f"{group.start}-{group.stop - 1}" if len(group) > 1 else str(group.start) for group in groups]
    yield Text(f"  {label:<{_NAME - 2}}" + "".join(f"{name:>{_CELL}}" for name in names), "dim")
    kernel = None
    for intermediate in run.compares:
        if intermediate.kernel and intermediate.kernel != kernel:
            yield Text(f"  in {intermediate.kernel}")
        kernel, name = intermediate.kernel, f"  {intermediate.name}" if intermediate.kernel else intermediate.name
        yield Text.assemble(f"  {name:<{_NAME - 2}}", *_cells(intermediate, groups, heads, marks))
    yield from (Text(line, "dim") for words in (sources(run), _dtypes(run)) for line in wrapped(words, width))
    if report.failing and run.first_mismatch:
        legend = f"{marks.mismatch} wrong by itself   {marks.inherited} wrong, but right given its wrong inputs"
        yield Text(f"  {legend}", "dim")


def sources(run: Run) -> str:
    """Which intermediates were exported, tapped, seen or recovered, and which were not seen at all."""
    by_source: dict[str, list[str]] = {}
    for intermediate in run.compares:
        # What dP and delta come to lies in their budgets: it is large wherever P is small.
        adds = (
            f" (to {intermediate.reading_adds:.0e})"
            if intermediate.reading_adds is not None and intermediate.name in ("P", "dS")
            else ""
        )
        named = by_source.setdefault(intermediate.source or "", [])
        named += [intermediate.name + adds] if intermediate.name + adds not in named else []
    by_source["not exposed"] = list(run.absent)
    order = ("exported", "tapped", "seen", "recovered", "not exposed")
    return "; ".join(f"{source}: {', '.join(by_source[source])}" for source in order if by_source.get(source))


def _dtypes(run: Run) -> str:
    """In which dtypes it came; what was recovered has none."""
    names: dict[str, list[str]] = {}
    for intermediate in run.compares:
        if intermediate.dtype:
            names.setdefault(intermediate.dtype, []).append(intermediate.name)
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


def _cells(intermediate: Intermediate, groups: Sequence[range], heads: int, marks: Signs) -> Iterator[tuple[str, str]]:
    for group in groups:
        worst = worst_in(intermediate, heads, group)
        status = status_in(intermediate, heads, group)
        mark = {MISMATCH: marks.mismatch, INHERITED: marks.inherited, MATCH: ""}[status]
        times = marks.times if mark else ""
        yield f"{mark + ratio(worst) + times:>{_CELL}}", STYLES.get(status, "")


def worst_in(intermediate: Intermediate, heads: int, wanted: Iterable[int]) -> float:
    """The worst error in some query heads, as a multiple of what is allowed; NaN is worse than any."""
    return max((head.ratio for head in heads_in(intermediate, heads, wanted)), key=lambda by: (by != by, by))


def heads_in(intermediate: Intermediate, heads: int, wanted: Iterable[int]) -> list[Head]:
    """What an intermediate has of some query heads, in every batch: key heads of dK and dV."""
    group_size = heads // intermediate.count
    held = {head // group_size for head in wanted}
    return [head for head in intermediate.heads if head.head in held]


def status_in(intermediate: Intermediate, heads: int, wanted: Iterable[int]) -> str:
    """The worst of them."""
    statuses = {head.status for head in heads_in(intermediate, heads, wanted)}
    return next(known for known in (MISMATCH, INHERITED, MATCH) if known in statuses)


def render_layouts(report: Report, width: int, *, utf8: bool = True) -> Iterator[Text]:
    """A line for each layout."""
    marks = UTF8 if utf8 else ASCII
    styles = {"match": "green", "mismatch": "bold red"}
    for run in report.runs:
        style = styles.get(run.verdict, CAUTION)
        if run.told_error:
            words = run.error.words if isinstance(run.error, Error) else ""
            words = words or re.sub(r"^target '.*?' ", "", run.told_error[1])
            yield from folded(f"{run.layout:<14} {run.verdict}: {words}", width, style)
            continue
        if not run.is_judged:  # the target's words, of any length
            how = "mismatch, then refused" if run.verdict == MISMATCH else run.verdict
            yield from folded(f"{run.layout:<14} {how}: {run.skipped}", width, style)
            continue
        line = Text.assemble(f"  {run.layout:<14} ", (run.verdict, style))
        if worst := max(run.compares, key=lambda intermediate: intermediate.ratio, default=None):
            line.append(f", worst {ratio(worst.ratio)}{marks.times} in {worst.title}")
        yield line


def _reasons(report: Report) -> Iterator[str]:
    """Why, as far as it is known."""
    if report.is_right_when_contiguous:
        yield "right when contiguous and wrong otherwise: the arithmetic is right, an address (a stride) is not"
    yield from _of_memory(report)
    yield from (report.failing or report.measured[0]).inside
    yield from report.coarser
    from .repeat_sentences import repeat_sentences

    yield from repeat_sentences(report)
    yield from coarse_words(report)


def coarse_words(report: Report) -> Iterator[str]:
    """Says of errors that are small in all layouts what they rather are than a wrong formula."""
    worst = max((one.ratio for run in report.measured for one in run.compares), default=0.0)
    if report.failing and not report.coarser and 1.0 < worst <= COARSE:
        name = report.shown.precision
        yield f"no error exceeds {COARSE:.0f}x: it looks like coarser arithmetic than {name}, not a wrong formula"


def _of_memory(report: Report) -> Iterator[str]:
    """What kernels did to memory, the worst first, where no cause says it already."""
    causes = {one.summary for one in report.causes}
    found = ((run.layout, finding) for run in report.runs if not run.told_error for finding in run.memory)
    groups = [group for group in grouped(found) if group.sentence not in causes]
    first, fault = report.runs[0].layout, report.causes[0].fault if report.causes else ""
    if fault == "tail/length":  # which has those of the first layout for evidence
        groups = [group for group in groups if first not in group.layouts]
    if fault == "layout/contiguous":  # which has those of all others
        groups = [group for group in groups if first in group.layouts]
    yield from (group.sentence for group in groups[:_MOST_STRAYS])
    if len(groups) > _MOST_STRAYS:
        yield f"and {plural(len(groups) - _MOST_STRAYS, 'more finding')} about memory, none worse: --json FILE has them"


def _sentences(report: Report) -> Iterator[str]:
    shown, broken = report.shown, next((run.broken for run in report.measured if run.broken), [])
    if report.failing and shown.compares:
        first = shown.first_mismatch
        place = f"{first.title} {place_in_words(first)}: {wrong_rows(shown, first)}" if first else ""
        yield f"wrong rows: {place}" if first else "no single element is out of bounds"
    if broken:
        yield f"identities broken: {'; '.join(identity.name for identity in broken)}"
    yield from report.notes
    yield from (f"the target warns: {words}" for words in report.target_warnings)
    if shown.undecided:
        yield f"{plural(shown.undecided, 'entry')} on the ReLU's kink, where rounding decides: either side is right"
    yield receipt(report)


def wrong_rows(run: Run, first: Element) -> str:
    """The wrong rows of an element's head: `0-71 (72 of 72)`; "" of what has none."""
    intermediate = next(intermediate for intermediate in run.compares if intermediate.title == first.title)
    head = next(head for head in intermediate.heads if (head.batch, head.head) == (first.batch, first.head))
    total = (
        f"{sum(last - start + 1 for start, last in intermediate.shown)} shown"
        if intermediate.shown
        else f"{intermediate.length}"
    )
    rows, keys = (sum(last - start + 1 for start, last in ranges) for ranges in (head.rows, head.keys))
    of_keys = f"; keys: {in_words(head.keys, 6)} ({keys})" if keys else ""
    return f"{in_words(head.rows, 6)} ({rows} of {total}){of_keys}" if rows else ""


def receipt(report: Report) -> str:
    """What was compared."""
    counts, case, runs = report.compared, report.case, len(report.measured)
    seen = sorted({len(run.compares) for run in report.measured})
    names = plural(seen[0], "intermediate") if len(seen) == 1 else f"{seen[0]} to {plural(seen[-1], 'intermediate')}"
    words = f"compared {plural(counts.elements, 'element')}: every one of {names} in {plural(runs, 'run')}"
    if case is None:
        return words
    heads = f"{plural(case.batch, 'batch')}, {plural(case.heads, 'head')}"
    return f"{words}, {heads} and {plural(case.seqlen_q, 'query row')}"


def unused(base: Base, shadow: str) -> str:
    """Says of a file that another search path would have found that it is not the one that ran."""
    return f"another file named {os.path.basename(shadow)} is on the path and was not used: {base.short(shadow)}"


def _provenance(report: Report, width: int) -> Iterator[Text]:
    target, base = report.target, base_of(report)
    seconds = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
    yield from folded(f"ran {target.backend} on {report.environment.get('device')}; seconds: {seconds}", width)
    files: dict[tuple[str, str], list[str]] = {}
    own = Source(name=target.function, file=target.file, line=target.line, sha256=target.sha256)
    for source in target.kernels or (own,):
        files.setdefault((source.file, source.sha256), []).append(f"{source.name}:{source.line}")
    for (file, digest), names in files.items():
        yield Text(f"  {base.short(file)} sha256 {digest[:12]}", "dim", overflow="ignore")
        yield from folded("  " + " ".join(names), width)
    for shadow in target.shadows:
        yield Text(f"  {unused(base, shadow)}", CAUTION)
    if cache := report.environment.get("triton_cache"):
        yield Text(f"  Triton's cache: {base.short(cache)}", "dim")
    if report.failing and report.reproduce:
        yield Text(f"  again: {report.reproduce}")
