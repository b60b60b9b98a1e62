"""Diagnoses with the tried edit: a diff, and what matches with it."""

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import structs

from ...frontends import source
from ...frontends.triton import interpreting
from ...model.allowance import Allowance
from ...model.intermediates import is_named_after
from ...model.number import listed, plural
from ...model.report import CauseLine, Diagnosis, TriedEdit, causes_among
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.ended import is_users
from ...source.host_names import narrow_buffers, out_of_turn, passed_amiss, returned_in_turn
from ...source.kernel_file import KernelFile
from ...source.rewrites.candidate import Fault
from ...source.syntax import Edit, Edits
from ...targets.naming import LoadedSource, files_holding
from ..explainers.diagnoses import LOOP
from ..lines import where_at
from ..why import Reasons
from .candidates_search import NOW, FileFaults, Search, SearchResult
from .judge import JudgedEdit

# The kinds of faults that say of a tensor that it is read or stored otherwise, and how the field abbreviates axes.
_OF_TENSORS = ("stride", "index", "layout", "load", "store", "wrap")
_AXES = {"batch": "b", "head": "h", "dim": "d"}
_OF_GRIDS, _OF_RANGES = ("race", "unwritten", "pairs"), ("tile", "pairs")
# How much later the lines of the next diagnosis are tried, in the ranks of the rows; and those that none names.
_NEXT, _UNNAMED = 0.5, 3.0
# And those of launches, of which each takes as long as many others, unless a part of a result is left out.
_LAUNCHED, _LEFT_OUT = 3.0, ("unwritten", "unstored")
Read = Callable[[str], KernelFile | None]
_FAULT = "an edit could not be tried, by a fault of gradprobe: {}"


def with_edits(
    experiment: Experiment, runs: Sequence[LayoutRun], reasons: Reasons, allowance: Allowance
) -> Reasons:
    is_compiled = experiment.case.device != "cpu" or not interpreting()
    if not allowance.count or reasons.is_beyond_edits or is_compiled:
        return reasons
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradprobe-edits-") as folder:
        search = Search(experiment, runs, Path(folder), allowance)
        faults = faults_of(experiment, reasons.diagnoses, search.spoilt)
        if not (faults and search.wrong):
            return reasons
        found = search.run(faults)
    seconds, known = round(time.monotonic() - start, 1), list(map(_FAULT.format, found.faults))
    if found.is_late:
        tried = plural(found.tried, "edit")
        known.append(f"stopped after {allowance.seconds:.0f} s, when {tried} had been tried")
    told = _placed(reasons.diagnoses, found, seconds) if found.tried else reasons.diagnoses
    return replace(reasons, diagnoses=told, known=(*reasons.known, *known))


def _placed(
    diagnoses: tuple[Diagnosis, ...], found: SearchResult, seconds: float
) -> tuple[Diagnosis, ...]:
    if not found.passed:
        edit = TriedEdit(matches=False, tried=found.tried, seconds=seconds, **_of_none(found))
        return tuple(structs.replace(each, edit=edit) for each in diagnoses[:1]) + diagnoses[1:]
    best = min(found.passed, key=_rank)
    names = ("right", "doubts", "not_run", "beyond")
    file = best.candidate.file.file
    edit = TriedEdit(
        matches=True, tried=found.tried, seconds=seconds, words=f"with it all matches: {listed([*best.titles])}",
        file=file, diff=best.candidate.diff,
        **{name: tuple(dict.fromkeys(getattr(best, name))) for name in names},
    )  # fmt: skip
    changed, named = dict[tuple[str, int], CauseLine](), causes_among(diagnoses)
    for line in best.candidate.lines:
        function = source(file).function_at(line)
        changed[file, line] = where_at(file, line, function, "what the tried edit changes")
    if not named:
        first_line, *_ = where = tuple(changed.values())
        says = best.candidate.says or "with another text there all matches"
        kernel = first_line.kernel
        summary = f"line {first_line.line} of {kernel}: {says}"
        cause = Diagnosis(f"edit/{kernel}", "EDIT", summary, 1.0, where=where, edit=edit)
        return cause, *diagnoses
    cause = next((each for each in named if changed.keys() & _places(each).keys()), named[0])
    where = tuple((changed | _places(cause)).values())
    # What is mended is the cause; what stood before it followed from it.
    ordered = [structs.replace(cause, edit=edit, where=where, also=False)]
    for at, each in enumerate(diagnoses):
        if each is not cause:
            ordered.append(structs.replace(each, also=each.also or at == 0))
    return tuple(ordered)


def _places(cause: Diagnosis) -> dict[tuple[str, int], CauseLine]:
    places = dict[tuple[str, int], CauseLine]()
    for where in cause.where:
        places[where.file, where.line] = where
    return places


def _of_none(found: SearchResult) -> dict[str, Any]:
    if found.closest is None:
        return {"words": f"none of {plural(found.tried, 'edit')} brings a result right"}
    candidate, result, before = found.closest
    right, wrong = sorted(before.names - result.names), sorted(result.names)
    is_fewer = sum(result.wrong.values()) < sum(before.wrong.values())
    words = "fewer elements are wrong" if is_fewer else "memory comes to less harm with it"
    if right:
        words = f"{listed(right)} {'match' if right[1:] else 'matches'} with it"
    words += f"; {listed(wrong)} still wrong" if wrong else ""
    return {"words": words, "file": candidate.file.file, "diff": candidate.diff}


