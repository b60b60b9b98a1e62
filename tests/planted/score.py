"""The score: `python -m tests.planted.score` plants every fault, and says how many are found, placed and explained."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradprobe.processes import TaskResult, run_each
from tests.planted.planting import EQUIVALENT, FAULT, UNCOVERED
from tests.planted.scored import TRIALS
from tests.planted.scoring import FACTORY, Judged, Outcome

# Of one trial; the slowest takes some seconds on an idle core.
LIMIT = 300.0


@dataclass(frozen=True)
class Figure:
    """A count of trials, and the least or the most that it may be, as a share."""

    title: str
    count: int
    of: int
    least: float = 0.0
    most: float = 1.0

    @property
    def holds(self) -> bool:
        return not self.of or self.least <= self.count / self.of <= self.most


def figures(judged: Sequence[Judged]) -> list[Figure]:
    """Of planted faults, of equivalent edits and of faults that no hypothesis is about."""

    def figure(kind: str, title: str, what: str, **bounds: float) -> Figure:
        of = [each for each in judged if each.trial.kind == kind]
        return Figure(title, sum(getattr(each, what) for each in of), len(of), **bounds)

    return [
        figure(FAULT, "planted faults found", "found", least=1.0),
        figure(FAULT, "first wrong intermediate and head right", "placed", least=0.98),
        figure(EQUIVALENT, "equivalent edits flagged", "wrong", most=0.0),
        figure(UNCOVERED, "uncovered faults found", "found", least=1.0),
        figure(FAULT, "cause named first", "named", least=0.99),
        figure(FAULT, "line of a planted fault right", "line"),
        figure(UNCOVERED, "line of an uncovered fault right", "line", least=14 / 18),
        figure(UNCOVERED, "no hypothesis fits an uncovered fault", "right", least=17 / 18),
    ]


def lines_of(judged: Sequence[Judged]) -> Iterator[str]:
    for figure in figures(judged):
        if figure.of:
            yield f"{'✓' if figure.holds else '✗'} {figure.title:<40} {figure.count:>3} of {figure.of:>3}"
    for each in judged:
        if each.trial.kind != EQUIVALENT and not each.line:
            lines = [where.line for one in each.outcome.diagnoses[:1] for where in one.where]
            yield f"  no line: {each.trial.title}: {lines} for {sorted(each.trial.lines())[:6]}"
    misses = [each for each in judged if not each.right]
    yield f"{len(misses)} missed" if misses else "none missed"
    for each in misses:
        trial, outcome = each.trial, each.outcome
        yield f"  {trial.title} {outcome.failure}: expected {trial.first} {trial.head} {trial.row} {trial.cause}"
        yield f"    came {outcome.verdict} {outcome.first} {outcome.head} {outcome.row} {sorted(outcome.memory)}"
        for one in outcome.diagnoses[:2]:
            yield f"    said {one.fault} {100 * one.explained:.0f} %: {one.summary}"


def score(names: Sequence[str], workers: int = 0) -> list[Judged]:
    """Each trial probed and judged, in the order of the names, by as many processes as there are cores for 0."""
    judged: dict[str, Judged] = {}
    with tempfile.TemporaryDirectory() as folder:
        many = workers or os.cpu_count() or 1
        for ended in run_each(FACTORY, folder, names, timeout=LIMIT, workers=many):
            judged[ended.item] = Judged(TRIALS[ended.item], _outcome(ended))
    return [judged[name] for name in names]


def _outcome(ended: TaskResult) -> Outcome:
    if ended.result is not None:
        return ended.result
    crash = f"the process was {ended.crash.words}" if ended.crash else ""
    return Outcome(ended.item, failure=ended.raised.message if ended.raised else crash)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every threshold holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.score", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", default=[""], help="names with one of these in them"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; as many as cores by default"
    )
    request = parser.parse_args(arguments)
    names = [name for name in TRIALS if any(part in name for part in request.only)]
    if not names:
        print(f"no trial has {' or '.join(request.only)} in its name", file=sys.stderr)
        return 2
    judged = score(names, request.workers)
    print("\n".join(lines_of(judged)))
    return 0 if all(figure.holds for figure in figures(judged)) else 1


if __name__ == "__main__":
    sys.exit(main())
