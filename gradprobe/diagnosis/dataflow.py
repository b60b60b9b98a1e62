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

from ..faults.tile import OVERWRITTEN
from ..lint.passed import passed_of_others
from ..model.failures import Failure
from ..model.intermediates import entered_by, parents_of, title
from ..model.mechanisms import door, gathered
from ..model.number import listed
from ..model.report import CONSISTENT, Diagnosis, Reached, Where
from ..model.run import INHERITED, MISMATCH
from ..numerics.evidence import LayoutRun, Measured, Watched
from ..probing.experiment import Experiment
from ..runtime.interpreter.memory.findings import Line, places
from .addresses import misread, visited_run
from .follow import Followed, followed_run
from .lines import among
from .misread import WORDS
from .statements import COUNTED, LOOP, RANGE, address, aliases, begun, given_again, grids, loops, masks, ranges
from .sums import visited_in
from .suspect import NEVER, Suspect
from .suspects import suspects

_CLASSES = {"load": "S1", "masked": "M3", "store": "S3", "value": "A", "stored": "A", "pairs": "M2", "unstored": "M2"}
_CLASSES |= {"grid": "S1"}


@door("dataflow", lambda experiment, run: Watched())
def seen_in_dataflow(experiment: Experiment, run: LayoutRun) -> Watched:
    """What goes wrong by itself in one failing run, and what it summed; nothing of packed sequences."""
    if experiment.case.cu_seqlens_q or run.measured is None:
        return Watched()
    try:
        if experiment.cuda:
            visited = visited_run(experiment, run.assigned)
            found = gathered("dataflow/cuda", misread, visited, _wrong(run.measured)) if visited is not None else []
            return Watched(tuple(_diagnoses(found, experiment.case.family)))
        followed = followed_run(experiment, run.assigned)
    except Failure:
        return Watched()
    return Watched() if followed is None else watched_in(followed, run.measured)


def watched_in(followed: Followed, measured: Measured) -> Watched:
    """What a run that was followed shows, but for what its kernels hold."""
    seen, visited = seen_by(followed, measured), gathered("dataflow/visited", visited_in, followed, _wrong(measured))
    return Watched(tuple(seen), tuple(followed.flow.failures), visited=tuple(visited))


def seen_by(followed: Followed, measured: Measured) -> list[Diagnosis]:
    """What goes wrong by itself in a run that was followed, the first first."""
    return _diagnoses(suspects(followed, _wrong(measured)), followed.roles.case.family)


def _wrong(measured: Measured) -> list[str]:
    findings = measured.comparison.findings.items()
    return [name for name, finding in findings if finding.status in (MISMATCH, INHERITED)]


def _diagnoses(found: Sequence[Suspect], family: str = "softmax") -> list[Diagnosis]:
    groups: dict[tuple[str, str], list[Suspect]] = {}
    sure = [one for one in found if one.is_sure]
    for one in [*sure, *(one for one in found if one.kind == "pairs" and not one.is_sure)] if sure else found:
        # What one loop leaves out of two results is one fault.
        of = f"{one.site.kernel}: {one.reason}" if one.kind == "pairs" else one.name
        # So is what an index misleads, loads and stores.
        groups.setdefault(("index", repr(one.index)) if one.index else (one.kind, of), []).append(one)
    made = [_diagnosis(group, family) for group in groups.values()]
    return [replace(one, also=number > 0) for number, one in enumerate(made)]


def _diagnosis(group: Sequence[Suspect], family: str) -> Diagnosis:
    first, where = group[0], tuple(map(_where, group))
    beside = (other for one, place in zip(group, where, strict=True) for other in _beside(one, place))
    made = tuple(_index_lines(first))
    return Diagnosis(
        f"{first.kind}/{_slug(first.name) or 'result'}",
        _CLASSES[first.kind],
        _summary(first, tuple(dict.fromkeys(one.name for one in group))),
        1.0 if first.is_sure else CONSISTENT,
        tuple(dict.fromkeys(_reasons(group, where))),
        tuple({(place.file, place.line): place for place in (*made, *where, *beside, *where, *made)}.values()),
        reached=next(filter(None, map(_reached, group)), None),
        seen=f"seen in {where[0].kernel}, {first.extent}",
        says_wrong=entered_by(first.name) if first.kind == "value" else (),
        says_right=parents_of(first.name, family) if first.kind == "value" else (),
    )