def _rank(passed: JudgedEdit) -> tuple[float, ...]:
    changes, words = passed.candidate.changes, 0
    for line in changes:
        words += len(re.findall(r"\w+", line)) * (1 if line[0] == "+" else -1)
    doubts, not_run, size = len(passed.doubts), len(passed.not_run), sum(map(len, changes))
    shortest = len(changes), max(words, 0), passed.candidate.cost, size
    is_guessed = passed.candidate.cost > NOW
    return not passed.is_certain, doubts, not_run, is_guessed, *shortest


def faults_of(
    experiment: Experiment, diagnoses: Sequence[Diagnosis], wrong: Collection[str]
) -> list[FileFaults]:
    """First what launches pass amiss, then the best diagnosis; at last all launches."""
    read, found, amiss = cache(_read), list[FileFaults](), list[FileFaults]()
    kernels = [each for each in getattr(experiment.first, "kernels", ()) if each.line]
    hosts = dict[LoadedSource, list[KernelFile]]()
    for kernel in kernels:
        hosts[kernel] = _hosts(experiment, kernel, read)
        if (own := read(kernel.file)) is not None:
            amiss += _passed_amiss(experiment, own, kernel.name, hosts[kernel])
    for host in dict.fromkeys(chain(*hosts.values())):
        several = [*out_of_turn(host), *narrow_buffers(host)]
        for diagnosis in diagnoses:
            kind, _, pair = diagnosis.fault.lower().partition("/")
            several += returned_in_turn(host, pair.split("-")) if kind == "swap" else ()
        for printed in dict.fromkeys(several):
            amiss.append(FileFaults(host, (), printed=printed))
    for diagnosis in diagnoses:
        for name in dict.fromkeys(where.file for where in diagnosis.where):
            if (file := read(name)) is not None and file.kernels:
                found.append(_of_diagnosis(diagnosis, file, len(found) * _NEXT))
    unnamed = _UNNAMED if found else 0.0
    named = [each for each in kernels if any(map(partial(is_named_after, each.name), wrong))]
    for kernel in named or reversed(kernels):
        if (file := read(kernel.file)) is not None:
            late = len(found) * _NEXT + unnamed
            found.append(FileFaults(file, (Fault(kernel.line),), late=late))
    late = _LAUNCHED
    if diagnoses and diagnoses[0].kind in _LEFT_OUT:
        late = 0.0
    return [*amiss, *found, *_launched(hosts, late)]


def _passed_amiss(
    experiment: Experiment, own: KernelFile, kernel: str, hosts: Sequence[KernelFile]
) -> Iterator[FileFaults]:
    """All that its launches pass amiss is one edit; then each of several tensors alone."""
    owners = experiment.owners.get(kernel, {})
    for host in hosts:
        several = list[Edits]()
        for function in own.functions:
            if function.name == kernel:
                several += passed_amiss(host, function, owners)
        for printed in dict.fromkeys([tuple(chain(*several)), *several] if several else ()):
            yield FileFaults(host, (), printed=printed)


def _launched(
    hosts: Mapping[LoadedSource, Sequence[KernelFile]], late: float
) -> Iterator[FileFaults]:
    lines = defaultdict[KernelFile, set[int]](set)
    for kernel, files in hosts.items():
        for host in files:
            for call, _ in host.callers_of(kernel.name):
                lines[host].add(call.lineno)
    for host, several in lines.items():
        yield FileFaults(host, list(map(Fault, sorted(several))), late=late)


def _hosts(experiment: Experiment, kernel: LoadedSource, read: Read) -> list[KernelFile]:
    """What may launch it, where it can be read."""
    names = dict.fromkeys((*files_holding(kernel.file), experiment.target.source.file))
    return list(filter(None, map(read, names))) if read(kernel.file) else []


def _of_diagnosis(diagnosis: Diagnosis, file: KernelFile, late: float) -> FileFaults:
    about = diagnosis.kind in _OF_GRIDS, diagnosis.fault.partition("/")[2], _is_turned(diagnosis)
    places = [where for where in diagnosis.where if where.file == file.file]
    is_any_loop, faults = any(where.note == LOOP for where in diagnosis.where), list[Fault]()
    for where in places:
        is_summed = diagnosis.kind in _OF_RANGES and is_any_loop and where.note != LOOP
        faults.append(Fault(where.line, *about, is_summed))
    return FileFaults(file, faults, _wanted(diagnosis), late, _printed(file, places))


def _is_turned(diagnosis: Diagnosis) -> bool:
    return diagnosis.fault.endswith("/sign") or diagnosis.fix.startswith("negate ")


def _printed(file: KernelFile, places: Sequence[CauseLine]) -> Edits:
    found = dict[int, Edit]()
    for place in places:
        if place.instead and place.column is not None:
            line = file.lines[place.line - 1]
            start = file.offset(place.line, 0) + len(line) - len(line.lstrip()) + place.column
            found[start] = Edit(start, start + place.length, place.instead)
    return tuple(found.values())


def _wanted(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Of "stride/do-head" do and h."""
    kind, _, rest = diagnosis.fault.partition("/")
    if _is_turned(diagnosis):
        return ()
    if "mask" in (kind, rest):
        return ("where(",)
    if kind in ("factor", "stored"):  # both are off by a constant
        return ("scale",)
    tensor, *axes = rest.lower().split("-")
    words = (tensor, *filter(None, map(_AXES.get, axes[:1])))
    return words if kind in _OF_TENSORS else ()


def _read(name: str) -> KernelFile | None:
    with suppress(OSError, SyntaxError, ValueError):  # it is gone, or no Python
        if name.endswith(".py") and is_users(name):
            return KernelFile(name, Path(name).read_bytes().decode("utf-8-sig"))
    return None
