"""What the dataflow of a failing run shows: the load that reads other elements than it should, or the first wrong
value.

Nothing in here is a hypothesis: each operation of an interpreted kernel was seen, with what it worked on and what it
made. So a diagnosis of the dataflow gives the line; a hypothesis that fits gives the name.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from ..faults.hypothesis import title
from ..model.failures import Failure
from ..model.report import CONSISTENT, Diagnosis, Where
from ..model.run import INHERITED, MISMATCH
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment
from ..runtime.interpreter.memory.findings import places
from .addresses import misread, visited_run
from .follow import Followed, followed_run
from .lines import among
from .statements import address, loops, masks
from .suspect import Suspect
from .suspects import suspects

_CLASSES = {"load": "S1", "masked": "M3", "store": "S3", "value": "A", "stored": "A", "pairs": "M2"}


def seen_in_dataflow(experiment: Experiment, run: LayoutRun) -> tuple[list[Diagnosis], Collection[str]]:
    """What goes wrong by itself in one failing run, the first first; and what kept operations from being followed.

    Nothing of packed sequences.
    """
    if experiment.case.cu_seqlens_q or run.measured is None:
        return [], ()
    try:
        if experiment.cuda:
            visited = visited_run(experiment, run.assigned)
            return (_diagnoses(misread(visited, _wrong(run.measured))) if visited is not None else []), ()
        followed = followed_run(experiment, run.assigned)
    except Failure:
        return [], ()
    return (seen_by(followed, run.measured), followed.flow.failures) if followed is not None else ([], ())


def seen_by(followed: Followed, measured: Measured) -> list[Diagnosis]:
    """What goes wrong by itself in a run that was followed, the first first."""
    return _diagnoses(suspects(followed, _wrong(measured)))


def _wrong(measured: Measured) -> list[str]:
    findings = measured.comparison.findings.items()
    return [name for name, finding in findings if finding.status in (MISMATCH, INHERITED)]


def _diagnoses(found: Sequence[Suspect]) -> list[Diagnosis]:
    groups: dict[tuple[str, str], list[Suspect]] = {}
    for one in [one for one in found if one.is_sure] or found:
        groups.setdefault((one.kind, one.name), []).append(one)
    made = [_diagnosis(group) for group in groups.values()]
    return [replace(one, also=number > 0) for number, one in enumerate(made)]


def _diagnosis(group: Sequence[Suspect]) -> Diagnosis:
    first, where = group[0], tuple(map(_where, group))
    reasons = (
        f"{place.kernel}, line {place.line}: {one.reason} ({one.extent})"
        for one, place in zip(group, where, strict=True)
    )
    beside = (other for one, place in zip(group, where, strict=True) for other in _beside(one, place))
    return Diagnosis(
        f"{first.kind}/{_slug(first.name) or 'result'}",
        _CLASSES[first.kind],
        _summary(first),
        1.0 if first.is_sure else CONSISTENT,
        tuple(dict.fromkeys(reasons)),
        tuple({(place.file, place.line): place for place in reversed((*where, *beside))}.values())[::-1],
        seen=f"seen in {where[0].kernel}, {first.extent}",
    )


_OF_ACCESSES = ("load", "masked", "store")


def _beside(one: Suspect, place: Where) -> Iterator[Where]:
    """The lines of what enters a wrong operation unseen: its mask, its terms, the range of its loop."""
    note = "its address" if one.kind in _OF_ACCESSES else "enters here"
    lines = [(line.file, line.line, note) for chain in one.beside for line in places(chain)[-1:]]
    if one.site.operation == "select" or one.kind == "masked":
        lines += [(place.file, line, "the mask") for line in masks(place.file, place.line)]
    if one.kind in _OF_ACCESSES and not one.beside:
        lines += [(place.file, line, "its address") for line in address(place.file, place.line)]
    if one.kind == "pairs":
        summed = [line for chain in (one.lines, *one.beside) for line in places(chain)]
        lines = [(line.file, at, "the loop") for line in summed for at in loops(line.file, line.line)]
    for file, line, note in lines:
        yield among(Where(file, line, linecache.getline(file, line).strip(), kernel=one.site.kernel, note=note))


def _slug(name: str) -> str:
    return re.sub(r"[^\w]+", "-", name).strip("-")


def _summary(one: Suspect) -> str:
    kernel, name = one.site.kernel, one.name
    if one.kind == "load":
        return f"{kernel} reads other elements of {title(name)} than it works on"
    if one.kind == "masked":
        return f"{kernel} masks out elements of {title(name)} that it works on"
    if one.kind == "store":
        return f"{kernel} writes other elements of {title(name)} than it computed"
    if one.kind == "stored":
        return f"{one.reason}, in {kernel}"
    if one.kind == "pairs":
        return f"{name} is not summed over the keys that each row sees, in {kernel}"
    return f"{name or 'a value'} is the first that is wrong in {kernel}: all that it is made of is right"


def _where(one: Suspect) -> Where:
    """The line at fault, and the calls that led there."""
    *calls, line = places(one.lines)
    led = f", called at line {', '.join(str(call.line) for call in calls)}" if calls else ""
    note = f"{title(one.name)} is {_VERBS[one.kind]} here{led}" if one.name else f"wrong here{led}"
    return among(Where(line.file, line.line, line.code.strip(), kernel=one.site.kernel, note=note))


_VERBS = {"load": "read", "masked": "read", "store": "written"}
_VERBS |= {"value": "computed", "stored": "stored", "pairs": "summed"}


def with_dataflow(named: Sequence[Diagnosis], seen: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The causes that hypotheses name, with the lines that the dataflow shows; where none is named, what it shows.

    A hypothesis about a tensor's strides keeps its lines, at which the address is made.
    """
    if not named or not seen:
        return [*named, *seen]
    first, *others = named
    evidence = tuple(sentence for one in seen for sentence in one.evidence)
    lines = tuple(dict.fromkeys(where for one in seen for where in one.where))
    keeps = first.fault.startswith(_OF_ADDRESSES) and first.where
    return [replace(first, evidence=(*first.evidence, *evidence), where=first.where if keeps else lines), *others]


# The hypotheses whose lines are read off the kernels' addresses.
_OF_ADDRESSES = ("stride/", "layout/", "wrap/", "outside/", "race/", "unwritten/")
