"""Judge: an edit that passes the check is put to other cases, until they have come to all that the edit may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ...model.case import Case
from ...probing.experiment import Experiment
from ...source.kernel_file import KernelFile
from ...source.reach import SEVERAL, TURNS, Goal, Reach, reach_of
from ...source.rewrites.candidates import Candidate
from ...source.syntax import lines_of
from ..cases import TAILS, Trial, further, ladder, others
from .trial import EditResult

# No budget holds it: kernels say it in several ways. An edit of something else leaves it as it is.
_DEAD_ROWS = "the LSE of rows that see no key"
# Rows that are few tiles of any size.
_SHORT = 64
# Cases that are drawn at a time: each shows whether more are needed, and two take no longer than one on two cores.
_AT_A_TIME = 2
# Other cases of an edit that is not certain any more.
_FEW = 5
Run = Callable[[Candidate, Sequence[Trial]], list[EditResult | None]]
"""What comes of an edit in each trial; None of those after one that does not match."""


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
    def is_open(self) -> bool:
        """Whether it may still be certain."""
        return not (self.is_broken or self.doubts)

    @property
    def unreached(self) -> dict[Goal, Reach]:
        """What of the functions no right run came to."""
        return {goal: each for each in self.reaches for goal in each.unreached(self.reached)}

    def tell_what_was_not_run(self, *, is_drawn: bool) -> None:
        """Names it, once all cases were run.

        Args:
            is_drawn: whether cases could be drawn for all that the target may take: what none came to, none can.
        """
        missing, beyond = list(self.not_run), list[str]()
        for goal, of in self.unreached.items():
            (missing if not is_drawn or of.tells(goal) else beyond).append(goal.in_words)
        self.not_run = (*missing, *([] if self.right else ["any other case"]))
        self.beyond = () if self.doubts else tuple(beyond)  # with a doubt no more were drawn


class Judge:
    """Puts edits of one target to other cases. The file as it is shows which of them the target takes."""

    def __init__(self, experiment: Experiment, run: Run, spoilt: AbstractSet[str], laid: Sequence[str]) -> None:
        """Args:
        run: runs trials with an edit, in order, until one does not match.
        spoilt: the results that are wrong in the check.
        laid: the layouts of the check.
        """
        self._case, self._target, self._run = experiment.case, experiment.target, run
        self._spoilt, self._laid = spoilt, laid
        self._before: dict[Trial, EditResult | None] = {}
        self._never: set[Goal] = set()

    def judged(self, candidate: Candidate) -> JudgedEdit | None:
        """What came of an edit; None where it breaks what is right, or runs, without it."""
        judged = JudgedEdit(reaches=tuple(edited_functions(candidate)))
        for lengths in ladder(self._case):
            found = list(others(self._case, self._target, lengths, self._laid, is_again=bool(judged.right)))
            if not judged.right:  # where it compiles once it does in the others
                self._put_to(candidate, judged, [replace(each, is_lowered=True) for each in found[:1]])
            if judged.right:
                rest = [each for each in found[1:] if each.title not in judged.right]
                self._put_to(candidate, judged, rest if judged.is_open else rest[:_FEW])
            if judged.is_broken or (judged.right and (judged.doubts or lengths is not TAILS)):
                break
        drawn = list(further(self._case, self._target.takes, judged.right))
        for at in range(0, len(drawn), _AT_A_TIME):
            # What none came to with another edit none is drawn for again.
            never = {goal for goal, of in judged.unreached.items() if goal.line not in of.edited} & self._never
            left = judged.unreached.keys() - never
            few = [each for each in drawn[at : at + _AT_A_TIME] if _may_reach(each.case, left)]
            self._put_to(candidate, judged, few if judged.is_open else [])
        if drawn and judged.is_open:
            self._never |= judged.unreached.keys()
        judged.tell_what_was_not_run(is_drawn=bool(drawn))
        return None if judged.is_broken else judged

    def _put_to(self, candidate: Candidate, judged: JudgedEdit, cases: Sequence[Trial]) -> None:
        """Runs an edit in some cases, until it breaks one."""
        waiting = list(cases)
        while waiting and not judged.is_broken:
            for result in self._run(candidate, [replace(other, traced=judged.reaches) for other in waiting]):
                other = waiting.pop(0)
                if result is None or not result.matches:
                    judged.is_broken = not self._is_kept(candidate, judged, other, result)
                    break
                judged.right.append(other.title)
                judged.reached |= result.reached
                before = self._unedited(candidate, other) if result.of_dead_rows else None
                if before is not None and before.of_dead_rows != result.of_dead_rows:
                    judged.doubts.append(_DEAD_ROWS)

    def _is_kept(self, candidate: Candidate, judged: JudgedEdit, other: Trial, result: EditResult | None) -> bool:
        """Whether what does not match with an edit is no better without it."""
        before = self._unedited(candidate, other)
        if before is None:  # it came to no end, or crashed: nothing is known of the case
            judged.not_run += (other.title,)
            return result is None
        if result is None or result.failure:
            return bool(before.failure)
        # Where memory suffers anyhow, how often says nothing.
        is_harmed = result.harm > 0 and not before.harm
        if not before.failure and (is_harmed or not result.names <= before.names):
            return False
        # The target does not take it where what is right in the check is as wrong with the edit as it is without it.
        # Where nothing is finite nothing says so.
        errors = {name: (before.errors.get(name, 0.0), result.errors.get(name, 0.0)) for name in before.names}
        as_wrong = {name for name, (here, there) in errors.items() if here == there > 0}
        if not as_wrong - self._spoilt:
            judged.doubts.append(other.title)
        return True

    def _unedited(self, candidate: Candidate, trial: Trial) -> EditResult | None:
        if trial not in self._before:
            (self._before[trial],) = self._run(candidate.undone, [trial])
        return self._before[trial]


def _may_reach(case: Case, left: AbstractSet[Goal]) -> bool:
    """Whether a case may come to what is left: whatever makes no turn of a loop, or one, does so in a short case."""
    is_short = min(case.seqlen_q, case.seqlen_k) <= _SHORT
    return any(is_short or goal.kind != TURNS or goal.value == SEVERAL for goal in left)


def edited_functions(candidate: Candidate) -> list[Reach]:
    """The kernels that an edit changes, by its own text, and those whose launch it changes.

    Of an edit of other host code those that the function launches: what it changes may come to each of them.
    """
    file = KernelFile(candidate.file.file, candidate.text, candidate.file.function)
    lines, kernels = set(_lines(candidate)), {each.name for each in file.kernels}
    inside = [each for each in file.functions if lines & {*lines_of(each)}]
    hosts = [lines_of(each) for each in inside if each.name not in kernels]
    launched, of_hosts = set(), set()
    for kernel in kernels:
        for call in file.calls_of(kernel):
            launch = file.statement(call)
            if lines & {*lines_of(launch)}:
                launched.add(kernel)
            if any(launch.lineno in host for host in hosts):
                of_hosts.add(kernel)
    names = {each.name for each in inside} & kernels
    return reach_of(file, names | (launched or of_hosts), kernels, lines)


def _lines(candidate: Candidate) -> Iterator[int]:
    """The lines of the text with an edit that hold what it changes."""
    shift = 0
    for edit in sorted(candidate.edits, key=lambda edit: edit.start):
        start = edit.start + shift
        first = candidate.text.count("\n", 0, start) + 1
        yield from range(first, first + edit.text.count("\n") + 1)
        shift += len(edit.text) - (edit.end - edit.start)
