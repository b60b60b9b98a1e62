"""Suspects, operations of a failing run that go wrong although what they work on is right; and what is told of them."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...frontends import source
from ...frontends.triton.interpreter.dataflow import Line, Site, places
from ...lint.reading import passed_of_others
from ...model.intermediates import entered_by, parents_of, title
from ...model.mechanisms import gathered
from ...model.report import CONSISTENT, AxisReach, Diagnosis, Where
from ..lines import among

Chain = tuple[Line, ...]
"""A line of a kernel, then those in the functions that it called to get there."""
# The class of sums that lose what was summed: it is overwritten, or added twice.
LOST = "ACC"
# The note of lines that stand beside a sum: each may be where it leaves something out.
LOOP = "the loop"


@dataclass(frozen=True)
class Suspect:
    """One operation that goes wrong although what it works on is right."""

    kind: str
    """load, store: it reads, or writes, other elements than it should; masked: it leaves out what is needed; value: its
    operands are right and its result is not; stored: it is right but for a constant; pairs: rows and keys are left out
    of what is stored; unstored: no program stores some of a result.
    """
    name: str
    """The intermediate that is wrong there, or the tensor that is misread; "" where it is not known."""
    site: Site
    lines: Chain
    """Those of the site up to the one that is the fault: of a helper that is right elsewhere, its caller's."""
    reason: str
    """One sentence."""
    inputs: str = "its inputs are right"
    """Of a value, what is right there, or how it is off."""
    is_sure: bool = True
    """Whether it goes wrong whenever it runs, or what is made of it is wrong too."""
    beside: Sequence[Chain] = ()
    """Where that is made which enters there: of an access, its address; of a value, what was compared with nothing; of
    pairs, the other dots that sum them."""
    reach: AxisReach | None = None
    """Of a load or a store, the indices that it should reach, and those that it does."""
    is_open: bool = False
    """Whether it is right where rows see keys, not masked where they do not, and summed over."""
    is_lost: bool = False
    """Of pairs, whether products of them were made, so that what was summed is lost."""
    is_spoilt: bool = False
    """Of a value, whether it is right before the operation, which should leave it as it is."""


def blamed(site: Site, right: Iterable[Site]) -> Chain:
    """The lines of a site without the innermost ones that are right where something else calls them."""
    lines, elsewhere = site.lines, set[Chain]()
    for other in right:
        if (other.operation, other.instruction) == (site.operation, site.instruction):
            elsewhere |= {other.lines[at:] for at in range(len(other.lines))}
    for depth in range(1, len(lines)):
        if lines[-depth:] not in elsewhere:
            return lines[: len(lines) - depth + 1]
    return lines[:1]


# --- in words


# By kind: the class of the fault, what is done at the line, and the summary.
_KINDS = {
    "load": ("S1", "read", "{kernel} reads the wrong elements of {tensor}"),
    "masked": ("M3", "read", "{kernel} masks out elements of {tensor} that it needs"),
    "store": ("S3", "written", "{kernel} writes {tensor} to the wrong elements"),
    "value": ("A", "computed", "{kernel} computes {value} wrongly at line {line}: {inputs}"),
    "stored": ("A", "stored", "{kernel} {reason}"),
    "pairs": ("M2", "summed", "{results} not summed over {terms}, in {kernel}"),
    "unstored": ("M2", "written", "{kernel} leaves a part of {name} unwritten: {reason}"),
}
_OF_ACCESSES = ("load", "masked", "store")


def diagnoses_of(found: Sequence[Suspect], family: str = "softmax") -> list[Diagnosis]:
    """The diagnoses of suspects, those of one fault together."""
    groups: dict[tuple[str, str], list[Suspect]] = {}
    sure = [suspect for suspect in found if suspect.is_sure]
    if sure:
        found = sure + [suspect for suspect in found if suspect.kind == "pairs" and not suspect.is_sure]
    for suspect in found:
        # What one loop leaves out of two results is one fault.
        of = suspect.site.kernel + suspect.reason if suspect.kind == "pairs" else suspect.name
        groups.setdefault((suspect.kind, of), []).append(suspect)
    made: list[Diagnosis] = []
    for group in groups.values():
        made.append(_diagnosis(group, family, also=bool(made)))
    return made


