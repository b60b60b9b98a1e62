"""What else a reader must know of a check: each kind of sentence in the order in which they are shown."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from ..model.layout_run import CRASHED, RepeatedResult
from ..model.memory_finding import Group, MemoryFinding, grouped
from ..model.number import LAMBDA, in_words, listed, plural, ratio
from ..model.report import Report
from .comparison import beside
from .console import error_words
from .notation import group, heads_in_words, in_short
from .source_places import base_of

# Notes that change what a verdict is worth, by how they begin: what was not checked at all, what is judged in another
# way than was asked for, and what was stopped before its end.
_QUIET = "0 by design"  # in what is so in every right kernel
_FIRST = ("not checked", "exported in another convention", "the target changes", "stopped")


def findings(report: Report) -> list[str]:
    """The sentences of one screen, the most important first.

    What limits the verdict comes first, then what no comparison shows, what was asked for, and what to do next.
    """
    known = report.known if report.causes else ()
    told = limits(report)
    if strays := _strays(report):
        more = f" ({plural(len(strays) - 1, 'finding')} more about memory)"
        told.append(in_short(strays[0].sentence) + (more if len(strays) > 1 else ""))
    told += [*_observed(report), *known]
    told += sorted(report.notes, key=lambda note: not note.startswith(_FIRST))
    told += [*target_warnings(report), *report.hints]
    return [note for note in dict.fromkeys(told) if _QUIET not in note]


def all_notes(report: Report) -> Iterator[str]:
    """Every sentence, in full; layouts and what is known stand elsewhere then."""
    if report.is_right_when_contiguous:
        yield "right when contiguous and wrong otherwise: the arithmetic is right, an address (a stride) is not"
    for stray in _strays(report):
        yield stray.sentence
    yield from (report.failing or report.measured[0]).inside
    yield from _observed(report)
    yield from report.notes
    yield from map("the target warns: {}".format, report.target_warnings)
    if report.shown.undecided:
        count = plural(report.shown.undecided, "entry")
        yield f"{count} on the ReLU's kink, where rounding decides: either side is right"
    yield from report.hints


def limits(report: Report) -> list[str]:
    """The sentences without which a match would say too much: what is not judged, and what is meant otherwise."""
    readings = [note for note in report.notes if "of its results are right so" in note]
    return [*_not_judged(report), *readings]


def _not_judged(report: Report) -> Iterator[str]:
    """Layouts without a result, those for the same reason together."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        if run.told_error:
            end = "a crash" if run.verdict == CRASHED else f"an {run.verdict}"
            found.setdefault((f"ended in {end}", error_words(run)), []).append(run.layout)
        elif not run.is_judged and run.skipped:
            found.setdefault(("refused", run.skipped), []).append(run.layout)
    for (how, why), layouts in found.items():
        be = "is " if len(layouts) == 1 else "are "
        yield f"{listed(layouts)} {be if how == 'refused' else ''}{how}: {why}"


def _strays(report: Report) -> list[Group]:
    """What kernels did to memory, the worst first, where no cause says it already."""
    found = list[tuple[str, MemoryFinding]]()
    for run in report.runs:
        for finding in () if run.told_error else run.memory:
            found.append((run.layout, finding))
    causes = [cause.summary for cause in report.causes]
    return [stray for stray in grouped(found) if stray.sentence not in causes]


