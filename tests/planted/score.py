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
from tests.planted.figures import by_class, diagnosing, figures
from tests.planted.score_text import lines_of, progress
from tests.planted.scoring import DIAGNOSES, FACTORY, TRIALS, Judged, Outcome
from tests.planted.trials import Scored

# Of one trial; the slowest takes some seconds on an idle core.
LIMIT = 300.0


def score(
    names: Sequence[str],
    workers: int = 0,
    tell: Callable[[int, Judged], object] = lambda done, judged: None,
) -> list[Judged]:
    """Each trial probed and judged, in the order of the names.

    Args:
        workers: how many processes share the work; 0 for as many as there are cores.
        tell: told how many trials are done, and the latest one.
    """
    judged: dict[str, Judged] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ended in run_each(
            FACTORY, folder, names, timeout=LIMIT, workers=workers or os.cpu_count() or 1
        ):
            judged[ended.item] = Judged(TRIALS[ended.item], _outcome(ended))
            tell(len(judged), judged[ended.item])
    return [judged[name] for name in names]


def _outcome(ended: TaskResult) -> Outcome:
    if ended.result is not None:
        return ended.result
    words = (
        ended.raised.message
        if ended.raised
        else f"the process was {ended.crash.words}"
        if ended.crash
        else ""
    )
    return Outcome(ended.item, failure=words)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every threshold holds, else 1."""
    request = _parser().parse_args(arguments)
    names = [
        name for name in TRIALS if not request.only or any(part in name for part in request.only)
    ]
    names = [
        name for name in names if getattr(TRIALS[name], "fault_class", "") not in request.without
    ]
    if request.list:
        print("\n".join(_listed(name) for name in names))
        return 0
    if not names:
        print(
            f"no trial has {' or '.join(request.only)} in its name: --list shows all",
            file=sys.stderr,
        )
        return 2
    judged = score(names, request.workers, progress(len(names)))
    print("\n".join(lines_of(judged)))
    if request.json:
        request.json.write_text(json.dumps(_document(judged), indent=1) + "\n")
    return 0 if all(figure.holds for figure in figures(judged)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.score", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        default=[],
        help="those with one of these in their names",
    )
    parser.add_argument(
        "--without",
        nargs="+",
        metavar="CLASS",
        default=[],
        help="none of these classes of faults",
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
    if isinstance(trial, Scored):
        return f"{name}  {trial.fault_class}  {trial.cause}"
    return f"{name}  {type(trial).__name__.lower()}"


def _document(judged: Sequence[Judged]) -> dict[str, object]:
    """Every figure and every trial, for scripts."""
    return {
        "figures": [
            {"title": f.title, "count": f.count, "of": f.of, "bound": f.bound, "holds": f.holds}
            for f in figures(judged)
        ],
        "classes": [vars(each) for each in by_class(judged)],
        "diagnose_seconds": dict(
            zip(("median", "largest"), diagnosing(judged) or (), strict=False)
        ),
        "says_why": DIAGNOSES,
        "trials": [_row(each) for each in judged],
    }


def _row(judged: Judged) -> dict[str, object]:
    trial, outcome = judged.trial, judged.outcome
    expected = {
        "class": trial.fault_class, "first": trial.first, "head": trial.head, "causes": trial.cause.split()
    } if isinstance(trial, Scored) else {}  # fmt: skip
    return {
        "name": trial.name, "kind": type(trial).__name__.lower(), "right": judged.right, "expected": expected,
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
