"""Runs kernels, and targets with planted faults, under the watcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gradprobe.frontends.triton.interpreter.memory.memory_watch import Memory, watched_memory
from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import UnwrittenElements
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.case import Case
from gradprobe.model.memory_finding import MemoryFinding
from gradprobe.runtime.run import Outcome, run_target
from gradprobe.targets.find import find_target
from tests.planted.planting import KERNELS, Edit, edited


def watched(
    launch: Callable[[], Any],
    tensors: Mapping[str, Tensor],
    unwritten: UnwrittenElements | None = None,
) -> Memory:
    """What is seen of some launches, none of which may trouble the watcher."""
    with watched_memory(tensors, unwritten) as memory:
        launch()
    assert not memory.failures
    return memory


def the_finding(memory: Memory) -> MemoryFinding:
    (finding,) = memory.findings
    return finding


def says(finding: MemoryFinding, *words: str) -> bool:
    """Whether all these words are in its sentence."""
    return all(word in finding.sentence for word in words)


def run_watched(
    target: str, case: Case, assigned: tuple[tuple[str, str], ...] = ()
) -> tuple[Memory, Outcome]:
    """A target under one layout, as a check runs it."""
    inputs = place(draw(case), assigned)
    with watched_memory(inputs.tensors) as memory:
        outcome = run_target(find_target(target), case, inputs)
    assert not memory.failures
    return memory, outcome


def run_planted(
    folder: Path,
    edits: Sequence[Edit],
    case: Case,
    assigned: tuple[tuple[str, str], ...] = (),
    file: str = "lazy.py",
) -> tuple[Memory, list[str]]:
    """One of the tool's own targets with faults in its kernels, and the lines of the file that ran."""
    copy = folder / "planted.py"
    copy.write_text(edited((KERNELS / file).read_text(), tuple(edits)))
    memory, _ = run_watched(f"{copy}:{file.removesuffix('.py')}_intermediates", case, assigned)
    return memory, copy.read_text().splitlines()
