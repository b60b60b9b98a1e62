"""Runs and diagnoses -> diagnoses with the edit that was tried: as a diff, with what matches with it."""

from __future__ import annotations

import difflib
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from ...model.allowance import Allowance
from ...model.mechanisms import door, spoken
from ...model.number import plural
from ...model.report import Diagnosis, TriedEdit, Where, causes_among
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...runtime.backend import interpreting
from ...source.repairs.candidates import Candidate
from ..lines import among
from ..why import Reasons
from .cause import Cause, causes_of
from .faults import faults_of
from .found import Found, Mend, Passed
from .hunt import Hunt
from .search import Search
from .trial import Came

# Others that pass and are named.
_OTHERS = 3
_CLASS = "EDIT"
# Of an edit beside which something else is wrong: no other case tells whether it is right.
_NOT_ALONE = ("other cases, while another cause is there",)


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
    wrong = dict.fromkeys(name for found in findings for name, one in found.items() if one.mismatched)
    faults = faults_of(experiment, reasons.diagnoses, list(wrong))
    with tempfile.TemporaryDirectory(prefix="gradprobe-edits-") as folder:
        search = Search(experiment, runs, Path(folder), allowance)
        if not (faults and search.wrong):
            return reasons
        found = search.run(causes_of(reasons, faults, search.wrong))
    candidates = [*(one.candidate for one in found.passed), *(one.candidate for one in found.mends.values())]
    told = {edit for one in candidates for edit in one.edits}
    spoken(lambda thing: thing[0] == "edits" and told.issuperset(thing[1]))
    known = (*reasons.known, *([_late(found, allowance.seconds)] if found.is_late else []))
    if not found.tried:
        return replace(reasons, known=known)
    seconds = round(time.monotonic() - start, 1)
    return replace(reasons, diagnoses=_placed(reasons.diagnoses, found, seconds), known=known)


def _late(found: Found, seconds: float) -> str:
    """What was left out for want of time."""
    untried = [hunt.cause.fault or "the cause" for hunt in found.hunts if hunt.untried]
    printed = f"; the printed edit of {_and(untried)} was not tried" if untried else ""
    return f"stopped after {seconds:.0f} s, when {plural(found.tried, 'edit')} had been tried{printed}"


def _placed(diagnoses: tuple[Diagnosis, ...], found: Found, seconds: float) -> tuple[Diagnosis, ...]:
    """The diagnoses with what undoes everything at the first cause of it, and what was tried for each other one."""
    if not found.passed:
        of_causes = {hunt.cause.number or 0: hunt for hunt in found.hunts if hunt.tried}
        hunts = ((one, of_causes.get(at)) for at, one in enumerate(diagnoses))
        return tuple(_hunted(one, hunt, found, seconds) if hunt is not None else one for one, hunt in hunts)
    first, edit = _passed(found, seconds)
    parts = {cause.number: (cause, candidate) for cause, candidate in first.parts}
    whole = tuple(structs.replace(one, edit=None) for one in diagnoses)
    told = (_part(one, found, first, *parts[at], seconds) if at in parts else one for at, one in enumerate(whole))
    return _with_passed(tuple(told), first.candidate, edit)


def _hunted(diagnosis: Diagnosis, hunt: Hunt, found: Found, seconds: float) -> Diagnosis:
    """A diagnosis with what came of the edits for it."""
    mend, edit = found.mends.get(hunt.cause.fault), _of_cause(hunt, found, seconds)
    where = diagnosis.where if mend is None else _proved(diagnosis.where, mend.candidate)
    return structs.replace(diagnosis, edit=edit, where=where)


def _passed(found: Found, seconds: float) -> tuple[Passed, TriedEdit]:
    """The smallest edit with which everything matches, and what is told of it."""
    first, *others = sorted(found.passed, key=_rank)
    left = f"; other lengths, if it takes them, stay wrong ({first.at_others})" if first.at_others else ""
    left += f"; {plural(first.needless, 'product')} of tiles that nothing is seen in with it" if first.needless else ""
    parts = [f"{_in_lines(candidate)} for {cause.fault}" for cause, candidate in first.parts]
    of = f"; of it {', '.join(parts)}" if parts else ""
    words = f"with it all matches: {', '.join(first.titles[:-1])} and {first.titles[-1]}{left}{of}"
    different = [one.candidate for one in others if not _changes(one.candidate) >= _changes(first.candidate)]
    named = tuple(dict.fromkeys(map(_in_a_line, different)))[:_OTHERS]
    edit = _edit(first.candidate, words, found.tried, seconds)
    doubts = [*first.judged.doubts, *([first.at_others] if first.at_others else [])]
    told = {"right": first.judged.right, "doubts": doubts, "not_run": first.judged.not_run}
    told["beyond"] = first.judged.beyond
    of_cases = {name: tuple(dict.fromkeys(cases)) for name, cases in told.items()}
    return first, structs.replace(edit, matches=True, others=named, needless=first.needless, **of_cases)


def _part(
    diagnosis: Diagnosis, found: Found, first: Passed, cause: Cause, candidate: Candidate, seconds: float
) -> Diagnosis:
    """A diagnosis with what of an edit with which everything matches undoes it."""
    mend = found.mends.get(cause.fault)
    words = _what_is_mended(mend) if mend is not None else "it is this cause's part of the edit with which all matches"
    edit = structs.replace(_edit(candidate, words, found.tried, seconds), mends=True)
    edit = structs.replace(edit, not_run=() if first.is_certain else _NOT_ALONE)
    return structs.replace(diagnosis, edit=edit, where=_proved(diagnosis.where, candidate))


