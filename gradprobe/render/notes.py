"""What else a reader must know of a check: each kind of sentence in the order in which they are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from ..model.layout_run import RepeatedResult
from ..model.memory_finding import Group, grouped
from ..model.number import LAMBDA, in_words, listed, plural, ratio
from ..model.report import Report
from .comparison import beside
from .console import error_words
from .notation import heads_in_words, identities
from .source_places import base_of

# Notes that change what a verdict is worth, by how they begin: what was not checked at all, what is judged in another
# way than was asked for, and what was stopped before its end.
_FIRST = ("not checked", "exported in another convention", "the target changes", "stopped")


def facts_of(report: Report) -> list[str]:
    """What is known of an error without a cause: what was seen inside says more than what the results are."""
    return [*(report.failing.inside if report.failing else ()), *report.known]


def findings(report: Report) -> list[str]:
    """The sentences of one screen, the most important first."""
    return list(dict.fromkeys(sentence for kind in _IMPORTANCE for sentence in kind(report)))


def all_notes(report: Report) -> Iterator[str]:
    """Every sentence, in full; layouts and what is known stand elsewhere then."""
    if report.is_right_when_contiguous:
        yield "right when contiguous and wrong otherwise: the arithmetic is right, an address (a stride) is not"
    yield from (group.sentence for group in _strays(report))
    yield from (report.failing or report.measured[0]).inside
    for kind in (_compile_errors, _shadows, _warned, _arithmetic, _repeats, _beside, _identities):
        yield from kind(report)
    held = {key for run in report.measured for key in identities(run)}
    if held and not any(run.broken for run in report.measured):
        yield f"identities hold: {' '.join(sorted(held, key=lambda key: (len(key), key)))}"
    yield from report.notes
    yield from (f"the target warns: {words}" for words in report.target_warnings)
    if report.shown.undecided:
        count = plural(report.shown.undecided, "entry")
        yield f"{count} on the ReLU's kink, where rounding decides: either side is right"
    yield from report.hints


def limits(report: Report) -> list[str]:
    """The sentences without which a match would say too much."""
    return [*_not_judged(report), *_readings(report)]


def unseen(report: Report, facts: int) -> int:
    """How many notes are only counted: what is 0 by design, what is on the ReLU's kink, facts beyond so many."""
    quiet = sum(map(_is_quiet, report.notes)) + bool(report.measured and report.shown.undecided)
    return quiet + (0 if report.causes else max(0, len(facts_of(report)) - facts))


def in_short(sentence: str) -> str:
    """A sentence about memory without its layouts, its program and the text of its line."""
    return re.split(r" \(program |, line \d+: `|: `", re.sub(r"^in [^:]+: ", "", sentence))[0]


def _not_judged(report: Report) -> Iterator[str]:
    """Layouts without a result, those for the same reason together."""
    layouts: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        if run.told_error:
            article = "a crash" if run.verdict == "crashed" else f"an {run.verdict}"
            layouts.setdefault((f"ended in {article}", error_words(run)), []).append(run.layout)
        elif not run.is_judged and run.skipped:
            layouts.setdefault(("is refused", run.skipped), []).append(run.layout)
    for (how, why), those in layouts.items():
        verb = how if len(those) == 1 else how.replace("is ", "are ")
        yield f"{listed(those)} {verb}: {why}"


def _readings(report: Report) -> Iterator[str]:
    """In what other way its tensors were found to be meant."""
    yield from (note for note in report.notes if "of its results are right so" in note)


def _compile_errors(report: Report) -> Iterator[str]:
    yield from (f"COMPILE ERROR  {one.sentence}" for one in report.compile_errors)


def _strays(report: Report) -> list[Group]:
    """What kernels did to memory, the worst first, where no cause says it already."""
    runs = [run for run in report.runs if run.memory and not run.told_error]
    groups = grouped((run.layout, one) for run in runs for one in run.memory) if runs else []
    causes = {cause.summary for cause in report.causes}
    return [group for group in groups if group.sentence not in causes]


def _memory(report: Report) -> Iterator[str]:
    if groups := _strays(report):
        more = plural(len(groups) - 1, "finding")
        more = f" ({more} more about memory)" if len(groups) > 1 else ""
        yield f"{in_short(groups[0].sentence)}{more}"


def _shadows(report: Report) -> Iterator[str]:
    for file in report.target.shadows:
        name, place = os.path.basename(file), base_of(report).short(file)
        yield f"another file named {name} is on the path and was not used: {place}"


