"""Suspects: operations that go wrong although their operands are right."""

import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter

from ...frontends import source
from ...frontends.triton.interpreter.dataflow import Site
from ...model.intermediates import entered_by, parents_of, title
from ...model.report import CONSISTENT, CauseLine, Diagnosis
from ...source.lint import passed_of_others
from ...source.syntax import SourceLine
from ..lines import among

# A line of a kernel, then those in the functions that it called to get there.
Chain = tuple[SourceLine, ...]
Place = tuple[str, int]
LOOP = "the loop"


@dataclass(frozen=True)
class Suspect:
    # load, store: of other elements; masked: too much; value: of right operands; stored: times a constant; pairs: not
    # summed; unstored.
    kind: str
    name: str  # "" if unknown
    site: Site
    # The site's up to the one at fault, which may be a caller's.
    lines: Chain
    reason: str
    is_sure: bool = True
    # Where what enters is made.
    beside: Sequence[Chain] = ()
    # Right where rows see keys, not masked elsewhere, and summed over.
    is_open: bool = False
    is_lost: bool = False  # pairs that were summed, and the sum is lost


def blamed(site: Site, right: Iterable[Site]) -> Chain:
    """Without the innermost that are right where something else calls them."""
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
    is_sure = attrgetter("is_sure")
    is_any_sure, groups = any(map(is_sure, found)), dict[tuple[str, str], list[Suspect]]()
    for suspect in sorted(found, key=is_sure, reverse=True):
        is_of_pairs = suspect.kind == "pairs"
        if suspect.is_sure or is_of_pairs or not is_any_sure:
            # What one loop leaves out of two results is one fault.
            of = suspect.site.kernel + suspect.reason if is_of_pairs else suspect.name
            groups.setdefault((suspect.kind, of), []).append(suspect)
    return [_diagnosis(group, family, also=at > 0) for at, group in enumerate(groups.values())]


def _diagnosis(group: Sequence[Suspect], family: str, also: bool) -> Diagnosis:
    first, evidence, where = group[0], dict[str, None](), dict[Place, CauseLine]()
    fault_class, done, _ = _KINDS[first.kind]
    says_wrong = says_right = tuple[str, ...]()
    if first.kind == "value":
        says_wrong, says_right = entered_by(first.name), parents_of(first.name, family)
    noted = list[tuple[str, Place, str]]()
    for suspect in group:
        place, kernel = _last(suspect.lines), suspect.site.kernel
        said = f"{kernel}, line {place[1]}{_calls(suspect.site.lines)}: {suspect.reason}"
        evidence[said] = None
        does = f"{title(suspect.name)} is {done} here" if suspect.name else "wrong here"
        noted.append((kernel, place, does + _calls(suspect.lines)))
    for suspect in group:  # after the lines at fault those of what enters there
        noted += [(suspect.site.kernel, *each) for each in _beside(suspect)]
    for kernel, place, words in noted:
        if place not in where:  # a line has the first of its notes
            code = linecache.getline(*place).strip()
            where[place] = among(CauseLine(*place, code, kernel=kernel, note=words))
    slug = re.sub(r"[^\w]+", "-", first.name).strip("-") or "result"
    return Diagnosis(
        f"{first.kind}/{slug}", "ACC" if first.is_lost else fault_class, _summary(group),
        1.0 if first.is_sure else CONSISTENT, tuple(evidence), tuple(where.values()), also=also,
        seen=f"seen in {first.site.kernel}", says_wrong=says_wrong, says_right=says_right,
    )  # fmt: skip


def _summary(group: Sequence[Suspect]) -> str:
    first, names = group[0], [*dict.fromkeys(map(attrgetter("name"), group))]
    entered = [name for name in entered_by(first.name) if name != first.name]
    step = f"{first.name}, and so {entered[0]}," if len(entered) == 1 else first.name
    is_mask = first.site.operation == "select"  # nothing says what a mask should be
    is_by_key = {*names} <= {"dK", "dV"}
    return _KINDS[first.kind][2].format(
        kernel=first.site.kernel,
        name=first.name,
        tensor=title(first.name),
        reason=first.reason,
        value=step or "a value",
        line=first.lines[-1].line,
        inputs="it is right until that line masks it" if is_mask else "its inputs are right",
        results=f"{' and '.join(names)} {'are' if names[1:] else 'is'}",
        terms="the rows that see each key" if is_by_key else "the keys that each row sees",
    )


def _calls(lines: Chain) -> str:
    calls = ", ".join(str(place.line) for place in lines[:-1])
    return f", called at line {calls}" if calls else ""


def _last(lines: Chain) -> Place:
    return lines[-1].file, lines[-1].line


def _beside(suspect: Suspect) -> Iterator[tuple[Place, str]]:
    kind, kernel, (file, line) = suspect.kind, suspect.site.kernel, _last(suspect.lines)
    own, entering = source(file), [*map(_last, suspect.beside)]

    def noted(lines: Iterable[int], note: str, of: str = file) -> Iterator[tuple[Place, str]]:
        return (((of, at), note) for at in lines)

    if kind == "pairs":
        places = [*chain(suspect.lines, *suspect.beside)]
        for place in places:
            yield from noted(source(place.file).loops(place.line), LOOP, place.file)
        for place in places:
            yield from noted(source(place.file).ends(place.line), LOOP, place.file)
        return
    is_access = kind in ("load", "masked", "store")
    used = f"used in {title(suspect.name)} here" if suspect.name else "used here"
    note = "its address" if is_access else used
    yield from zip(entering, repeat(note))
    if kind == "masked":
        yield from noted(own.masks(line), "the mask")
    if is_access:
        passed = passed_of_others(file, kernel, suspect.name)
        yield from noted(map(attrgetter("where.line"), passed), "passed here")
        yield from noted(() if entering else own.address(line), note)
    if kind == "unstored":
        yield from noted(own.grids(kernel), "launched here")
    for of, at in ((file, line), *entering) if kind == "value" else ():
        yield from noted(source(of).masks(at, of_accesses=False), "the mask", of)
        # Where it is another name of what is not masked, it may be masked there.
        yield from noted(source(of).aliases(at) if suspect.is_open else (), note, of)
