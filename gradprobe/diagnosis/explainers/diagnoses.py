"""Suspects in words: diagnoses, each with its sentences and with the lines at fault and those beside them."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ...frontends import source
from ...frontends.triton.interpreter.dataflow import places
from ...model.intermediates import entered_by, parents_of, title
from ...model.mechanisms import gathered
from ...model.report import CONSISTENT, AxisReach, Diagnosis, Where
from ...source.kernel_file import passed_of_others
from ..lines import among
from .suspect import LOOP, LOST, Chain, Suspect


@dataclass(frozen=True)
class _Kind:
    """How the suspects of one kind are told."""

    fault_class: str
    verb: str
    """What is done at the line."""
    summary: str


_KINDS = {
    "load": _Kind("S1", "read", "{kernel} reads the wrong elements of {tensor}"),
    "masked": _Kind("M3", "read", "{kernel} masks out elements of {tensor} that it needs"),
    "store": _Kind("S3", "written", "{kernel} writes {tensor} to the wrong elements"),
    "value": _Kind("A", "computed", "{kernel} computes {value} wrongly at line {line}: {inputs}"),
    "stored": _Kind("A", "stored", "{kernel} {reason}"),
    "pairs": _Kind("M2", "summed", "{results} not summed over {terms}, in {kernel}"),
    "unstored": _Kind("M2", "written", "{kernel} leaves a part of {name} unwritten: {reason}"),
}
_OF_ACCESSES = ("load", "masked", "store")
# Of the indices that an access misses: as many as a picture has room for.
_MOST_REACHED = 12


def diagnoses_of(found: Sequence[Suspect], family: str = "softmax") -> list[Diagnosis]:
    """The diagnoses of suspects, those of one fault together."""
    sure, groups = [one for one in found if one.is_sure], dict[tuple[str, str], list[Suspect]]()
    sums = [one for one in found if one.kind == "pairs" and not one.is_sure]
    for suspect in [*sure, *sums] if sure else found:
        # What one loop leaves out of two results is one fault.
        of = f"{suspect.site.kernel}: {suspect.reason}" if suspect.kind == "pairs" else suspect.name
        groups.setdefault((suspect.kind, of), []).append(suspect)
    made = [_diagnosis(group, family) for group in groups.values()]
    return [replace(one, also=number > 0) for number, one in enumerate(made)]


def _diagnosis(group: Sequence[Suspect], family: str) -> Diagnosis:
    first, where = group[0], [_where(one) for one in group]
    beside = [line for one, place in zip(group, where, strict=True) for line in _beside(one, place)]
    # A line has the last of its notes, in the first of its places.
    lines = {(place.file, place.line): place for place in (*where, *beside, *where)}
    # What is right before the operation and wrong after it, it says both of.
    says_wrong = entered_by(first.name) if first.kind == "value" else ()
    says_right = parents_of(first.name, family) if first.kind == "value" else ()
    says_right += says_wrong if any(one.is_spoilt for one in group) else ()
    slug = re.sub(r"[^\w]+", "-", first.name).strip("-")
    return Diagnosis(
        f"{first.kind}/{slug or 'result'}",
        LOST if first.is_lost else _KINDS[first.kind].fault_class,
        _summary(first, list(dict.fromkeys(one.name for one in group))),
        1.0 if first.is_sure else CONSISTENT,
        tuple(dict.fromkeys(_reasons(group, where))),
        tuple(lines.values()),
        reached=next(filter(None, map(_reached, group)), None),
        seen=f"seen in {where[0].kernel}, {first.extent}",
        says_wrong=says_wrong,
        says_right=says_right,
    )


def _reached(suspect: Suspect) -> AxisReach | None:
    pairs = tuple((there, None if here < 0 else here) for there, here in suspect.reached[:_MOST_REACHED])
    is_store = suspect.kind == "store"
    return AxisReach(tensor=suspect.name, letter=suspect.letter, pairs=pairs, is_store=is_store) if pairs else None


# --- sentences


def _summary(suspect: Suspect, names: Sequence[str]) -> str:
    of_keys = set(names) <= {"dK", "dV"}
    return _KINDS[suspect.kind].summary.format(
        kernel=suspect.site.kernel, name=suspect.name, tensor=title(suspect.name), reason=suspect.reason,
        value=_value(suspect.name), line=places(suspect.lines)[-1].line, inputs=suspect.inputs,
        results=f"{' and '.join(names)} {'are' if names[1:] else 'is'}",
        terms="the rows that see each key" if of_keys else "the keys that each row sees",
    )  # fmt: skip


def _value(name: str) -> str:
    """A value, with what is wrong by it."""
    step = [other for other in entered_by(name) if other != name]
    return f"{name}, and so {step[0]}," if len(step) == 1 else name or "a value"


def _reasons(group: Sequence[Suspect], where: Sequence[Where]) -> Iterator[str]:
    """What is wrong at each line; of what a helper does in several calls, with the call."""
    said = [f"{at.kernel}, line {at.line}: {one.reason}" for one, at in zip(group, where, strict=True)]
    for words, one in zip(said, group, strict=True):
        called = _called(one.site.lines) if said.count(words) > 1 else ""
        yield f"{words} ({one.extent}{called})"


def _called(chain: Chain) -> str:
    """The calls that led to a line."""
    *calls, _ = places(chain)
    return f", called at line {', '.join(str(call.line) for call in calls)}" if calls else ""


# --- lines


def _where(suspect: Suspect) -> Where:
    """The line at fault, and the calls that led there."""
    does = f"{title(suspect.name)} is {_KINDS[suspect.kind].verb} here" if suspect.name else "wrong here"
    return _line(suspect, *_last(suspect.lines), does + _called(suspect.lines))


def _line(suspect: Suspect, file: str, line: int, note: str) -> Where:
    return among(Where(file, line, linecache.getline(file, line).strip(), kernel=suspect.site.kernel, note=note))


def _last(chain: Chain) -> tuple[str, int]:
    """The file and the line of the innermost one."""
    place = places(chain)[-1]
    return place.file, place.line


def _beside(suspect: Suspect, place: Where) -> Iterator[Where]:
    """The lines of what enters a wrong operation unseen: its mask, its terms, the range of its loop."""
    file, line = place.file, place.line
    used = f"used in {title(suspect.name)} here" if suspect.name else "used here"
    note = "its address" if suspect.kind in _OF_ACCESSES else used
    lines = [(*_last(chain), "worked on here") for chain in suspect.used]
    lines += [(*_last(chain), note) for chain in suspect.beside]
    if suspect.site.operation == "select" or suspect.kind == "masked":
        lines += [(file, at, "the mask") for at in source(file).masks(line)]
    if suspect.kind in _OF_ACCESSES:
        passed = gathered("lint", passed_of_others, file, suspect.site.kernel, suspect.name)
        lines += [(file, at, "passed here") for at in passed]
        masking = [_last(chain) for chain in suspect.used if suspect.letter]
        lines += [(of, at, LOOP) for of, masked in masking for at in source(of).loops(masked)]
        lines += [] if suspect.beside else [(file, at, note) for at in source(file).address(line)]
    elif suspect.kind == "value":
        lines += _beside_value(file, line, lines)
    elif suspect.kind == "unstored":
        lines += [(file, at, "launched here") for at in source(file).grids(suspect.site.kernel)]
    elif suspect.kind == "pairs":
        lines = _beside_pairs(suspect)
    yield from (_line(suspect, *each) for each in lines)


def _beside_value(file: str, line: int, entering: Sequence[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    masked = [(file, line), *((of, made) for of, made, _ in entering)]
    return [(of, at, "the mask") for of, made in masked for at in source(of).masks(made, of_accesses=False)]


def _beside_pairs(suspect: Suspect) -> list[tuple[str, int, str]]:
    summed = [line for chain in (suspect.lines, *suspect.beside) for line in places(chain)]
    loops = [(line.file, at, LOOP) for line in summed for at in source(line.file).loops(line.line)]
    # What is left out may be so by where a loop begins or ends.
    return [*loops, *((line.file, at, LOOP) for line in summed for at in source(line.file).ends(line.line))]
