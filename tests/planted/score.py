"""The score: `python -m tests.planted.score` plants every fault, and says how many are found, placed and explained."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gradprobe.processes import TaskResult, run_each
from tests.planted.planting import FAULT
from tests.planted.score_text import by_class, diagnosing, figures, lines_of
from tests.planted.scored import TRIALS
from tests.planted.scoring import FACTORY, Judged, Outcome

# Of one trial; the slowest takes some seconds on an idle core.
LIMIT = 300.0


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
        if (not request.only or any(part in name for part in request.only))
        and trial.fault_class not in request.without
    ]  # fmt: skip
    if request.list:
        print("\n".join(_listed(name) for name in names))
        return 0
    if not names:
        named = " or ".join(request.only)
        print(f"no trial has {named} in its name: --list shows all", file=sys.stderr)
        return 2
    judged = score(names, request.workers, _progress(len(names)))
    print("\n".join(lines_of(judged)))
    if request.json:
        request.json.write_text(json.dumps(_document(judged), indent=1) + "\n")
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
        "--list", action="store_true", help="only print the names, with class and cause"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything there")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; as many as cores by default"
    )
    return parser


def _listed(name: str) -> str:
    trial = TRIALS[name]
    what = f"{trial.fault_class}  {trial.cause}" if trial.kind == FAULT else trial.kind
    return f"{name}  {what}"


def _document(judged: Sequence[Judged]) -> dict[str, object]:
    """Every figure and every trial, for scripts."""
    seconds = zip(("median", "largest"), diagnosing(judged) or (), strict=False)
    of = ("title", "count", "of", "bound", "holds")
    return {
        "figures": [{name: getattr(one, name) for name in of} for one in figures(judged)],
        "classes": by_class(judged), "diagnose_seconds": dict(seconds), "trials": [_row(each) for each in judged],
    }  # fmt: skip


def _row(judged: Judged) -> dict[str, object]:
    trial, outcome = judged.trial, judged.outcome
    expected = {
        "class": trial.fault_class, "first": trial.first, "head": trial.head, "causes": trial.cause.split()
    } if trial.kind == FAULT else {}  # fmt: skip
    return {
        "name": trial.title, "kind": trial.kind, "right": judged.right, "expected": expected,
        "verdict": outcome.verdict, "failure": outcome.failure, "first": outcome.first, "batch": outcome.batch,
        "head": outcome.head, "row": outcome.row, "memory": sorted(outcome.memory), "seconds": outcome.seconds,
        "diagnose_seconds": outcome.diagnosing,
        "diagnoses": [
            {"fault": each.fault, "class": each.fault_class, "explained": each.explained, "summary": each.summary}
            for each in outcome.diagnoses
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
