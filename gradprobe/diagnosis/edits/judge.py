"""Judge: an edit that passes the check is put to other cases, until they have come to all that the edit may change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ...probing.experiment import Experiment
from ...source.kernel_file import KernelFile
from ...source.reach import Goal, Reach, reach_of
from ...source.repairs.candidates import Candidate
from ...source.repairs.spots import calls_of
from .others import TAILS, WHOLE, Other, further, others
from .trial import Came, Trial

_FORWARD = "O"
# No budget holds it: kernels say it in several ways. An edit of something else leaves it as it is.
_DEAD_ROWS = "the LSE of rows that see no key"
Run = Callable[[Candidate, Sequence[Trial]], list[Came | None]]
"""What comes of an edit in each trial; None of those after one that does not match."""


@dataclass
class Judged:
    """What came of an edit in cases unlike the check's."""

    right: list[str] = field(default_factory=list)
    """In what these differ from the check, of those in which all matches with it."""
    doubts: list[str] = field(default_factory=list)
    """The same of those that are wrong with it and without it, which the target perhaps does not take."""
    not_run: tuple[str, ...] = ()
    """What of the edited functions no right run came to, in words; and cases that came to no end even without it."""


class Judge:
    """Puts edits of one target to other cases. The file as it is shows which of them the target takes."""

    def __init__(self, experiment: Experiment, run: Run, spoilt: Collection[str], laid: Sequence[str]) -> None:
        """Args:
        run: runs trials with an edit, in order, until one does not match.
        spoilt: the results that are wrong in the check.
        laid: the layouts of the check.
        """
        self._experiment, self._run, self._spoilt, self._laid = experiment, run, spoilt, laid
        self._before: dict[Trial, Came | None] = {}

    def judged(self, candidate: Candidate) -> Judged | None:
        """What came of an edit; None where it breaks what is right, or runs, without it."""
        reaches, judged, reached = edited_functions(candidate), Judged(), set[Goal]()
        for lengths in (TAILS, WHOLE):
            found = list(others(self._experiment.case, *self._takes, lengths, self._laid))
            if not self._all_are_kept(candidate, found[:1], reaches, judged, reached):
                return None
            if judged.right:
                break
        if not self._all_are_kept(candidate, found[1:], reaches, judged, reached):
            return None
        for other in further(self._experiment.case, self._takes[0], judged.right):
            is_open = _left(reaches, reached) and not judged.doubts
            if is_open and not self._all_are_kept(candidate, [other], reaches, judged, reached):
                return None
        judged.not_run += (*_left(reaches, reached), *([] if judged.right else ["any other case"]))
        return judged

    @property
    def _takes(self) -> tuple[Collection[str], Collection[str]]:
        target = self._experiment.target
        return target.takes.keys(), target.required

    def _all_are_kept(
        self,
        candidate: Candidate,
        cases: Sequence[Other],
        reaches: Sequence[Reach],
        judged: Judged,
        reached: set[Goal],
    ) -> bool:
        """Runs an edit in some cases; whether none of them is broken by it."""
        waiting = list(cases)
        while waiting:
            came = self._run(candidate, [_trial(other, reaches) for other in waiting])
            for other, one in zip(list(waiting), came, strict=True):
                waiting.pop(0)
                if one is None or not one.matches:
                    if not self._is_kept(candidate, other, one, judged):
                        return False
                    break
                judged.right.append(other.feature)
                reached |= one.reached
                before = self._unedited(candidate, other) if one.of_dead_rows else None
                if before is not None and before.of_dead_rows != one.of_dead_rows:
                    judged.doubts.append(_DEAD_ROWS)
        return True

    def _is_kept(self, candidate: Candidate, other: Other, came: Came | None, judged: Judged) -> bool:
        """Whether what does not match with an edit is no better without it."""
        before = self._unedited(candidate, other)
        if before is None:  # it came to no end, or crashed: nothing is known of the case
            judged.not_run = (*judged.not_run, other.feature)
            return came is None
        if came is None or came.failure:
            return bool(before.failure)
        if before.failure:
            judged.doubts.append(other.feature)
            return True
        if not came.is_no_worse_than(before):
            return False
        # A forward that is right in the check, and wrong here without the edit too, does not take the case.
        if _FORWARD in self._spoilt or _FORWARD not in before.names:
            judged.doubts.append(other.feature)
        return True

    def _unedited(self, candidate: Candidate, other: Other) -> Came | None:
        trial = _trial(other, ())
        if trial not in self._before:
            (self._before[trial],) = self._run(Candidate(candidate.file, (), 0.0), [trial])
        return self._before[trial]


def _trial(other: Other, reaches: Sequence[Reach]) -> Trial:
    return Trial(other.case, other.assigned, other.feature, other.is_spread, tuple(reaches))


def _left(reaches: Sequence[Reach], reached: Collection[Goal]) -> list[str]:
    return [words for each in reaches for words in each.left(reached)]


def edited_functions(candidate: Candidate) -> list[Reach]:
    """The kernels that an edit changes, by its own text, and those that are launched where it changes a launch."""
    text = candidate.text
    file = KernelFile(candidate.file.file, text, candidate.file.function)
    lines = set(_lines(candidate))
    inside = [each for each in file.functions if lines & _of(each)]
    kernels = {each.name for each in file.kernels}
    names = {each.name for each in inside} & kernels
    names |= {kernel for kernel in kernels for call in calls_of(file, kernel) if lines & _of(file.statement(call))}
    return reach_of(file, names, kernels, lines)


def _of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _lines(candidate: Candidate) -> Iterator[int]:
    """The lines of the text with an edit that hold what it changes."""
    shift = 0
    for edit in sorted(candidate.edits, key=lambda edit: edit.start):
        start = edit.start + shift
        first = candidate.text.count("\n", 0, start) + 1
        yield from range(first, first + edit.text.count("\n") + 1)
        shift += len(edit.text) - (edit.end - edit.start)
