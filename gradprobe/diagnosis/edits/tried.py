"""Runs and diagnoses -> diagnoses with the edit that was tried: as a diff, with what matches with it."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from ...frontends.triton import interpreting
from ...model.allowance import Allowance
from ...model.mechanisms import door, spoken
from ...model.number import plural
from ...model.report import Diagnosis, TriedEdit, Where, causes_among
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...source.rewrites.candidates import Candidate
from ..lines import among
from ..why import Reasons
from .candidates_search import Found, Passed, Search
from .faults import faults_of
from .trial import Came

# Others that pass and are named.
_OTHERS = 3
_CLASS = "EDIT"
# How many edits in a row do not change a single bit by chance.
_TELLING = 4
_WITHOUT_EFFECT = (
    "changes anything: the target keeps the kernels that ran first, perhaps in an operator that it registers"
)


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
    start, findings = time.monotonic(), [run.measured.comparison.findings for run in runs if run.measured]
    wrong = dict.fromkeys(name for found in findings for name, finding in found.items() if finding.mismatched)
    faults = faults_of(experiment, reasons.diagnoses, list(wrong))
    with tempfile.TemporaryDirectory(prefix="gradprobe-edits-") as folder:
        search = Search(experiment, runs, Path(folder), allowance)
        if not (faults and search.wrong):
            return reasons
        found = search.run(faults)
    told = {edit for passed in found.passed for edit in passed.candidate.edits}
    spoken(lambda thing: thing[0] == "edits" and told.issuperset(thing[1]))
    late = f"stopped after {allowance.seconds:.0f} s, when {plural(found.tried, 'edit')} had been tried"
    known = (*reasons.known, *([late] if found.is_late else []))
    seconds = round(time.monotonic() - start, 1)
    diagnoses = _placed(reasons.diagnoses, found, seconds) if found.tried else reasons.diagnoses
    return replace(reasons, diagnoses=diagnoses, known=known)


def _placed(diagnoses: tuple[Diagnosis, ...], found: Found, seconds: float) -> tuple[Diagnosis, ...]:
    """The diagnoses with what was tried at the cause that has a line of it; one more where no cause is named.

    The lines of an edit with which everything matches come first there: no other is as sure.
    """
    if not found.passed:
        first = [structs.replace(one, edit=_of_none(found, seconds)) for one in diagnoses[:1]]
        return (*first, *diagnoses[1:])
    best, *others = sorted(found.passed, key=_rank)
    edit, at = _of_passed(best, others, found.tried, seconds), _cause_of(diagnoses, best.candidate)
    if at is None:
        return (_new(best.candidate, edit), *diagnoses)
    said = {(where.file, where.line): where for where in at.where}
    changed = [said.pop((where.file, where.line), where) for where in _wheres(best.candidate)]
    told = structs.replace(at, edit=edit, where=(*changed, *said.values()))
    return tuple(told if each is at else each for each in diagnoses)


def _cause_of(diagnoses: Sequence[Diagnosis], candidate: Candidate) -> Diagnosis | None:
    """The cause that has a line of an edit, else the first; None where none is named."""
    named, lines = causes_among(diagnoses), set(candidate.lines)
    of_line = [each for each in named if lines & {at.line for at in each.where if at.file == candidate.file.file}]
    return next(iter(of_line or named), None)


def _of_passed(best: Passed, others: Sequence[Passed], tried: int, seconds: float) -> TriedEdit:
    """What is told of the smallest edit with which everything matches."""
    tiles = f"; {plural(best.needless, 'product')} of tiles that nothing is seen in with it" if best.needless else ""
    words = f"with it all matches: {', '.join(best.titles[:-1])} and {best.titles[-1]}{tiles}"
    changes = set(best.candidate.changes)
    different = [each.candidate for each in others if not set(each.candidate.changes) >= changes]
    return structs.replace(
        _edit(best.candidate, words, tried, seconds),
        matches=True,
        others=tuple(dict.fromkeys(map(_in_a_line, different)))[:_OTHERS],
        needless=best.needless,
        right=tuple(dict.fromkeys(best.judged.right)),
        doubts=tuple(dict.fromkeys(best.judged.doubts)),
        not_run=tuple(dict.fromkeys(best.judged.not_run)),
        beyond=tuple(dict.fromkeys(best.judged.beyond)),
    )


def _of_none(found: Found, seconds: float) -> TriedEdit:
    """What came of the edits, where none makes everything match."""
    if found.closest is not None:
        candidate, came, before = found.closest
        return _edit(candidate, _what_is_left(came, before), found.tried, seconds)
    is_telling = found.moves or found.tried < _TELLING
    words = f"none of {plural(found.tried, 'edit')} {'brings a result right' if is_telling else _WITHOUT_EFFECT}"
    words += " without breaking what is right with other options" if found.breaks else ""
    return TriedEdit(matches=False, words=words, tried=found.tried, seconds=seconds)


def _edit(candidate: Candidate, words: str, tried: int, seconds: float) -> TriedEdit:
    file = candidate.file.file
    return TriedEdit(matches=False, words=words, file=file, diff=candidate.diff, tried=tried, seconds=seconds)


def _rank(passed: Passed) -> tuple[float, ...]:
    """What is certain first, then what is right in more cases, then the file's own text, then the smallest."""
    judged = passed.judged
    certainty = (not passed.is_certain, len(judged.doubts), passed.needless, len(judged.not_run))
    return *certainty, _newness(passed.candidate), *_size(passed.candidate)


def _newness(candidate: Candidate) -> int:
    """How many of the lines that an edit puts in the file has nowhere yet, neither in its kernel nor in a sibling."""
    there = {line.strip() for line in candidate.file.text.splitlines()}
    return sum(line[0] == "+" and line[1:].strip() not in there for line in candidate.changes)


def _size(candidate: Candidate) -> tuple[int, int, float, int]:
    """How much an edit changes: lines, and words that it adds; of as many the likelier first, then the shorter."""
    words = [len(re.findall(r"\w+", line)) * (1 if line[0] == "+" else -1) for line in candidate.changes]
    return len(words), max(sum(words), 0), candidate.cost, sum(map(len, candidate.changes))


def _in_a_line(candidate: Candidate) -> str:
    new = [line[1:].strip() for line in candidate.changes if line[0] == "+"]
    return f"line {candidate.lines[0]}: {' / '.join(new)}"


def _what_is_left(came: Came, before: Came) -> str:
    right = sorted(before.names - came.names)
    left = [f"{name} still wrong in {plural(came.heads[name], 'head')}" for name in sorted(came.names)]
    match = f"{_and(right)} {'match' if right[1:] else 'matches'} with it" if right else "fewer elements are wrong"
    return "; ".join([match, *left])


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _new(candidate: Candidate, edit: TriedEdit) -> Diagnosis:
    """The cause that the edit alone shows: what its row says of it."""
    wheres = tuple(_wheres(candidate))
    says = candidate.says or "with another text there all matches"
    summary = f"line {wheres[0].line} of {wheres[0].kernel}: {says}"
    return Diagnosis(f"edit/{wheres[0].kernel}", _CLASS, summary, 1.0, (), wheres, edit=edit)


def _wheres(candidate: Candidate) -> Iterator[Where]:
    file = candidate.file
    for line in candidate.lines:
        around = [each for each in file.functions if each.lineno <= line <= (each.end_lineno or each.lineno)]
        name = max(around, key=lambda each: each.lineno).name if around else ""
        code = file.lines[line - 1].strip()
        yield among(Where(file.file, line, code, kernel=name, note="what the tried edit changes"))
