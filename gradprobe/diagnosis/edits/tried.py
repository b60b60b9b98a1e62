"""Runs and diagnoses -> diagnoses with the edit that was tried: as a diff, with what matches with it."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from msgspec import structs

from ...frontends.triton import interpreting
from ...model.allowance import Allowance
from ...model.intermediates import is_named_after
from ...model.mechanisms import door
from ...model.number import listed, plural
from ...model.report import Diagnosis, TriedEdit, Where, causes_among
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...source.kernel_file import KernelFile
from ...source.rewrites.candidates import Candidate, Fault
from ...source.rewrites.spots import Edits
from ...source.text import Edit
from ..explainers.diagnoses import LOOP
from ..lines import among
from ..why import Reasons
from .candidates_search import FileFaults, Found, Passed, Search

# The kinds of faults that say of a tensor that it is read or stored otherwise, and how the field abbreviates axes.
_OF_TENSORS = ("stride", "index", "layout", "load", "store", "wrap")
_AXES = {"batch": "b", "head": "h", "dim": "d"}
# Those that may be of how many programs there are.
_OF_GRIDS = ("race", "unwritten", "pairs")
# Those of what a loop leaves out.
_OF_RANGES = ("tile", "pairs")
# Files of these packages are nobody's to edit.
_LIBRARIES = ("torch", "triton", "numpy")
# Others that pass and are named.
_OTHERS = 3
_CLASS = "EDIT"
# How much later the lines of the next diagnosis are tried, in the ranks of the rows; and those that none names.
_NEXT, _UNNAMED = 0.5, 3.0


@door("edits", lambda experiment, runs, reasons, allowance: reasons)
def with_edits(experiment: Experiment, runs: Sequence[LayoutRun], reasons: Reasons, allowance: Allowance) -> Reasons:
    """The reasons with the edits that were tried; with one more where an edit is of no cause that they name.

    Nothing is tried where no Python file of kernels is at fault, where kernels are compiled for a GPU, and where the
    fault does not come again in a fork of this process.

    Args:
        allowance: how many are tried.
    """
    if not allowance.count or reasons.is_beyond_edits or experiment.case.device != "cpu" or not interpreting():
        return reasons
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradprobe-edits-") as folder:
        search = Search(experiment, runs, Path(folder), allowance)
        faults = faults_of(experiment, reasons.diagnoses, search.spoilt)
        if not (faults and search.wrong):
            return reasons
        found = search.run(faults)
    if found.is_late:
        late = f"stopped after {allowance.seconds:.0f} s, when {plural(found.tried, 'edit')} had been tried"
        reasons = replace(reasons, known=(*reasons.known, late))
    if not found.tried:
        return reasons
    return replace(reasons, diagnoses=_placed(reasons.diagnoses, found, round(time.monotonic() - start, 1)))


def _placed(diagnoses: tuple[Diagnosis, ...], found: Found, seconds: float) -> tuple[Diagnosis, ...]:
    """The diagnoses with what was tried at the cause that has a line of it; one more where no cause is named.

    The lines of an edit with which everything matches come first there: no other is as sure.
    """
    if not found.passed:
        first = [structs.replace(each, edit=_of_none(found, seconds)) for each in diagnoses[:1]]
        return (*first, *diagnoses[1:])
    best, *others = sorted(found.passed, key=_rank)
    edit, wheres = _of_passed(best, others, found.tried, seconds), list(_wheres(best.candidate))
    at = _cause_of(diagnoses, best.candidate)
    if at is None:
        says = best.candidate.says or "with another text there all matches"
        summary = f"line {wheres[0].line} of {wheres[0].kernel}: {says}"
        new = Diagnosis(f"edit/{wheres[0].kernel}", _CLASS, summary, 1.0, (), tuple(wheres), edit=edit)
        return (new, *diagnoses)
    places = {(where.file, where.line): where for where in at.where}
    changed = [places.pop((where.file, where.line), where) for where in wheres]
    cause = structs.replace(at, edit=edit, where=(*changed, *places.values()))
    return tuple(cause if each is at else each for each in diagnoses)


def _cause_of(diagnoses: Sequence[Diagnosis], candidate: Candidate) -> Diagnosis | None:
    """The cause that has a line of an edit, else the first; None where none is named."""
    named, lines = causes_among(diagnoses), set(candidate.lines)
    for cause in named:
        if lines & {where.line for where in cause.where if where.file == candidate.file.file}:
            return cause
    return next(iter(named), None)


def _of_passed(best: Passed, others: Sequence[Passed], tried: int, seconds: float) -> TriedEdit:
    """What is told of the smallest edit with which everything matches."""
    changes, different, judged = set(best.candidate.changes), dict[str, None](), best.judged
    for other in others:
        own = other.candidate.changes
        if not changes <= set(own):
            new = " / ".join(line[1:].strip() for line in own if line[0] == "+")
            different[f"line {other.candidate.lines[0]}: {new}"] = None
    return structs.replace(
        _edit(best.candidate, f"with it all matches: {listed(best.titles)}", tried, seconds),
        matches=True,
        others=tuple(different)[:_OTHERS],
        right=tuple(dict.fromkeys(judged.right)),
        doubts=tuple(dict.fromkeys(judged.doubts)),
        not_run=tuple(dict.fromkeys(judged.not_run)),
        beyond=tuple(dict.fromkeys(judged.beyond)),
    )


def _of_none(found: Found, seconds: float) -> TriedEdit:
    """What came of the edits, where none makes everything match."""
    if found.closest is None:
        words = f"none of {plural(found.tried, 'edit')} brings a result right"
        return TriedEdit(matches=False, words=words, tried=found.tried, seconds=seconds)
    candidate, result, before = found.closest
    right, wrong = sorted(before.names - result.names), sorted(result.names)
    match = f"{listed(right)} {'match' if right[1:] else 'matches'} with it" if right else "fewer elements are wrong"
    words = f"{match}; {listed(wrong)} still wrong" if wrong else match
    return _edit(candidate, words, found.tried, seconds)


def _edit(candidate: Candidate, words: str, tried: int, seconds: float) -> TriedEdit:
    file = candidate.file.file
    return TriedEdit(matches=False, words=words, file=file, diff=candidate.diff, tried=tried, seconds=seconds)


def _rank(passed: Passed) -> tuple[float, ...]:
    """What is certain first, then what is right in more cases, then the file's own text, then the smallest.

    The smallest changes the fewest lines and adds the fewest words; of as many the likelier first, then the shorter.
    """
    judged, candidate = passed.judged, passed.candidate
    changes = candidate.changes
    there = {line.strip() for line in candidate.file.text.splitlines()}
    there -= {line[1:].strip() for line in changes if line[0] == "-"}  # what is moved is no better than what is new
    unlike, words = 0, 0
    for line in changes:
        unlike += line[0] == "+" and line[1:].strip() not in there
        words += len(re.findall(r"\w+", line)) * (1 if line[0] == "+" else -1)
    certainty = (not passed.is_certain, len(judged.doubts), len(judged.not_run))
    return *certainty, unlike, len(changes), max(words, 0), candidate.cost, sum(map(len, changes))


def _wheres(candidate: Candidate) -> Iterator[Where]:
    file = candidate.file
    for line in candidate.lines:
        around = [each for each in file.functions if each.lineno <= line <= (each.end_lineno or each.lineno)]
        name = max(around, key=lambda each: each.lineno).name if around else ""
        code = file.lines[line - 1].strip()
        yield among(Where(file.file, line, code, kernel=name, note="what the tried edit changes"))


def faults_of(experiment: Experiment, diagnoses: Sequence[Diagnosis], wrong: Collection[str]) -> list[FileFaults]:
    """The lines that are named, the best diagnosis first; then all of the kernels named after what is wrong."""
    read, found = cache(_editable), list[FileFaults]()
    for diagnosis in diagnoses:
        by_file: dict[str, list[Fault]] = {}
        for where, fault in _faults_in(diagnosis):
            by_file.setdefault(where.file, []).append(fault)
        for name, faults in by_file.items():
            file = read(name)
            if file is not None:
                late, printed = len(found) * _NEXT, _printed(file, diagnosis.where)
                found.append(FileFaults(file, tuple(faults), _wanted(diagnosis), late, printed))
    kernels = [kernel for kernel in (experiment.first.kernels if experiment.first else ()) if kernel.line]
    named = [kernel for kernel in kernels if any(is_named_after(kernel.name, name) for name in wrong)]
    unnamed = _UNNAMED if found else 0.0
    for kernel in named or reversed(kernels):
        file = read(kernel.file)
        if file is not None:
            found.append(FileFaults(file, (Fault(kernel.line),), late=len(found) * _NEXT + unnamed))
    return found


def _faults_in(diagnosis: Diagnosis) -> Iterator[tuple[Where, Fault]]:
    """The places of a diagnosis, with what it says of each."""
    kind, _, of = diagnosis.fault.partition("/")
    has_range = kind in _OF_RANGES and any(where.note == LOOP for where in diagnosis.where)
    for where in diagnosis.where:
        is_summed = has_range and where.note != LOOP
        yield where, Fault(where.line, kind in _OF_GRIDS, of, _is_turned(diagnosis), is_summed)


def _is_turned(diagnosis: Diagnosis) -> bool:
    return diagnosis.fault.endswith("/sign") or diagnosis.fix.startswith("negate ")


def _printed(file: KernelFile, places: Sequence[Where]) -> Edits:
    found = dict[int, Edit]()
    for place in places:
        if place.instead and place.column is not None and place.file == file.file:
            line = file.lines[place.line - 1]
            before = line[: len(line) - len(line.lstrip()) + place.column]
            start = file.offset(place.line, len(before.encode()))
            found[start] = Edit(start, start + place.length, place.instead)
    return tuple(found.values())


def _wanted(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Of "stride/do-head": do and h. Of a mask that is missing: what masks a value; of a factor its name."""
    kind, _, rest = diagnosis.fault.partition("/")
    if _is_turned(diagnosis):
        return ()
    if "mask" in (kind, rest):
        return ("where(",)
    if kind in ("factor", "stored"):  # both are off by a constant
        return ("scale",)
    if kind not in _OF_TENSORS:
        return ()
    tensor, *axes = rest.lower().split("-")
    return (tensor, *(_AXES[axis] for axis in axes[:1] if axis in _AXES))


def _editable(name: str) -> KernelFile | None:
    """A Python file of kernels that may be shadowed; None for any other."""
    path = Path(name)
    roots = (Path(file).parent for name in _LIBRARIES if (file := getattr(sys.modules.get(name), "__file__", None)))
    if path.suffix != ".py" or any(path.is_relative_to(root) for root in roots):
        return None
    try:
        file = KernelFile(name, path.read_bytes().decode("utf-8-sig"))
        return file if file.kernels else None
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return None
