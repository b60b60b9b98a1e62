"""The score: `python -m tests.planted.score` plants every fault, and says how many are found, placed and explained."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from gradprobe.model.report import Diagnosis
from gradprobe.processes import TaskResult, run_each
from tests.planted.planting import EQUIVALENT, FAULT, UNCOVERED, Planted
from tests.planted.scored import SEEN, TRIALS
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
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0

    @property
    def holds(self) -> bool:
        return not self.of or self.least <= self.share <= self.most

    @property
    def bound(self) -> str:
        """What must hold, in words."""
        least, most = f"at least {100 * self.least:.0f} %", f"at most {100 * self.most:.0f} %"
        return least if self.least else most


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
        figure(UNCOVERED, "line of an uncovered fault right", "line"),
        figure(UNCOVERED, "no hypothesis fits an uncovered fault", "right", least=28 / 30),
    ]


def by_class(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """What came of the planted faults of each class, in the order in which the classes of the field are listed."""
    counts: dict[str, Counter[str]] = {}
    for each in judged:
        if each.trial.kind == FAULT:
            came = {"faults": 1} | {
                key: getattr(each, key) for key in ("found", "placed", "named")
            }
            counts.setdefault(each.trial.fault_class, Counter()).update(came)
    return [{"fault_class": name, **counts[name]} for name in SEEN if name in counts]


def diagnosing(judged: Sequence[Judged]) -> tuple[float, float] | None:
    """The median and the largest seconds of a diagnosis; None where there was none."""
    seconds = [each.outcome.diagnosing for each in judged if each.outcome.diagnosing is not None]
    return (median(seconds), max(seconds)) if seconds else None


def lines_of(judged: Sequence[Judged]) -> Iterator[str]:
    """All of it."""
    for figure in figures(judged):
        if figure.of:
            mark, count = "✓" if figure.holds else "✗", f"{figure.count:>3} of {figure.of:>3}"
            yield f"{mark} {figure.title:<40} {count}  {100 * figure.share:5.1f} %  ({figure.bound})"
    seconds = diagnosing(judged)
    if seconds:
        yield f"  seconds of a diagnosis: median {seconds[0]:.2f}, largest {seconds[1]:.2f}"
    for each in judged:
        if each.trial.kind != EQUIVALENT and not each.line:
            first, changed = each.outcome.diagnoses[:1], sorted(each.trial.lines())
            told = [f"{where.kernel}:{where.line}" for one in first for where in one.where]
            yield f"  no line: {each.trial.title} {[one.fault for one in first]} {told} {changed[:6]}"
    rows = by_class(judged)
    for row in (
        (["class", "faults", "found", "place", "cause"], *(row.values() for row in rows))
        if rows
        else ()
    ):
        first, *others = row
        yield f"{first:<7}" + "".join(f"{other:>7}" for other in others)
    misses = [each for each in judged if not each.right]
    yield f"{len(misses)} missed" if misses else "none missed"
    for each in misses:
        yield from _of_miss(each)


def _of_miss(judged: Judged) -> Iterator[str]:
    trial, outcome = judged.trial, judged.outcome
    yield f"  {trial.title}"
    if outcome.failure:
        yield f"    no report: {outcome.failure}"
        return
    if trial.kind == FAULT:
        yield f"    expected  {_place(trial, trial.seen)}; {trial.cause}"
    yield f"    came      {outcome.verdict}; {_place(outcome)}"
    if outcome.memory:
        yield f"    memory    {', '.join(sorted(outcome.memory))}"
    for word, diagnosis in zip(("said", "runner-up"), outcome.diagnoses, strict=False):
        yield f"    {word:<9} {_said(diagnosis)}"
    yield from (f"    denied    {words}" for words in outcome.denied)
    if not outcome.diagnoses:
        yield "    said      no hypothesis fits"


def _place(of: Planted | Outcome, seen: str = "") -> str:
    known = [(axis, getattr(of, axis)) for axis in ("batch", "head", "row")]
    told = [f"{axis} {at}" for axis, at in known if at is not None]
    return " ".join([seen or of.first or "no wrong number", *told])


def _said(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.fault} {100 * diagnosis.explained:.0f} %: {diagnosis.summary}"


def score(
    names: Sequence[str], workers: int = 0, tell: Callable[[int, Judged], object] = lambda done, judged: None
) -> list[Judged]:  # fmt: skip
    """Each trial probed and judged, in the order of the names.

    Args:
        workers: how many processes share the work; 0 for as many as there are cores.
        tell: told how many trials are done, and the latest one.
    """
    judged: dict[str, Judged] = {}
    workers = workers or os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        for ended in run_each(FACTORY, folder, names, timeout=LIMIT, workers=workers):
            judged[ended.item] = Judged(TRIALS[ended.item], _outcome(ended))
            tell(len(judged), judged[ended.item])
    return [judged[name] for name in names]


def _outcome(ended: TaskResult) -> Outcome:
    if ended.result is not None:
        return ended.result
    crash = f"the process was {ended.crash.words}" if ended.crash else ""
    return Outcome(ended.item, failure=ended.raised.message if ended.raised else crash)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every threshold holds, else 1."""
    request = _parser().parse_args(arguments)
    names = [
        name for name, trial in TRIALS.items()
        if any(part in name for part in request.only or [""])
        and trial.fault_class not in request.without
    ]  # fmt: skip
    if not names:
        named = " or ".join(request.only)
        print(f"no trial has {named} in its name", file=sys.stderr)
        return 2
    judged = score(names, request.workers, _progress(len(names)))
    print("\n".join(lines_of(judged)))
    return 0 if all(figure.holds for figure in figures(judged)) else 1


def _progress(total: int) -> Callable[[int, Judged], None]:
    """Tells on stderr how far it is, where that is a terminal."""

    def tell(done: int, judged: Judged) -> None:
        if sys.stderr.isatty():
            words = f"\r\x1b[K{done} of {total}  {judged.trial.title}"
            print(words, end="\n" if done == total else "", file=sys.stderr, flush=True)

    return tell


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.score", description=__doc__)
    several = {"nargs": "+", "default": []}
    parser.add_argument(
        "--only", metavar="NAME", help="those with one of these in their names", **several
    )
    parser.add_argument(
        "--without", metavar="CLASS", help="none of these classes of faults", **several
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; as many as cores by default"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
