"""Judge: an edit that passes the check is put to other cases, until they have come to all that the edit may change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...probing.experiment import Experiment
from ...source.kernel_file import KernelFile
from ...source.reach import SEVERAL, TURNS, Goal, Reach, reach_of
from ...source.rewrites.candidates import Candidate
from ...source.syntax import lines_of
from ..cases import TAILS, WHOLE, Trial, further, others
from .trial import EditResult

# No budget holds it: kernels say it in several ways. An edit of something else leaves it as it is.
_DEAD_ROWS = "the LSE of rows that see no key"
# Rows that are few tiles of any size.
_SHORT = 64
# Other cases of an edit that is not certain any more.
_FEW = 5
Run = Callable[[Candidate, Sequence[Trial]], list[EditResult | None]]
"""What comes of an edit in each trial, in order; None of those after one that does not match."""


@dataclass
class JudgedEdit:
    """An edit with which all of the check matches, and what came of it in cases unlike the check's."""

    candidate: Candidate
    titles: Sequence[str] = ()
    right: list[str] = field(default_factory=list)
    """In what other cases differ from the check in which all matches."""
    doubts: list[str] = field(default_factory=list)
    """The same of those that are wrong with and without it, which the target perhaps does not take."""
    not_run: list[str] = field(default_factory=list)
    """What may tell it from another edit and no right run came to; and cases that end in nothing even without it."""
    beyond: list[str] = field(default_factory=list)
    """What else of the edited functions no case comes to that the target takes."""
    reaches: tuple[Reach, ...] = ()
    reached: set[Goal] = field(default_factory=set)
    is_broken: bool = False
    """Whether it broke what is right, or runs, without it."""

    @property
    def is_certain(self) -> bool:
        return not (self.doubts or self.not_run)

    @property
    def unreached(self) -> dict[Goal, Reach]:
        """What of the functions no right run came to."""
        return {goal: each for each in self.reaches for goal in each.unreached(self.reached)}


