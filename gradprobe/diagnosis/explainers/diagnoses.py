"""Suspects, operations that go wrong although what they work on is right; and what is told of them."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...frontends import source
from ...frontends.triton.interpreter.dataflow import Site
from ...lint.reading import passed_of_others
from ...model.intermediates import entered_by, parents_of, title
from ...model.mechanisms import gathered
from ...model.report import CONSISTENT, Diagnosis, Where
from ...source.text import SourceLine
from ..lines import among

Chain = tuple[SourceLine, ...]
"""A line of a kernel, then those in the functions that it called to get there."""
Place = tuple[str, int]
# The note of lines that stand beside a sum: each may be where it leaves something out.
LOOP = "the loop"


@dataclass(frozen=True)
class Suspect:
    """One operation that goes wrong although what it works on is right."""

    kind: str
    """load, store: other elements are read, written; masked: what is needed is left out; value: the operands are right
    and the result is not; stored: right but for a constant; pairs: rows and keys are left out of what is stored;
    unstored: no program stores some of a result."""
    name: str
    """The intermediate that is wrong there, or the tensor that is misread; "" if unknown."""
    site: Site
    lines: Chain
    """The site's up to the one at fault: of a helper that is right elsewhere, its caller's."""
    reason: str
    """One sentence."""
    is_sure: bool = True
    """Whether it goes wrong whenever it runs, or what is made of it is wrong too."""
    beside: Sequence[Chain] = ()
    """Where what enters is made: an address, what was compared with nothing, other dots of the pairs."""
    is_open: bool = False
    """Whether it is right where rows see keys, not masked where they do not, and summed over."""
    is_lost: bool = False
    """Of pairs, whether they were summed, and the sum is lost."""
    is_spoilt: bool = False
    """Of a value, whether it is right before the operation, which should keep it."""


def blamed(site: Site, right: Iterable[Site]) -> Chain:
    """The lines of a site without the innermost that are right where something else calls them."""
    lines, elsewhere = site.lines, set[Chain]()
    for other in right:
        if (other.operation, other.instruction) == (site.operation, site.instruction):
            elsewhere |= {other.lines[at:] for at in range(len(other.lines))}
    depth = 1
    while depth < len(lines) and lines[-depth:] in elsewhere:
        depth += 1
    return lines[: len(lines) - depth + 1]


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


def diagnoses_of(found: Sequence[Suspect], family: str = "softmax") -> list[Diagnosis]:
    """Those of one fault together; beside sure ones, of the others what is left out."""
    is_any_sure, groups = (
        any(suspect.is_sure for suspect in found),
        dict[tuple[str, str], list[Suspect]](),
    )
    for suspect in sorted(found, key=lambda suspect: not suspect.is_sure):
        if suspect.is_sure or suspect.kind == "pairs" or not is_any_sure:
            # What one loop leaves out of two results is one fault.
            of = suspect.site.kernel + suspect.reason if suspect.kind == "pairs" else suspect.name
            groups.setdefault((suspect.kind, of), []).append(suspect)
    return [_diagnosis(group, family, also=at > 0) for at, group in enumerate(groups.values())]


def _diagnosis(group: Sequence[Suspect], family: str, also: bool) -> Diagnosis:
    first, evidence, where = group[0], dict[str, None](), dict[tuple[str, int], Where]()
    says_wrong = says_right = tuple[str, ...]()
    if first.kind == "value":
        says_wrong, says_right = entered_by(first.name), parents_of(first.name, family)
        if any(suspect.is_spoilt for suspect in group):
            says_right += says_wrong  # right before the operation, and wrong after it
    noted = list[tuple[Suspect, Place, str]]()
    for suspect in group:
        place = _last(suspect.lines)
        evidence[
            f"{suspect.site.kernel}, line {place[1]}{_calls(suspect.site.lines)}: {suspect.reason}"
        ] = None
        does = (
            f"{title(suspect.name)} is {_KINDS[suspect.kind][1]} here"
            if suspect.name
            else "wrong here"
        )
        noted.append((suspect, place, does + _calls(suspect.lines)))
    # The lines at fault, then those of what enters there; a line has the first of its notes.
    noted += [(suspect, *each) for suspect in group for each in _beside(suspect)]
    for suspect, place, note in noted:
        if place not in where:
            code = linecache.getline(*place).strip()
            where[place] = among(Where(*place, code, kernel=suspect.site.kernel, note=note))
    slug = re.sub(r"[^\w]+", "-", first.name).strip("-") or "result"
    return Diagnosis(
        f"{first.kind}/{slug}", "ACC" if first.is_lost else _KINDS[first.kind][0], _summary(group),
        1.0 if first.is_sure else CONSISTENT, tuple(evidence), tuple(where.values()), also=also,
        seen=f"seen in {first.site.kernel}", says_wrong=says_wrong, says_right=says_right,
    )  # fmt: skip


def _summary(group: Sequence[Suspect]) -> str:
    first, names = group[0], list(dict.fromkeys(suspect.name for suspect in group))
    step = [name for name in entered_by(first.name) if name != first.name]
    is_step = len(step) == 1  # to one intermediate, which is wrong by it
    is_mask = first.site.operation == "select"  # nothing says what a mask should be
    return _KINDS[first.kind][2].format(
        kernel=first.site.kernel,
        name=first.name,
        tensor=title(first.name),
        reason=first.reason,
        value=f"{first.name}, and so {step[0]}," if is_step else first.name or "a value",
        line=_last(first.lines)[1],
        inputs="it is right until that line masks it" if is_mask else "its inputs are right",
        results=f"{' and '.join(names)} {'are' if names[1:] else 'is'}",
        terms="the rows that see each key"
        if {*names} <= {"dK", "dV"}
        else "the keys that each row sees",
    )


def _calls(chain: Chain) -> str:
    lines = [str(place.line) for place in chain[:-1]]
    return f", called at line {', '.join(lines)}" if lines else ""


def _last(chain: Chain) -> Place:
    place = chain[-1]
    return place.file, place.line


def _beside(suspect: Suspect) -> Iterator[tuple[Place, str]]:
    """The lines of what enters unseen: its address, its mask, its terms, the range of its loop."""
    file, line = _last(suspect.lines)
    own, entering = source(file), [*map(_last, suspect.beside)]
    if suspect.kind == "pairs":
        around = [
            (place.file, place.line)
            for chain in (suspect.lines, *suspect.beside)
            for place in chain
        ]
        yield from (((of, loop), LOOP) for of, at in around for loop in source(of).loops(at))
        yield from (((of, end), LOOP) for of, at in around for end in source(of).ends(at))
        return
    is_access = suspect.kind in ("load", "masked", "store")
    note = (
        "its address"
        if is_access
        else f"used in {title(suspect.name)} here"
        if suspect.name
        else "used here"
    )
    yield from ((place, note) for place in entering)
    if suspect.kind == "masked":
        yield from (((file, at), "the mask") for at in own.masks(line))
    if is_access:
        for each in gathered("lint", passed_of_others, file, suspect.site.kernel, suspect.name):
            yield (file, each.where.line), "passed here"
        yield from () if entering else (((file, at), note) for at in own.address(line))
    if suspect.kind == "value":
        for of, at in ((file, line), *entering):
            yield from (
                ((of, mask), "the mask") for mask in source(of).masks(at, of_accesses=False)
            )
            # Where it is another name of what is not masked, it may be masked there.
            yield from (((of, alias), note) for alias in source(of).aliases(at) if suspect.is_open)
    if suspect.kind == "unstored":
        yield from (((file, at), "launched here") for at in own.grids(suspect.site.kernel))