def _of_cause(hunt: Hunt, found: Found, seconds: float) -> TriedEdit:
    """What came of the edits for one cause, or for all that is wrong."""
    mend = found.mends.get(hunt.cause.fault)
    if mend is not None:
        edit = _edit(mend.candidate, _what_is_mended(mend), hunt.tried, seconds)
        return structs.replace(edit, mends=True, not_run=_NOT_ALONE)
    if hunt.closest is not None:
        candidate, came, before = hunt.closest
        return _edit(candidate, _what_is_left(came, before), hunt.tried, seconds)
    is_telling = hunt.moves or hunt.tried < _TELLING
    words = f"none of {plural(hunt.tried, 'edit')} {'brings a result right' if is_telling else _WITHOUT_EFFECT}"
    words += " without breaking what is right with other options" if hunt.breaks else ""
    return TriedEdit(matches=False, words=words, tried=hunt.tried, seconds=seconds)


# How many edits in a row do not change a single bit by chance.
_TELLING = 4
_WITHOUT_EFFECT = (
    "changes anything: the target keeps the kernels that ran first, perhaps in an operator that it registers"
)


def _edit(candidate: Candidate, words: str, tried: int, seconds: float) -> TriedEdit:
    file, diff = candidate.file.file, diff_of(candidate)
    return TriedEdit(matches=False, words=words, file=file, diff=diff, tried=tried, seconds=seconds)


def _rank(passed: Passed) -> tuple[bool, int, int, int, int, int, int, float, int]:
    """What is certain first, then what is right in more cases, then the file's own text, then the smallest."""
    doubts, not_run = len(passed.judged.doubts) + bool(passed.at_others), len(passed.judged.not_run)
    return not passed.is_certain, doubts, passed.needless, not_run, _newness(passed.candidate), *_size(passed.candidate)


def _newness(candidate: Candidate) -> int:
    """How many of the lines that an edit puts in the file has nowhere yet, neither in its kernel nor in a sibling."""
    there = {line.strip() for line in candidate.file.text.splitlines()}
    new = (line[1:].strip() for line in diff_of(candidate).splitlines()[2:] if line.startswith("+"))
    return sum(line not in there for line in new)


def _size(candidate: Candidate) -> tuple[int, int, float, int]:
    """How much an edit changes: lines, and words that it adds; of as many the likelier first, then the shorter."""
    changed = [line for line in diff_of(candidate).splitlines()[2:] if line[0] in "+-"]
    words = [len(re.findall(r"\w+", line)) * (1 if line[0] == "+" else -1) for line in changed]
    return len(changed), max(sum(words), 0), candidate.cost, sum(len(line) for line in changed)


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


def _changes(candidate: Candidate) -> set[str]:
    """What an edit takes away and puts in: of one that does more all of another's."""
    return {line for line in diff_of(candidate).splitlines()[2:] if line[0] in "+-"}


def _in_lines(candidate: Candidate) -> str:
    lines = list(map(str, _changed(candidate)))
    return f"line{'s' * bool(lines[1:])} {', '.join(lines)}"


def _what_is_left(came: Came, before: Came) -> str:
    right = sorted(before.names - came.names)
    left = [f"{name} still wrong in {plural(came.heads[name], 'head')}" for name in sorted(came.names)]
    closer = f"{_match(right)} with it" if right else "fewer elements are wrong"
    return "; ".join([closer, *left])


def _match(names: Sequence[str]) -> str:
    return f"{_and(names)} {'match' if names[1:] else 'matches'}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _what_is_mended(mend: Mend) -> str:
    """What comes right in the layouts that show a cause, and what stays wrong, by which others."""
    groups: dict[str, list[str]] = {}
    for layout, came, before in mend.layouts:
        groups.setdefault(_left_by_others(came, before), []).append(layout)
    told = (f"in {_and(layouts)} {words}" for words, layouts in groups.items())
    return f"with it this fault is gone: {'; '.join(told)}"


def _left_by_others(came: Came, before: Came) -> str:
    if came.matches:
        return "all matches"
    right, left, by = sorted(before.names - came.names), sorted(came.names), _and(came.left_by)
    if not right:
        return f"all that is wrong is due to {by}"
    return f"{_match(right)}, and {_and(left) or 'memory'} {'stay' if left[1:] else 'stays'} wrong, by {by}"


def _with_passed(diagnoses: tuple[Diagnosis, ...], candidate: Candidate, edit: TriedEdit) -> tuple[Diagnosis, ...]:
    """The diagnoses with the edit at the cause that it is of; it is a cause of its own where none names its lines."""
    lines = {(candidate.file.file, line) for line in _changed(candidate)}
    named = causes_among(diagnoses)
    of_line = [one for one in named if lines & {(where.file, where.line) for where in one.where}]
    cause = next(iter(of_line or named), None)
    if cause is None:
        return (_new(candidate, edit), *diagnoses)
    told = structs.replace(cause, edit=edit, where=_proved(cause.where, candidate))
    return tuple(told if one is cause else one for one in diagnoses)


def _proved(where: Sequence[Where], candidate: Candidate) -> tuple[Where, ...]:
    """Lines with those first that an edit changes with which all matches: no other is as sure."""
    said = {(one.file, one.line): one for one in where}
    changed = [said.pop((one.file, one.line), one) for one in _wheres(candidate)]
    return (*changed, *said.values())


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
        code = file.lines[line - 1].strip()
        yield among(Where(file.file, line, code, kernel=name, note="what the tried edit changes"))