def _observed(report: Report) -> Iterator[str]:
    """What no comparison shows, and what was asked for besides."""
    for error in report.compile_errors:
        yield f"COMPILE ERROR  {error.sentence}"
    for file in report.target.shadows:
        folder, name = os.path.split(file)
        what = f"another file named {name}"
        if name == "__init__.py":
            what = f"a package named {os.path.basename(folder)}"
        yield f"{what} is on the path and was not used: {base_of(report).short(file)}"
    for warning in report.warnings:
        yield f"WARNING  {warning.words}"
    yield from report.coarser
    # A fault of the formula moves an element by its own size, thousands of roundings. An accumulator of fewer bits than
    # declared stays within the confidence factor of what was allowed, the room that a bound leaves beyond one rounding.
    worst = max((one.ratio for run in report.measured for one in run.compares), default=0.0)
    if report.failing and not report.coarser and 1.0 < worst <= LAMBDA:
        name = report.shown.precision
        yield f"no error exceeds {LAMBDA:.0f}x: it looks like coarser arithmetic than {name}, not a wrong formula"
    yield from _repeats(report)
    yield from beside(report, report.against) if report.against else ()
    # Where elements are wrong a broken identity adds nothing.
    broken = [one.name for run in report.measured for one in run.broken]
    if broken and not report.failing:
        yield f"identities broken: {'; '.join(dict.fromkeys(broken))}"


def target_warnings(report: Report) -> Iterator[str]:
    """How many there are: --details has their words."""
    if count := len(report.target_warnings):
        yield f"{plural(count, 'warning')} from the target: --details shows {'it' if count == 1 else 'them'}"


def _repeats(report: Report) -> Iterator[str]:
    """Of each intermediate that repeated runs tell apart, the first layout that shows it, with the others that do."""
    runs = [run for run in report.measured if run.repeats]
    if not runs:
        return
    repeated = [(run.layout, result) for run in runs for result in run.repeated]
    for those in group(repeated, lambda pair: pair[1].name).values():
        layouts = ", ".join(layout for layout, _ in those)
        where = f" ({layouts})" if len(runs) > 1 else ""
        for sentence in _repeated(those[0][1]):
            yield sentence + where
    if not any(result.differing for _, result in repeated):
        yield f"{runs[0].repeats} runs gave the same bits"


def _heads(heads: Iterable[tuple[int | None, int]], most: int = 8) -> str:
    return heads_in_words((head for _, head in heads), most)


def _repeated(result: RepeatedResult) -> Iterator[str]:
    name, spread = result.name, result.spread
    if result.wrong_in == result.runs and result.wrong_heads:
        runs = f"{_heads(result.wrong_heads)} in each of {result.runs} runs"
        yield f"{name} is wrong in {runs}, {_wrong_alike(result)}"
    elif result.wrong_in:
        runs = f"{result.wrong_in} of {result.runs} runs"
        runs = "other heads" if result.wrong_in == result.runs else runs
        yield f"{name} is wrong in {runs} only: a race, or what one call leaves to the next"
    if result.differing:
        words = f"{name} differs from run to run in {plural(result.differing, 'element')}"
        if result.heads:
            words += f", {_heads(result.heads, 6)}"
        if result.tiles:
            rows = "keys" if name in ("dK", "dV") else "rows"
            words += f", tiles {in_words(result.tiles, 6)} of {result.block} {rows}"
        words += "" if spread is None else f", by up to {ratio(spread)}x what is allowed"
        yield f"{words}: {_order(result)}"


def _wrong_alike(result: RepeatedResult) -> str:
    spread = result.wrong_spread if result.wrong_spread is not None or result.differing else 0.0
    if spread is None:
        return "and differs between them"
    if spread > 1:
        return f"by numbers that differ by up to {ratio(spread)}x what is allowed"
    close = f" to {ratio(spread)} of what is allowed" if spread else ""
    return f"by the same numbers{close}: not noise"


def _order(result: RepeatedResult) -> str:
    places = (f"{PurePath(at.file).name}:{at.line}" for at in result.atomics)
    atomics = f"the order of the atomics at {', '.join(dict.fromkeys(places))}"
    is_small = result.spread is None or result.spread <= 1
    if result.atomics:
        return f"{atomics}, which is rounding" if is_small else f"more than {atomics} can do"
    words = "no atomic was found that adds into it"
    return words if is_small else f"{words}; a race, or what one call leaves to the next"