def _index_lines(one: Suspect) -> Iterator[Where]:
    """The lines of the index that misleads several accesses."""
    for number, chain in enumerate(one.index):
        line, note = (
            places(chain)[-1],
            "the index of all of these is computed here" if number == 0 else "it is made of this",
        )
        yield among(Where(line.file, line.line, line.code.strip(), kernel=one.site.kernel, note=note))


# Of the indices that an access misses: as many as a picture has room for.
_MOST_REACHED = 12


def _reached(one: Suspect) -> Reached | None:
    pairs = tuple((there, None if here < 0 else here) for there, here in one.reached[:_MOST_REACHED])
    is_store = one.kind == "store"
    return Reached(tensor=one.name, letter=one.letter, pairs=pairs, is_store=is_store) if pairs else None


def _reasons(group: Sequence[Suspect], where: Sequence[Where]) -> Iterator[str]:
    """What is wrong at each line; of what a helper does in several calls, with the call."""
    said = [f"{at.kernel}, line {at.line}: {one.reason}" for one, at in zip(group, where, strict=True)]
    for words, one in zip(said, group, strict=True):
        calls = places(one.site.lines)[:-1] if said.count(words) > 1 else []
        led = f", called at line {', '.join(str(call.line) for call in calls)}" if calls else ""
        yield f"{words} ({one.extent}{led})"


_OF_ACCESSES = ("load", "masked", "store")


def _beside(one: Suspect, place: Where) -> Iterator[Where]:
    """The lines of what enters a wrong operation unseen: its mask, its terms, the range of its loop."""
    used = f"used in {title(one.name)} here" if one.name else "used here"
    note = "its address" if one.kind in _OF_ACCESSES else used
    lines = [(line.file, line.line, "worked on here") for chain in one.used for line in places(chain)[-1:]]
    lines += [(line.file, line.line, note) for chain in one.beside for line in places(chain)[-1:]]
    if one.site.operation == "select" or one.kind == "masked":
        lines += [(place.file, line, "the mask") for line in masks(place.file, place.line)]
    if one.kind in _OF_ACCESSES:
        lines += [(file, at, note) for file, line, _ in lines for at in aliases(file, line)]
        passed = gathered("lint", passed_of_others, place.file, one.site.kernel, one.name)
        lines += [(place.file, at, "passed here") for at in passed]
        masking = [line for chain in one.used if one.letter for line in places(chain)[-1:]]
        lines += [(line.file, at, LOOP) for line in masking for at in loops(line.file, line.line)]
        lines += [] if one.beside else [(place.file, line, note) for line in address(place.file, place.line)]
    if one.kind == "value":
        lines += [(file, at, note) for file, line, _ in lines for at in given_again(file, line, place.line)]
        lines += [(place.file, line, "the mask") for line in masks(place.file, place.line, of_accesses=False)]
        lines += [(place.file, line, note) for line in begun(place.file, place.line)]
        lines += [(file, at, "the mask") for file, line, _ in lines for at in masks(file, line, of_accesses=False)]
        last = max([place.line, *(line for file, line, _ in lines if file == place.file)])
        lines += [each for chain in one.unmasked for each in _unmasked(chain, place.file, last)]
    if one.kind in ("unstored", "grid"):
        lines += [(place.file, line, "launched here") for line in grids(place.file, one.site.kernel)]
    if one.kind == "pairs":
        summed = [line for chain in (one.lines, *one.beside) for line in places(chain)]
        lines = [(line.file, at, LOOP) for line in summed for at in loops(line.file, line.line)]
        chains = ([(line.file, line.line) for line in places(chain)] for chain in (one.lines, *one.beside))
        lines += [(file, at, RANGE) for chain in chains for file, at in ranges(chain)]
        lines += [(line.file, line.line, COUNTED) for chain in one.counted for line in places(chain)[-1:]]
    for file, line, note in lines:
        yield among(Where(file, line, linecache.getline(file, line).strip(), kernel=one.site.kernel, note=note))


def _unmasked(chain: Sequence[Line], in_file: str, last: int) -> Iterator[tuple[str, int, str]]:
    """From where scores are not masked that a wrong value is made of: the lines up to the last that make them anew."""
    line = places(chain)[-1]
    yield line.file, line.line, "not masked here"
    if line.file == in_file:
        yield from ((line.file, at, "not masked here") for at in given_again(line.file, line.line, last))
    yield from ((line.file, at, "the mask") for at in masks(line.file, line.line, of_accesses=False))
    yield from ((line.file, at, "not masked here") for at in begun(line.file, line.line))


def _slug(name: str) -> str:
    return re.sub(r"[^\w]+", "-", name).strip("-")