def _warned(report: Report) -> Iterator[str]:
    yield from (f"WARNING  {warning.words}" for warning in report.warnings)


def _arithmetic(report: Report) -> Iterator[str]:
    """What rounds coarsely; errors that are small in all layouts rather look like that than like a wrong formula.

    A fault of the formula moves an element by its own size, thousands of roundings. An accumulator of fewer bits than
    declared stays within the confidence factor of what was allowed, the room that a bound leaves beyond one rounding.
    """
    yield from report.coarser
    worst = max((one.ratio for run in report.measured for one in run.compares), default=0.0)
    if report.failing and not report.coarser and 1.0 < worst <= LAMBDA:
        name = report.shown.precision
        yield f"no error exceeds {LAMBDA:.0f}x: it looks like coarser arithmetic than {name}, not a wrong formula"


def _identities(report: Report) -> Iterator[str]:
    """Where elements are wrong a broken identity adds nothing."""
    broken = [] if report.failing else [one.name for run in report.measured for one in run.broken]
    if broken:
        yield f"identities broken: {'; '.join(dict.fromkeys(broken))}"


def target_warnings(report: Report) -> Iterator[str]:
    """How many there are: --details has their words."""
    if count := len(report.target_warnings):
        yield f"{plural(count, 'warning')} from the target: --details shows {'it' if count == 1 else 'them'}"


def _notes(report: Report) -> Iterator[str]:
    notes = [note for note in report.notes if not _is_quiet(note)]
    yield from sorted(notes, key=lambda note: not note.startswith(_FIRST))


def _is_quiet(note: str) -> bool:
    """Whether it says what is so in every right kernel."""
    return "0 by design" in note


def _beside(report: Report) -> Iterator[str] | Sequence[str]:
    return beside(report, report.against) if report.against else ()


def _beside_causes(report: Report) -> Sequence[str]:
    return report.known if report.causes else ()


def _hints(report: Report) -> Sequence[str]:
    return report.hints


def _repeats(report: Report) -> Iterator[str]:
    """Of each intermediate that repeated runs tell apart, the first layout that shows it, with the others that do."""
    runs = [run for run in report.measured if run.repeats]
    found: dict[str, list[tuple[str, RepeatedResult]]] = {}
    for run in runs:
        for result in run.repeated:
            found.setdefault(result.name, []).append((run.layout, result))
    for those in found.values():
        layouts = ", ".join(layout for layout, _ in those)
        where = f" ({layouts})" if len(runs) > 1 else ""
        yield from (f"{sentence}{where}" for sentence in _repeated(those[0][1]))
    if runs and not any(one.differing for run in runs for one in run.repeated):
        yield f"{runs[0].repeats} runs gave the same bits"


def _repeated(result: RepeatedResult) -> Iterator[str]:
    name, spread = result.name, result.spread
    if result.wrong_in == result.runs and result.wrong_heads:
        heads = heads_in_words(head for _, head in result.wrong_heads)
        yield f"{name} is wrong in {heads} in each of {result.runs} runs, {_wrong_alike(result)}"
    elif result.wrong_in:
        runs = f"{result.wrong_in} of {result.runs} runs"
        runs = "other heads" if result.wrong_in == result.runs else runs
        yield f"{name} is wrong in {runs} only: a race, or what one call leaves to the next"
    if result.differing:
        words = f"{name} differs from run to run in {plural(result.differing, 'element')}"
        if result.heads:
            words += f", {heads_in_words((head for _, head in result.heads), 6)}"
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
    """What may make two runs differ."""
    places = (f"{PurePath(at.file).name}:{at.line}" for at in result.atomics)
    atomics = f"the order of the atomics at {', '.join(dict.fromkeys(places))}"
    is_small = result.spread is None or result.spread <= 1
    if result.atomics:
        return f"{atomics}, which is rounding" if is_small else f"more than {atomics} can do"
    words = "no atomic was found that adds into it"
    return words if is_small else f"{words}; a race, or what one call leaves to the next"


# What limits the verdict comes first, then what no comparison shows, what was asked for, and what to do next.
_IMPORTANCE: Sequence[Callable[[Report], Iterator[str] | Sequence[str]]] = (
    _not_judged, _readings, _compile_errors, _memory, _shadows, _warned, _arithmetic, _repeats, _beside, _beside_causes,
    _identities, _notes, target_warnings, _hints,
)  # fmt: skip