def _diagnosis(group: Sequence[Suspect], family: str, also: bool) -> Diagnosis:
    first, names = group[0], list(dict.fromkeys(suspect.name for suspect in group))
    where: dict[tuple[str, int], Where] = {}
    for suspect in group:
        _add(where, suspect, _last(suspect.lines), _fault(suspect))
    for suspect in group:
        for place, note in _beside(suspect):
            _add(where, suspect, place, note)
    says_wrong = says_right = tuple[str, ...]()
    if first.kind == "value":
        says_wrong, says_right = entered_by(first.name), parents_of(first.name, family)
        if any(suspect.is_spoilt for suspect in group):
            says_right += says_wrong  # right before the operation, and wrong after it
    slug = re.sub(r"[^\w]+", "-", first.name).strip("-")
    return Diagnosis(
        f"{first.kind}/{slug or 'result'}",
        LOST if first.is_lost else _KINDS[first.kind][0],
        _summary(first, names),
        1.0 if first.is_sure else CONSISTENT,
        tuple(dict.fromkeys(map(_sentence, group))),
        tuple(where.values()),
        also=also,
        reached=next((suspect.reach for suspect in group if suspect.reach), None),
        seen=f"seen in {first.site.kernel}",
        says_wrong=says_wrong,
        says_right=says_right,
    )


def _summary(first: Suspect, names: Sequence[str]) -> str:
    step = [name for name in entered_by(first.name) if name != first.name]
    is_step = len(step) == 1  # to one intermediate, which is wrong by it
    return _KINDS[first.kind][2].format(
        kernel=first.site.kernel,
        name=first.name,
        tensor=title(first.name),
        reason=first.reason,
        value=f"{first.name}, and so {step[0]}," if is_step else first.name or "a value",
        line=_last(first.lines)[1],
        inputs=first.inputs,
        results=f"{' and '.join(names)} {'are' if names[1:] else 'is'}",
        terms="the rows that see each key" if {*names} <= {"dK", "dV"} else "the keys that each row sees",
    )


def _sentence(suspect: Suspect) -> str:
    line = f"line {_last(suspect.lines)[1]}{_calls(suspect.site.lines)}"
    return f"{suspect.site.kernel}, {line}: {suspect.reason}"


def _calls(chain: Chain) -> str:
    """The calls that led to a line."""
    lines = [str(place.line) for place in places(chain)[:-1]]
    return f", called at line {', '.join(lines)}" if lines else ""


def _fault(suspect: Suspect) -> str:
    """The note of the line at fault."""
    does = f"{title(suspect.name)} is {_KINDS[suspect.kind][1]} here" if suspect.name else "wrong here"
    return does + _calls(suspect.lines)


# --- lines


def _add(where: dict[tuple[str, int], Where], suspect: Suspect, place: tuple[str, int], note: str) -> None:
    """A line has the first of its notes."""
    if place not in where:
        file, line = place
        code = linecache.getline(file, line).strip()
        where[place] = among(Where(file, line, code, kernel=suspect.site.kernel, note=note))


def _last(chain: Chain) -> tuple[str, int]:
    """The file and the line of the innermost one."""
    place = places(chain)[-1]
    return place.file, place.line


def _beside(suspect: Suspect) -> Iterator[tuple[tuple[str, int], str]]:
    """The lines of what enters a wrong operation unseen: its address, its mask, its terms, the range of its loop."""
    if suspect.kind == "pairs":
        yield from _loops([suspect.lines, *suspect.beside])
        return
    file, line = _last(suspect.lines)
    own, entering = source(file), [_last(chain) for chain in suspect.beside]
    is_access = suspect.kind in _OF_ACCESSES
    note = "its address" if is_access else f"used in {title(suspect.name)} here" if suspect.name else "used here"
    yield from ((place, note) for place in entering)
    if suspect.kind == "masked" or suspect.site.operation == "select":
        yield from (((file, at), "the mask") for at in own.masks(line))
    if is_access:
        passed = gathered("lint", passed_of_others, file, suspect.site.kernel, suspect.name)
        yield from (((file, each.where.line), "passed here") for each in passed)
    if is_access and not entering:
        yield from (((file, at), note) for at in own.address(line))
    if suspect.kind == "value":
        for of, at in ((file, line), *entering):
            yield from (((of, mask), "the mask") for mask in source(of).masks(at, of_accesses=False))
    if suspect.kind == "unstored":
        yield from (((file, at), "launched here") for at in own.grids(suspect.site.kernel))


def _loops(chains: Sequence[Chain]) -> Iterator[tuple[tuple[str, int], str]]:
    """The loops around some lines, then where these begin and end: what is left out may be so by either."""
    lines = [place for chain in chains for place in places(chain)]
    for place in lines:
        yield from (((place.file, at), LOOP) for at in source(place.file).loops(place.line))
    for place in lines:
        yield from (((place.file, at), LOOP) for at in source(place.file).ends(place.line))
