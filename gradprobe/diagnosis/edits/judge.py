"""Judge: an edit that passes the check is put to other cases, until they have come to all that the edit may change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ...model.case import Case
from ...probing.experiment import Experiment
from ...source.kernel_file import KernelFile, calls_of
from ...source.reach import SEVERAL, TURNS, Goal, Reach, reach_of
from ...source.rewrites.candidates import Candidate
from .cases import TAILS, further, ladder, others
from .trial import Came, Trial

# No budget holds it: kernels say it in several ways. An edit of something else leaves it as it is.
_DEAD_ROWS = "the LSE of rows that see no key"
# Rows that are few tiles of any size.
_SHORT = 64
# Cases that are drawn at a time: each shows whether more are needed, and two take no longer than one on two cores.
_AT_A_TIME = 2
Run = Callable[[Candidate, Sequence[Trial]], list[Came | None]]
"""What comes of an edit in each trial; None of those after one that does not match."""
_Place = tuple[str, str, str, int, str]
"""The function and the text of the line of a goal, and the goal without its line."""


@dataclass
class JudgedEdit:
    """What came of an edit in cases unlike the check's."""

    right: list[str] = field(default_factory=list)
    """In what these differ from the check, of those in which all matches with it."""
    doubts: list[str] = field(default_factory=list)
    """The same of those that are wrong with it and without it, which the target perhaps does not take."""
    not_run: tuple[str, ...] = ()
    """What of the edited functions may tell it from another and no right run came to, in words; and cases that came to
    no end even without it."""
    beyond: tuple[str, ...] = ()
    """What else of them no case comes to that the target takes."""
    reaches: tuple[Reach, ...] = ()
    """The functions that it changes."""
    reached: set[Goal] = field(default_factory=set)
    is_broken: bool = False
    """Whether it broke what is right, or runs, without it."""

    @property
    def unreached(self) -> list[tuple[Reach, Goal]]:
        """What of the functions no right run came to."""
        return [(each, goal) for each in self.reaches for goal in each.unreached(self.reached)]

    def places(self, text: str) -> dict[_Place, Goal]:
        """What is left, by the text of its line, which is the same with other edits."""
        lines, found = text.splitlines(), {}
        for each, goal in self.unreached:
            line = lines[goal.line - 1].strip()
            found[each.function.name, line, goal.kind, goal.value, goal.name] = goal
        return found

    def tell_what_was_not_run(self, *, is_drawn: bool) -> None:
        """Names it, once all cases were run.

        Args:
            is_drawn: whether cases could be drawn for all that the target may take: what none came to, none can.
        """
        missing = [goal.in_words for each, goal in self.unreached if not is_drawn or each.tells(goal)]
        self.not_run += (*missing, *([] if self.right else ["any other case"]))
        if not self.doubts:  # with one no more were drawn
            self.beyond = tuple(goal.in_words for _, goal in self.unreached if goal.in_words not in missing)


