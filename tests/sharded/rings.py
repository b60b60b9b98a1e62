"""The ring of examples/ with one fault planted, in real ranks or in threads of this process that stand in for them."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.tensor_layouts import Inputs, place
from gradprobe.model.failures import Failure
from gradprobe.model.report import Report
from gradprobe.pipeline.reported import report_of
from gradprobe.pipeline.run_check import run_check
from gradprobe.probing.observe import Execution
from gradprobe.runtime.run import Outcome, read_trace
from gradprobe.sharded import ranks as processes
from gradprobe.sharded.ranks import RankSetup, Task
from gradprobe.targets.bind import bind
from gradprobe.targets.find import find_target

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ring.py"
_MADE = "        p = (scores(k, step) - lse[..., None]).exp()\n"
_SENT = "        k, v, dk, dv = exchange([k, v, dk, dv], rank, world_size, group)\n"
_SEEN = "        s = scores(k, step)\n"
# By name: (text of the example, what stands in its place).
FAULTS = MappingProxyType(
    {
        "unmasked": ("rows[:, None], -torch.inf) if causal", "rows[:, None], -torch.inf) if causal and step != 3"),
        "last step": (_SEEN, _SEEN + "        s = s if step < world_size - 1 else s - torch.inf\n"),
        "misrouted": (_SENT, _SENT.replace(" dk,", "").replace(", dk", "") + "        if step < world_size - 1:\n"
                      "            (dk,) = exchange([dk], rank, world_size, group)\n"),
        "stale": (_MADE, "        here, last = (k, v), (k, v) if step == 0 else here\n"
                  "        k, v = last if (rank, step) == (3, 2) else here\n" + _MADE),
        "dk": ("dk += ", "dk += (rank != 3 or step != 2) * "),
    }
)  # fmt: skip
# What differs from `stale`: the buffers that are sent on are the right ones.
_SENDING = "        k, v, dk, dv = exchange([k"
_SENT_ON = (_SENDING, f"        k, v = here\n{_SENDING}")


def planted(folder: Path, fault: str) -> Path:
    return edited(folder, FAULTS[fault], *([_SENT_ON] if fault == "stale" else []))


def edited(folder: Path, *edits: tuple[str, str]) -> Path:
    """A copy of the example with other text: (what stands there once, what stands in its place)."""
    text = EXAMPLE.read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "ring.py"
    path.write_text(text)
    return path


def checked(word: str, **options: Any) -> Report:
    """The report of one layout in four ranks."""
    given = {"ranks": 4, "runs": ["contiguous"], "recover": False, **options}
    given = {"batch": 1, "heads": 2, "head_dim": 16, **given}
    try:
        return report_of(run_check(CheckRequest(word, None, None, given), ""))
    finally:
        processes.close_worlds()


class ThreadedWorld:
    """Ranks that are threads of this process, for a target whose module reaches others by its `exchange` alone."""

    def __init__(self, setup: RankSetup, ranks: int) -> None:
        self._target, self._ranks = find_target(setup.word, setup.family), ranks
        self._barrier, self._sent = threading.Barrier(ranks), dict[int, list[Any]]()
        self._target.function.__globals__["exchange"] = self._exchange

    def _exchange(
        self, tensors: list[Any], rank: int, world_size: int, group: object
    ) -> list[Any]:
        self._sent[rank] = [tensor.clone() for tensor in tensors]
        self._barrier.wait()
        found = self._sent[(rank - 1) % world_size]
        self._barrier.wait()
        return found

    def run(self, tasks: Sequence[Task]) -> list[Execution]:
        with ThreadPoolExecutor(self._ranks) as threads:
            return list(threads.map(self._answer, range(self._ranks), tasks))

    def _answer(self, rank: int, task: Task) -> Execution:
        tensors = {**place(task.values, task.assigned).tensors}
        world = {"rank": rank, "world_size": self._ranks, "group": object()}
        target = replace(self._target, world=world)
        result = target.function(**bind(target, task.case, tensors))
        trace = read_trace(result, task.case, "target")
        outcome = Outcome(trace, None, (), frozenset(), frozenset(task.values))
        return Execution(Inputs("", {}, {}), outcome, ())


def in_threads(monkeypatch: Any) -> None:
    made: dict[str, ThreadedWorld] = {}

    def world_of(setup: RankSetup, ranks: int) -> ThreadedWorld:
        return made.setdefault(setup.word, ThreadedWorld(setup, ranks))

    monkeypatch.setattr(processes, "world_of", world_of)


def failure_of(word: str, **options: Any) -> Failure:
    try:
        checked(word, **options)
    except Failure as failure:
        return failure
    raise AssertionError("it came to an end")
