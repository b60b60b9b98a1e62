"""How numbers, heads, marks and findings are written for people."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from ..model.documents import Reports, report_from
from ..model.intermediates import lookup
from ..model.layout_run import (
    INHERITED,
    MATCH,
    MISMATCH,
    CloseUp,
    Element,
    Head,
    Identity,
    Intermediate,
    Run,
)
from ..model.memory_finding import WARNING, MemoryFinding
from ..model.number import in_words, plural, ratio, spans
from ..model.report import Diagnosis, Report, TriedEdit
from .files import document

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


WRONG_SIGN, INHERITED_SIGN, TIMES, TILE_SIGNS = "✗", "↳", "×", "·░▒▓█"

# Legible on white and on black, with a contrast of 4.5 to each; a terminal's yellow has 1.7 to white.
CAUTION = "color(130)"
BAD, GOOD = "bold red", "bold green"
STYLES = {MISMATCH: BAD, INHERITED: CAUTION}
# A miss of less than this share of an intermediate's largest value is small in itself, however many budgets it is.
_SMALL = 0.01
RIGHT_WHEN_CONTIGUOUS = "Right when contiguous: the arithmetic is right, a stride is not."
_NOTHING: dict[str, Any] = {
    "verdict": MATCH, "runs": (), "error": None, "strides": None, "first_mismatch": None, "diagnoses": ()
}  # fmt: skip


def group(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def value(number: float | None) -> str:
    return "non-finite" if number is None else f"{number + 0.0:.4g}"  # -0.0 + 0.0 is 0.0


def greppable(run: Run, memory: Sequence[MemoryFinding] = ()) -> str:
    if run.first_mismatch:
        return element_line(run.first_mismatch)
    return identity_line(run.broken[0]) if run.broken else stray_line(memory[0])


def element_line(element: Element) -> str:
    """The one greppable line; its form never changes."""
    words = _numbers(element.actual, element.expected, element.ratio)
    if element.shard is not None:
        rank, step = map(_index, (element.rank, element.step))
        words = f"shard={element.shard} rank={rank} step={step} {words}"
    place = element.batch, element.head, element.row, element.col
    return _line(element.accused, place, words, element.tile)


def identity_line(identity: Identity) -> str:
    words = _numbers(identity.residual, 0.0, identity.ratio)
    return _line(identity.key, (None,) * 4, words)


def stray_line(finding: MemoryFinding) -> str:
    row = lookup(finding.tensor)
    name = (row.name if row else finding.tensor) or finding.kind
    words = f"actual={finding.actual} expected={finding.expected} ratio=-"
    return _line(name, finding.place, words)


def _line(
    name: str, place: Sequence[int | None], words: str, tile: Sequence[int | None] = (None, None)
) -> str:
    batch, head, row, col, m, n = map(_index, (*place, *tile))
    return f"FIRST MISMATCH {name} batch={batch} head={head} row={row} col={col} tile={m},{n} {words}"


def _index(index: int | None) -> str:
    return "-" if index is None else str(index)


def _numbers(actual: float | None, expected: float | None, times: float) -> str:
    return f"actual={value(actual)} expected={value(expected)} ratio={ratio(times)}x"


def size_in_words(element: Element) -> str:
    """`off by 1e-06 of values up to 0.01`; "" of a large miss."""
    error, largest = element.error, element.largest
    if error is None or not largest or not error < _SMALL * largest:
        return ""
    return f"off by {error:.1g} of values up to {largest:.2g}"


def errors_of(report: Report) -> Report:
    """Without runs and findings about memory that do not count."""
    if report.is_warning:
        return replace(report, **_NOTHING)
    runs = []
    for run in report.runs:
        if run.severity != WARNING:
            counted = (finding for finding in run.memory if finding.severity != WARNING)
            runs.append(replace(run, memory=tuple(counted)))
    return replace(report, runs=tuple(runs))


def so_far(several: Reports, code: int | None) -> list[Report]:
    """The reports, of unlike names; an unfinished one too as long as there is no exit code."""
    found: dict[str, Report] = {}
    unfinished = () if code is not None else (report_from(document("")),)
    for report in (*several.reports, *unfinished):
        named, number = report, 1
        while named.name in found:
            number += 1
            named = replace(report, title=f"{report.title} {number}".strip())
        found[named.name] = named
    return list(found.values())


def identities(run: Run) -> dict[str, Identity]:
    """By key; of one tried more than once, the broken one."""
    found: dict[str, Identity] = {}
    for identity in run.invariants:
        if identity.of == "target" and (identity.key not in found or not identity.holds):
            found[identity.key] = identity
    return found


def residual(identity: Identity) -> str:
    off = identity.residual
    left = "a value that is not finite" if off is None else f"{off:.4g}"
    return f"{identity.name} is off by {left}, {ratio(identity.ratio)}x what is allowed"


def heads_in_words(numbers: Iterable[int], most: int = 8) -> str:
    found = sorted(set(numbers))
    return f"head{'s' * (len(found) != 1)} {in_words(spans(found), most)}"


def heads_having(intermediate: Intermediate, status: str) -> str:
    wrong = {head.head for head in intermediate.having(status)}
    if len(wrong) == intermediate.count:
        return "every head" if intermediate.count > 1 else "the only head"
    return f"{heads_in_words(wrong)} of {intermediate.count}"


def blame(run: Run, *, inherits: bool = True) -> str:
    by_status: dict[str, list[Intermediate]] = {}
    for one in run.intermediates:
        by_status.setdefault(one.status, []).append(one)
    if MISMATCH not in by_status:
        within = "every element is within budget, but " if run.compares else ""
        return f"{within}the target breaks {run.broken[0].name}"
    first, (own, *more) = run.first_mismatch, by_status[MISMATCH]
    inseparable = first.inseparable if first is not None and first.title == own.title else ()
    words = f"{' or '.join((own.title, *inseparable))} is the first wrong intermediate"
    words += f" in {heads_having(own, MISMATCH)}" if own.count > 1 else ""
    if others := [one.title for one in more if one.name not in inseparable]:
        words += f"; wrong by itself too: {', '.join(others)}"
    if inherits and INHERITED in by_status:
        words += f"; only inherited: {', '.join(one.title for one in by_status[INHERITED])}"
    return words


def place_in_words(part: Element | CloseUp) -> str:
    return f"{'' if part.batch is None else f'batch {part.batch}, '}head {part.head}"


def counts_in_words(part: Intermediate | Head) -> str:
    wrong = plural(part.mismatched, "element")
    words = f"{wrong} wrong, worst {ratio(part.ratio)}x what is allowed"
    rows = part.rows if isinstance(part, Head) else ()
    return words + (f", rows {in_words(rows)}" if rows else "")


def in_short(sentence: str) -> str:
    """A sentence about memory without its layouts, program and line."""
    return re.split(r" \(program |, line \d+: `|: `", re.sub(r"^in [^:]+: ", "", sentence))[0]


def edit_name(edit: TriedEdit) -> str:
    if edit.is_certain:
        return "Fix"
    return "Matches here" if edit.matches else "Closest edit"


def cause_in_words(diagnosis: Diagnosis) -> str:
    cause = "Cause" if diagnosis.is_named else "Consistent with"
    fix = f" Fix: {diagnosis.fix}." if diagnosis.fix else ""
    if (edit := diagnosis.edit) is not None and edit.diff:
        certain = ": the cause is certain" if diagnosis.is_certain else ""
        fix = f" {edit_name(edit)}, tried: {edit.words}{certain}."
    return f"{cause}: {diagnosis.summary} ({diagnosis.extent}).{fix}"


def quoted(title: str) -> str:
    return f'"{title}"' if "," in title else title