def _summary(one: Suspect, names: Sequence[str]) -> str:
    kernel, name = one.site.kernel, one.name
    if one.index:
        of = listed(list(map(title, names)))
        return f"{kernel} accesses {of} at another {WORDS[one.letter]} than the one it works on"
    if one.kind == "load":
        return f"{kernel} reads the wrong elements of {title(name)}"
    if one.kind == "masked":
        return f"{kernel} masks out elements of {title(name)} that it needs"
    if one.kind == "store":
        return f"{kernel} writes {title(name)} to the wrong elements"
    if one.kind == "stored":
        return f"{kernel} {one.reason}"
    if one.kind == "unstored":
        return f"{kernel} leaves a part of {name} unwritten: {one.reason}"
    if one.kind == "grid":
        return f"{kernel} has programs that belong to no head: batches and heads are in one axis of its grid"
    if one.kind == "pairs":
        are = "are" if names[1:] else "is"
        over = "the rows that see each key" if set(names) <= {"dK", "dV"} else "the keys that each row sees"
        return f"{' and '.join(names)} {are} not summed over {over}, in {kernel}"
    step = [other for other in entered_by(name) if other != name]
    named = f"{name}, and so {step[0]}," if len(step) == 1 else name or "a value"
    return f"{kernel} computes {named} wrongly at line {places(one.lines)[-1].line}: {_inputs(one)}"


def _inputs(one: Suspect) -> str:
    """What is right there, or by how much it is off. Of a mask nothing says what it should be."""
    if f"{one.name} is off by " in one.reason:
        return one.reason
    return "it is right until that line masks it" if one.site.operation == "select" else "its inputs are right"


def _where(one: Suspect) -> Where:
    """The line at fault, and the calls that led there."""
    *calls, line = places(one.lines)
    led = f", called at line {', '.join(str(call.line) for call in calls)}" if calls else ""
    note = f"{title(one.name)} is {_VERBS[one.kind]} here{led}" if one.name else f"wrong here{led}"
    return among(Where(line.file, line.line, line.code.strip(), kernel=one.site.kernel, note=note))


_VERBS = {"load": "read", "masked": "read", "store": "written"}
_VERBS |= {"value": "computed", "stored": "stored", "pairs": "summed", "unstored": "written", "grid": "outside"}


def with_dataflow(named: Sequence[Diagnosis], seen: Sequence[Diagnosis], read: Collection[str] = ()) -> list[Diagnosis]:
    """The causes that hypotheses name, with the lines that the dataflow shows; where none is named, what it shows.

    Args:
        read: the faults whose lines were read off the source, at which an address is made: these stay the first.
    """
    of_pairs = [one for one in seen if one.fault.startswith("pairs/")]
    if named and named[0].fault.startswith(_OF_TILES) and of_pairs:
        seen = of_pairs  # what is left out says where; the values that it makes wrong do not
    else:
        seen = [one for one in seen if one.is_named or one not in of_pairs] or seen
    of_pairs = [one for one in of_pairs if one.is_named and any(NEVER in said for said in one.evidence)]
    if of_pairs and named and OVERWRITTEN in named[0].summary:
        return [*of_pairs, *named[1:]]  # it looks the same, and nothing was lost
    if not named or not seen:
        return [*named, *seen]
    first, *others = named
    evidence = tuple(sentence for one in seen for sentence in one.evidence)
    lines = _of_each_kernel_first([where for one in seen for where in one.where])
    if first.where and (first.fault in read or first.fault.startswith(_OF_MEMORY)):
        misread = [where for one in seen if one.fault.startswith(_MISREAD) for where in one.where]
        told = {(where.file, where.line) for where in first.where}
        lines = (*first.where, *(where for where in misread if (where.file, where.line) not in told))
    reached = None if first.misread else next((one.reached for one in seen if one.reached), None)
    return [replace(first, evidence=(*first.evidence, *evidence), where=lines, reached=reached), *others]


def _of_each_kernel_first(lines: Sequence[Where]) -> tuple[Where, ...]:
    """Lines, each once: before all others the first one of each kernel, at which something goes wrong in it."""
    first = {where.kernel: where for where in reversed(lines)}
    return tuple(dict.fromkeys([*(where for where in lines if where is first[where.kernel]), *lines]))


# Keys, rows or tiles that are left out.
_OF_TILES = ("tile/",)
# What was seen in memory, at its own lines; and what the dataflow shows of addresses.
_OF_MEMORY = ("outside/", "race/", "unwritten/")
_MISREAD = ("load/", "store/", "unstored/")
