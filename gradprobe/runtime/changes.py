"""The inputs that a run changed: which, where, and what changed them; and gradients in the memory of other tensors."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..frontends.triton.launches import storage_of
from ..inputs.guard_bands import mapped, same_bits
from ..inputs.tensor_layouts import Inputs, write
from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..model.intermediates import slots, title
from ..model.memory_finding import CHANGED, SHARED, MemoryFinding
from ..source.text import SourceLine
from ..targets.find import Target
from .allocations import asked_at, factory_mode

if TYPE_CHECKING:
    from torch import Tensor

Writer = tuple[str, SourceLine | None]
"""The kernel that changed an input first, "" where Python did; and its line, where that is known."""


class InputsBefore:
    """The inputs of a run as they were when it began, and what changed them, as far as it was watched."""

    def __init__(self, inputs: Inputs, allowed: Collection[str]) -> None:
        """`allowed` names the inputs that the target may write over."""
        # A backward may write into its results, and into delta, which no other step of a program reads.
        left_alone = {*OUTPUTS, "delta", *allowed}
        self._tensors = {name: tensor for name, tensor in inputs.tensors.items() if name not in left_alone}
        # The same memory, since a target may turn a tensor that it was given into another view, in place.
        self._memory = {name: tensor.detach() for name, tensor in self._tensors.items()}
        self._values = inputs.values
        self.writers: dict[str, Writer] = {}

    def changes(self, axes: Callable[[str], str]) -> list[MemoryFinding]:
        """The inputs that differ now, compared bit by bit, so that a NaN equals itself.

        Args:
            axes: of an input, one letter each; "" where its elements have no place.
        """
        found = []
        for name, now in self._memory.items():
            differ = self._differing(name)
            if bool(differ.any()):  # a sum would take eight bytes an element
                found.append(_overwritten(name, differ, self._values[name], now, axes(name)))
            before, after = _view(now), _view(self._tensors[name])
            if before != after:
                words = f"{name}, an input, is another view after the run: {after}; it had {before}"
                found.append(MemoryFinding(CHANGED, name, words, access="store"))
        return found

    def restore(self) -> None:
        """Puts back every value, and every view."""
        for name, tensor in self._memory.items():
            write(tensor, self._values[name])
            self._tensors[name].data = tensor

    def launched(self, kernel: str) -> None:
        """Notes the inputs that a kernel has just changed."""
        self._note((kernel, None))

    def operations(self) -> Any:
        """While entered, notes the inputs that operations of torch change, with the line of Python that called them."""

        def wrote(tensor: Tensor) -> None:
            file, line = asked_at()
            at = SourceLine(file, line, linecache.getline(file, line).strip()) if file else None
            self._note(("", at), storage_of(tensor))

        return factory_mode(lambda tensor, has_values: tensor, wrote, copies=False)

    def _note(self, writer: Writer, storage: int | None = None) -> None:
        for name, tensor in self._memory.items():
            if storage in (None, storage_of(tensor)) and bool(self._differing(name).any()):
                self.writers.setdefault(name, writer)

    def _differing(self, name: str) -> Tensor:
        return ~same_bits(self._memory[name], self._values[name])


def _overwritten(name: str, differ: Tensor, before: Tensor, now: Tensor, axes: str) -> MemoryFinding:
    index, count = tuple(differ.nonzero()[0].tolist()), int(differ.sum())
    was, became = _number(before[index]), _number(now[index])
    place: tuple[int | None, ...] = (None,) * 4
    if axes:  # batch, head, row and column
        padded = (index if axes[0] in "b1" else (0, *index)) + (0,) * 4
        place = tuple(at if letter else None for at, letter in zip(padded, slots(axes), strict=False))
    words = f"{name}, an input, is overwritten: {name}{list(index)} was {was} and is {became}"
    words += f"; {count:,} of {now.numel():,} elements differ"
    return MemoryFinding(
        CHANGED, name, words, access="store", lanes=count, place=place, actual=became, expected=was
    )  # fmt: skip


def written_by(change: MemoryFinding, kernel: str, line: SourceLine | None) -> MemoryFinding:
    """The same with the kernel or the line of Python that did it."""
    parts = [kernel] if kernel else []
    if line is not None:
        parts += [f"line {line.line}" if kernel else line.place, f"`{line.code}`"]
        change = replace(change, file=line.file, line=line.line, code=line.code)
    if not parts:
        return change
    sentence = change.sentence.replace("is overwritten", f"is overwritten by {', '.join(parts)}", 1)
    return replace(change, sentence=sentence, kernel=kernel)


def _view(tensor: Tensor) -> str:
    return f"shape {list(tensor.shape)} with strides {list(tensor.stride())}"


def _number(element: Tensor) -> str:
    return f"{element.item():.6g}" if element.is_floating_point() else str(element.item())


def shared(result: Mapping[str, Any], target: Target, case: Case, inputs: Inputs) -> Iterator[MemoryFinding]:
    """What each gradient shares with the inputs and with later gradients. Disjoint parts of one buffer share nothing.

    Autograd may return one tensor as several gradients, or dO itself as the gradient of a summand. It clones them where
    they are kept. So its gradients are compared only with the inputs other than dO.
    """
    given, allowed = inputs.tensors, {*OUTPUTS, *case.inplace}
    if not target.is_backward:
        allowed.add("do")
    gradients = {title(name): given[name] for name in OUTPUTS if name in given}
    for key, tensor in result.items():
        if tensor is not None and title(str(key)) in map(title, OUTPUTS):
            gradients[title(str(key))] = tensor
    others = [(name, tensor) for name, tensor in given.items() if name not in allowed]
    pairs = list(itertools.product(gradients.items(), others))
    if target.is_backward:
        pairs += itertools.combinations(gradients.items(), 2)
    for (name, tensor), (other, memory) in pairs:
        if count := _elements_of_both(tensor, memory):
            words = f"{name} lies in the memory of {other}: {count:,} of its elements are also its own"
            yield MemoryFinding(SHARED, name, f"{words}, and whatever changes one changes the other")


def _elements_of_both(tensor: Tensor, other: Tensor) -> int:
    """How many elements of one tensor share a byte with the other."""
    import torch

    if tensor.device != other.device or storage_of(tensor) != storage_of(other):
        return 0
    taken = mapped(max(tensor.untyped_storage().nbytes(), 1), torch.bool)
    _bytes_of(other, taken).fill_(True)
    return int(_bytes_of(tensor, taken).any(-1).sum())


def _bytes_of(tensor: Tensor, by_byte: Tensor) -> Tensor:
    """[*shape, bytes of an element] the part of an entry for each byte of a storage that a view of it covers."""
    size = tensor.element_size()
    strides = [step * size for step in tensor.stride()]
    return by_byte.as_strided([*tensor.shape, size], [*strides, 1], tensor.storage_offset() * size)
