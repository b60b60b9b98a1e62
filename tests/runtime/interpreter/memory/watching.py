"""Runs kernels, and targets with planted faults, under the watcher."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradprobe.frontends.triton.interpreter.memory_watch import Memory, watched_memory
from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import UnwrittenElements
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.case import Case
from gradprobe.model.memory_finding import MemoryFinding
from gradprobe.runtime.run import Outcome, run_target
from gradprobe.targets.find import find_target


def findings(
    launch: Callable[[], Any], unwritten: UnwrittenElements | None = None, **tensors: Tensor
) -> tuple[MemoryFinding, ...]:
    with watched_memory(tensors, unwritten) as memory:
        launch()
    assert not memory.failures
    return memory.findings


def finding(
    launch: Callable[[], Any], unwritten: UnwrittenElements | None = None, **tensors: Tensor
) -> MemoryFinding:
    (one,) = findings(launch, unwritten, **tensors)
    return one


def says(one: MemoryFinding, *words: str) -> bool:
    return all(word in one.sentence for word in words)


def run_watched(
    target: str,
    case: Case,
    assigned: tuple[tuple[str, str], ...] = (),
    unwritten: UnwrittenElements | None = None,
) -> tuple[Memory, Outcome]:
    inputs = place(draw(case), assigned)
    with watched_memory(inputs.tensors, unwritten) as memory:
        outcome = run_target(find_target(target), case, inputs)
    assert not memory.failures
    return memory, outcome