class Judge:
    """Puts edits of one target to other cases. The file as it is shows which of them the target takes."""

    def __init__(
        self, experiment: Experiment, run: Run, spoilt: Collection[str], laid: Sequence[str]
    ) -> None:
        """Args:
        spoilt: the results that are wrong in the check.
        laid: the layouts of the check.
        """
        self._case, self._target, self._run = experiment.case, experiment.target, run
        self._spoilt, self._laid = {*spoilt}, laid
        self._before: dict[Trial, EditResult | None] = {}
        self._never: set[Goal] = set()
        """What no case came to with another edit: none is drawn for that again."""

    def judged(self, candidate: Candidate, titles: Sequence[str] = ()) -> JudgedEdit | None:
        """What came of an edit; None where it breaks what is right, or runs, without it."""
        judged = JudgedEdit(candidate, titles, reaches=tuple(edited_functions(candidate)))
        # The lengths of the check itself come last: until one is taken.
        for lengths in (TAILS, WHOLE, (self._case.seqlen_q, 2 * self._case.seqlen_q)):
            cases = list(
                others(self._case, self._target, lengths, self._laid, is_again=bool(judged.right))
            )
            if not judged.right:  # where it compiles once it does in the others
                self._put_to(judged, [replace(each, is_lowered=True) for each in cases[:1]])
            if judged.right:
                rest = [each for each in cases[1:] if each.title not in judged.right]
                self._put_to(judged, rest[:_FEW] if judged.doubts else rest)
            if judged.is_broken or (judged.right and (judged.doubts or lengths is not TAILS)):
                break
        drawn = list(further(self._case, self._target.takes, judged.right))
        for trial in drawn:
            is_short = min(trial.case.seqlen_q, trial.case.seqlen_k) <= _SHORT
            for goal, of in judged.unreached.items():
                is_asked = goal not in self._never or goal.line in of.edited
                # Whatever makes no turn of a loop, or one, does so in a short case.
                if (
                    is_asked
                    and (is_short or goal.kind != TURNS or goal.value == SEVERAL)
                    and not judged.doubts
                ):
                    self._put_to(judged, [trial])
                    break
        self._tell_what_was_not_run(judged, is_drawn=bool(drawn))
        return None if judged.is_broken else judged

    def _tell_what_was_not_run(self, judged: JudgedEdit, *, is_drawn: bool) -> None:
        """Args: is_drawn: whether cases could be drawn for all that the target may take: none comes to what is left."""
        for goal, of in judged.unreached.items():
            if not is_drawn or of.tells(goal):
                judged.not_run.append(goal.in_words)
            elif not judged.doubts:  # with a doubt no more were drawn
                judged.beyond.append(goal.in_words)
        if is_drawn and not (judged.is_broken or judged.doubts):
            self._never |= judged.unreached.keys()
        if not judged.right:
            judged.not_run.append("any other case")

    def _put_to(self, judged: JudgedEdit, cases: Sequence[Trial]) -> None:
        waiting = [replace(each, traced=judged.reaches) for each in cases]
        while waiting and not judged.is_broken:
            for result in self._run(judged.candidate, list(waiting)):
                trial = replace(waiting.pop(0), traced=())
                if result is None or not result.matches:
                    judged.is_broken = not self._is_kept(judged, trial, result)
                    break
                judged.right.append(trial.title)
                judged.reached |= result.reached
                before = self._unedited(judged.candidate, trial) if result.of_dead_rows else None
                if before is not None and before.of_dead_rows != result.of_dead_rows:
                    judged.doubts.append(_DEAD_ROWS)

    def _is_kept(self, judged: JudgedEdit, trial: Trial, result: EditResult | None) -> bool:
        """Whether what does not match with an edit is no better without it."""
        before = self._unedited(judged.candidate, trial)
        if before is None:  # it came to no end, or crashed: nothing is known of the case
            judged.not_run.append(trial.title)
            return result is None
        if result is None or result.failure:
            return bool(before.failure)
        # Where memory suffers anyhow, how often says nothing.
        is_harmed = result.harm > 0 and not before.harm
        if not before.failure and (is_harmed or not result.names <= before.names):
            return False
        # The target does not take it where what is right in the check is as wrong with the edit as it is without it.
        # Where nothing is finite nothing says so.
        as_wrong = {
            name
            for name in before.names
            if 0 < before.errors.get(name, 0.0) == result.errors.get(name)
        }
        if as_wrong <= self._spoilt:
            judged.doubts.append(trial.title)
        return True

    def _unedited(self, candidate: Candidate, trial: Trial) -> EditResult | None:
        if trial not in self._before:
            (self._before[trial],) = self._run(candidate.undone, [trial])
        return self._before[trial]


def edited_functions(candidate: Candidate) -> list[Reach]:
    """The kernels that an edit changes, by its own text, and those whose launch it changes.

    Of an edit of other host code those that the function launches, or all: what it changes may come to each of them.
    """
    file = KernelFile(candidate.file.file, candidate.text, candidate.file.function)
    lines, kernels = {*_lines(candidate)}, {each.name for each in file.kernels}
    inside = {each.name for each in file.functions if not lines.isdisjoint(lines_of(each))}
    launched, of_hosts = set[str](), set[str]()
    for kernel in kernels:
        for call, host in file.callers_of(kernel):
            if not lines.isdisjoint(lines_of(file.statement(call))):
                launched.add(kernel)
            if host.name in inside - kernels:
                of_hosts.add(kernel)
    return reach_of(file, (inside & kernels) | (launched or of_hosts) or kernels, kernels, lines)


def _lines(candidate: Candidate) -> Iterator[int]:
    """The lines of the text with an edit that hold what it changes."""
    shift = 0
    for edit in sorted(candidate.edits, key=lambda edit: edit.start):
        first = candidate.text.count("\n", 0, edit.start + shift) + 1
        yield from range(first, first + edit.text.count("\n") + 1)
        shift += len(edit.text) - (edit.end - edit.start)