class Judge:
    """Puts edits of one target to other cases. The file as it is shows which of them the target takes."""

    def __init__(self, experiment: Experiment, run: Run, spoilt: AbstractSet[str], laid: Sequence[str]) -> None:
        """Args:
        run: runs trials with an edit, in order, until one does not match.
        spoilt: the results that are wrong in the check.
        laid: the layouts of the check.
        """
        self._experiment, self._run, self._spoilt, self._laid = experiment, run, spoilt, laid
        self._before: dict[Trial, Came | None] = {}
        self._never: set[_Place] = set()

    def judged(self, candidate: Candidate) -> JudgedEdit | None:
        """What came of an edit; None where it breaks what is right, or runs, without it."""
        judged, text = JudgedEdit(reaches=tuple(edited_functions(candidate))), candidate.text
        right, case, target = judged.right, self._experiment.case, self._experiment.target
        for lengths in ladder(case):
            found = list(others(case, target.takes, target.required, lengths, self._laid, is_again=bool(right)))
            if right or (self._all_are_kept(candidate, judged, found[:1]) and right):
                self._all_are_kept(candidate, judged, [other for other in found[1:] if other.title not in right])
            if judged.is_broken or judged.doubts or (right and lengths is not TAILS):
                break
        more = list(further(case, target.takes, right))
        for at in range(0, len(more), _AT_A_TIME):
            left = (
                []
                if judged.doubts
                else [goal for place, goal in judged.places(text).items() if place not in self._never]
            )
            drawn = [other for other in more[at : at + _AT_A_TIME] if _may_reach(other.case, left)]
            if not judged.is_broken:
                self._all_are_kept(candidate, judged, drawn)
        if judged.is_broken:
            return None
        self._never |= judged.places(text).keys() if more and not judged.doubts else set()
        judged.tell_what_was_not_run(is_drawn=bool(more))
        return judged

    def _all_are_kept(self, candidate: Candidate, judged: JudgedEdit, cases: Sequence[Trial]) -> bool:
        """Runs an edit in some cases, until it breaks one; whether it breaks none."""
        waiting = list(cases)
        if waiting and not judged.right:  # where it compiles once it does in the others
            waiting[0] = replace(waiting[0], is_lowered=True)
        while waiting and not judged.is_broken:
            for came in self._run(candidate, [replace(other, traced=judged.reaches) for other in waiting]):
                other = waiting.pop(0)
                if came is None or not came.matches:
                    judged.is_broken = not self._is_kept(candidate, judged, other, came)
                    break
                judged.right.append(other.title)
                judged.reached |= came.reached
                before = self._unedited(candidate, other) if came.of_dead_rows else None
                if before is not None and before.of_dead_rows != came.of_dead_rows:
                    judged.doubts.append(_DEAD_ROWS)
        return not judged.is_broken

    def _is_kept(self, candidate: Candidate, judged: JudgedEdit, other: Trial, came: Came | None) -> bool:
        """Whether what does not match with an edit is no better without it."""
        before = self._unedited(candidate, other)
        if before is None:  # it came to no end, or crashed: nothing is known of the case
            judged.not_run += (other.title,)
            return came is None
        if came is None or came.failure:
            return bool(before.failure)
        if not (before.failure or came.is_no_worse_than(before)):
            return False
        # The target does not take it where what is right in the check is as wrong with the edit as it is without it.
        as_wrong = {name for name in before.names if str(before.errors.get(name)) == str(came.errors.get(name))}
        judged.doubts += [] if as_wrong - self._spoilt else [other.title]
        return True

    def _unedited(self, candidate: Candidate, trial: Trial) -> Came | None:
        if trial not in self._before:
            (self._before[trial],) = self._run(candidate.undone, [trial])
        return self._before[trial]


def _may_reach(case: Case, left: Sequence[Goal]) -> bool:
    """Whether a case may come to what is left: whatever makes no turn of a loop, or one, does so in a short case."""
    is_short = min(case.seqlen_q, case.seqlen_k) <= _SHORT
    return any(is_short or goal.kind != TURNS or goal.value == SEVERAL for goal in left)


def edited_functions(candidate: Candidate) -> list[Reach]:
    """The kernels that an edit changes, by its own text, and those whose launch it changes.

    Of an edit of other host code those that the function launches: what it changes may come to each of them.
    """
    text = candidate.text
    file = KernelFile(candidate.file.file, text, candidate.file.function)
    lines = set(_lines(candidate))
    inside = [each for each in file.functions if lines & _of(each)]
    kernels = {each.name for each in file.kernels}
    names = {each.name for each in inside} & kernels
    launches = [(kernel, file.statement(call)) for kernel in kernels for call in calls_of(file, kernel)]
    launched = {kernel for kernel, at in launches if lines & _of(at)}
    hosts = [_of(each) for each in inside if each.name not in kernels]
    names |= launched or {kernel for kernel, at in launches for host in hosts if at.lineno in host}
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
