"""Runs kernels under the watcher."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradprobe.frontends.triton.interpreter.memory_watch import watched_memory
from gradprobe.inputs.memory import UnwrittenElements
from gradprobe.model.memory_finding import MemoryFinding


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
