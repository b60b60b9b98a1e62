"""Runs and diagnoses -> diagnoses with the edit that was tried: as a diff, with what matches with it."""

from __future__ import annotations

import difflib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import structs

from ...model.number import plural
from ...model.report import Diagnosis, TriedEdit, Where
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...runtime.backend import interpreting
from ...source.repairs.candidates import Candidate
from ..lines import among
from .faults import faults_of
from .search import Found, Search
from .trial import Came

# Others that pass and are named.
_OTHERS = 3
_CLASS = "EDIT"


def with_edits(
    experiment: Experiment, runs: Sequence[LayoutRun], diagnoses: tuple[Diagnosis, ...], budget: float
) -> tuple[Diagnosis, ...]:
    """The diagnoses, of which one has the edit that was tried; one more where the edit is of no cause that they name.

    Nothing is tried where no Python file of kernels is at fault, where kernels are compiled for a GPU, and where the
    fault does not come again in a fork of this process.

    Args:
        budget: seconds.
    """
    if budget <= 0 or experiment.case.device != "cpu" or not interpreting():
        return diagnoses
    start, findings = time.monotonic(), [run.measured.comparison.findings for run in runs if run.measured]
    wrong = dict.fromkeys(name for found in findings for name, one in found.items() if one.mismatched)
    faults = faults_of(experiment, diagnoses, list(wrong))
    with tempfile.TemporaryDirectory(prefix="gradprobe-edits-") as folder:
        found = Search(experiment, runs, Path(folder), budget).run(faults)
    if not found.tried:
        return diagnoses
    return _placed(diagnoses, *_told(found, round(time.monotonic() - start, 1)))


def _told(found: Found, seconds: float) -> tuple[Candidate | None, TriedEdit]:
    if found.passed:
        first, *others = sorted(found.passed, key=lambda each: (each.elsewhere, *_size(each.candidate)))
        candidate, titles = first.candidate, first.titles
        left = "; layouts that this check leaves out are still wrong" if first.elsewhere else ""
        words = f"with it all matches: {', '.join(titles[:-1])} and {titles[-1]}{left}"
        named = tuple(_in_a_line(one.candidate) for one in others[:_OTHERS])
    elif found.closest is not None:
        (candidate, came, before), named = found.closest, ()
        words = _what_is_left(came, before)
    else:
        words = f"none of {plural(found.tried, 'edit')} brings a result right"
        return None, TriedEdit(matches=False, words=words, tried=found.tried, seconds=seconds)
    file = candidate.file.file
    edit = TriedEdit(matches=bool(found.passed), words=words, file=file, diff=diff_of(candidate), others=named)
    return candidate, structs.replace(edit, tried=found.tried, seconds=seconds)


def _size(candidate: Candidate) -> tuple[int, int]:
    """How much an edit changes: lines, then characters."""
    changed = [line for line in diff_of(candidate).splitlines()[2:] if line[0] in "+-"]
    return len(changed), sum(len(line) for line in changed)


def diff_of(candidate: Candidate) -> str:
    """The edit as a unified diff, with a line around each change."""
    name = candidate.file.path.name
    old, new = (text.splitlines() for text in (candidate.file.text, candidate.text))
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm="", n=1))


def _in_a_line(candidate: Candidate) -> str:
    first, *_ = _changed(candidate)
    new = [line[1:].strip() for line in diff_of(candidate).splitlines()[2:] if line.startswith("+")]
    return f"line {first}: {' / '.join(new)}"


def _changed(candidate: Candidate) -> list[int]:
    """The lines of the file that an edit changes."""
    text = candidate.file.text
    return sorted({text.count("\n", 0, edit.start) + 1 for edit in candidate.edits})


def _what_is_left(came: Came, before: Came) -> str:
    right = sorted(before.names - came.names)
    left = [f"{name} still wrong in {plural(came.heads[name], 'head')}" for name in sorted(came.names)]
    closer = (
        f"{', '.join(right)} {'match' if right[1:] else 'matches'} with it" if right else "fewer elements are wrong"
    )
    return "; ".join([closer, *left])


def _placed(diagnoses: tuple[Diagnosis, ...], candidate: Candidate | None, edit: TriedEdit) -> tuple[Diagnosis, ...]:
    """The diagnoses with the edit at the cause that it is of, first; what only comes close stands with the best one."""
    if not edit.matches or candidate is None:
        first = [structs.replace(one, edit=edit) for one in diagnoses[:1]]
        return (*first, *diagnoses[1:])
    lines = {(candidate.file.file, line) for line in _changed(candidate)}
    named = [one for one in diagnoses if one.is_named]
    of_line = [one for one in named if lines & {(where.file, where.line) for where in one.where}]
    cause = next(iter(of_line or (named if diagnoses[:1] == tuple(named[:1]) else [])), None)
    if cause is None:
        return (_new(candidate, edit), *diagnoses)
    return tuple(structs.replace(one, edit=edit) if one is cause else one for one in diagnoses)


def _new(candidate: Candidate, edit: TriedEdit) -> Diagnosis:
    """The cause that the edit alone shows."""
    wheres = tuple(_wheres(candidate))
    summary = f"line {wheres[0].line} of {wheres[0].kernel}: with another text there all matches"
    return Diagnosis(f"edit/{wheres[0].kernel}", _CLASS, summary, 1.0, (), wheres, edit=edit)


def _wheres(candidate: Candidate) -> Iterator[Where]:
    file = candidate.file
    for line in _changed(candidate):
        around = [each for each in file.functions if each.lineno <= line <= (each.end_lineno or each.lineno)]
        name = max(around, key=lambda each: each.lineno).name if around else ""
        yield among(Where(file.file, line, file.lines[line - 1].strip(), kernel=name))
