"""What else a reader must know of a check, in the order in which it is shown."""

import re
from collections.abc import Iterator
from pathlib import PurePath

from ..model.layout_run import CRASHED, RepeatedResult
from ..model.memory_finding import WARNING, Group, MemoryFinding, grouped
from ..model.number import LAMBDA, plural, ratio, some
from ..model.report import Report
from .comparison import beside
from .console import error_words
from .notation import RIGHT_WHEN_CONTIGUOUS, group, heads_in_words, in_short, quoted
from .source_places import base_of

# Notes that change what a verdict is worth, by how they begin: what was not checked at all, what is judged in another
# way than was asked for, and what was stopped before its end.
_QUIET = "0 by design"  # in what is so in every right kernel
_FIRST = ("not checked", "exported in another convention", "the target changes", "stopped")


def findings(report: Report) -> list[str]:
    """The sentences of one screen, the most important first."""
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
    if report.is_right_when_contiguous:
        yield RIGHT_WHEN_CONTIGUOUS
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
    readings = [note for note in report.notes if "of its results are right so" in note]
    return [*not_judged(report), *readings]


def not_judged(report: Report) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    whys: dict[tuple[str, str], str] = {}
    for run in report.runs:
        how, why = "refused", "" if run.is_judged else run.skipped or ""
        if run.told_error:
            how = "ended in a crash" if run.verdict == CRASHED else f"ended in an {run.verdict}"
            why = error_words(run)
        if not why or run.severity == WARNING:
            continue
        alike = how, re.sub(r"\d+", "0", why)
        whys.setdefault(alike, why)
        found.setdefault(alike, []).append(quoted(run.layout))
    for alike, layouts in found.items():
        be = "" if alike[0] != "refused" else "is " if len(layouts) == 1 else "are "
        yield f"{some(layouts)} {be}{alike[0]}: {whys[alike]}"


def _strays(report: Report) -> list[Group]:
    found = list[tuple[str, MemoryFinding]]()
    for run in report.runs:
        for finding in () if run.told_error else run.memory:
            found.append((run.layout, finding))
    causes = [cause.summary for cause in report.causes]
    strays = grouped(found) if found else []
    return [stray for stray in strays if stray.sentence not in causes]


def _observed(report: Report) -> Iterator[str]:
    for error in report.compile_errors:
        yield f"COMPILE ERROR  {error.sentence}"
    for file in report.target.shadows:
        yield f"what has the target's name is on the path too and was not used: {base_of(report).short(file)}"
    for warning in report.warnings:
        where = f" ({some(map(quoted, warning.layouts))})" if warning.layouts else ""
        yield f"WARNING  {warning.words}{where}"
    for copied, runs in group(report.runs, lambda run: ", ".join(run.copied)).items():
        if copied:
            layouts = some(quoted(run.layout) for run in runs)
            yield f"the wrapper copied {copied} in {layouts}, so the kernels never saw those strides"
    yield from report.coarser
    # A fault of the formula moves an element by its own size, thousands of roundings. An accumulator of fewer bits than
    # declared stays within the confidence factor of what was allowed, the room that a bound leaves beyond one rounding.
    worst = max((one.ratio for run in report.measured for one in run.compares), default=0.0)
    if report.failing and not report.coarser and 1.0 < worst <= LAMBDA:
        name = report.shown.precision
        yield f"no error exceeds {LAMBDA:.0f}x: it looks like coarser arithmetic than {name}, not a wrong formula"
    # A survey runs a layout twice over other memory.
    yield from _repeats(report) if report.strides is None else ()
    yield from beside(report, report.against) if report.against else ()
    # Where elements are wrong a broken identity adds nothing.
    broken = [one.name for run in report.measured for one in run.broken]
    if broken and not report.failing:
        yield f"identities broken: {'; '.join(dict.fromkeys(broken))}"


def target_warnings(report: Report) -> Iterator[str]:
    if count := len(report.target_warnings):
        yield f"{plural(count, 'warning')} from the target: --details shows {'it' if count == 1 else 'them'}"


def _repeats(report: Report) -> Iterator[str]:
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


def _repeated(result: RepeatedResult) -> Iterator[str]:
    name, spread = result.name, result.spread
    if result.wrong_in == result.runs and result.wrong_heads:
        heads = heads_in_words(head for _, head in result.wrong_heads)
        is_same = not (result.wrong_spread or result.differing)
        same = ", by the same numbers: not noise" if is_same else ""
        yield f"{name} is wrong in {heads} in each of {result.runs} runs{same}"
    elif result.wrong_in:
        others = "other heads" if result.wrong_in == result.runs else ""
        runs = others or f"{result.wrong_in} of {result.runs} runs only"
        yield f"{name} is wrong in {runs}: a race, or what one call leaves to the next"
    if not result.differing:
        return
    words = f"{name} differs from run to run in {plural(result.differing, 'element')}"
    if result.heads:
        words += f", {heads_in_words((head for _, head in result.heads), 6)}"
    if spread is not None:
        words += f", by up to {ratio(spread)}x what is allowed"
    is_small = spread is None or spread <= 1
    if result.atomics:
        places = dict.fromkeys(f"{PurePath(at.file).name}:{at.line}" for at in result.atomics)
        atomics = f"the order of the atomics at {', '.join(places)}"
        yield f"{words}: {f'{atomics}, which is rounding' if is_small else f'more than {atomics} can do'}"
    else:
        race = "" if is_small else "; a race, or what one call leaves to the next"
        yield f"{words}: no atomic was found that adds into it{race}"
