"""A run in which kernels are launched with taps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model.failures import Failure
from ...source.triton_source import Function, call_tree, named
from ..launches import launching_through
from . import sentences
from .rewrite import Rewritten, Sighting, outermost, parameters, rewrite, sight
from .tap import Tap

if TYPE_CHECKING:
    from torch import Tensor

# A NaN that no arithmetic yields: it marks every place that nothing has been stored to.
_UNTOUCHED = 0x7FC5A5A5


@dataclass(frozen=True)
class Contents:
    """What a tap stored."""

    values: Tensor
    """0 where nothing was; in the dtype that the kernel held, which float32 holds exactly."""
    stored: Tensor
    """bool, of the same shape."""
    is_out_of_range: bool
    """Whether a scalar index, such as that of the head, lay outside the tensor."""


@dataclass(frozen=True)
class TapReading:
    """What taps saw in a run."""

    values: Mapping[str, Tensor]
    """By intermediate, in its shape and in the dtype that the kernel held; 0 where nothing was stored."""
    notes: tuple[str, ...]
    """What a reader should know of a tap: heads in which nothing was stored, an index out of range."""
    unstored: Mapping[str, Tensor]
    """By intermediate with batches and heads: [B, H] bool, where nothing was stored."""


@dataclass(frozen=True)
class _TappedLaunch:
    """A kernel that was launched and has the variable of a tap."""

    sightings: Mapping[int, Sighting]
    """By the number of the tap."""
    rewritten: Rewritten
    arguments: Mapping[str, Any]
    """What the rewritten kernel takes besides its own arguments."""


class Session:
    """Taps while they are open; `read` gives what they saw."""

    def __init__(self, taps: Sequence[Tap], shapes: Mapping[str, Sequence[int]], device: str) -> None:
        self._taps, self._shapes, self._device = tuple(taps), shapes, device
        self._launches: dict[int, _TappedLaunch | None] = {}
        self._functions: dict[Any, Function] = {}
        """All that were launched, by their Python functions; the others too."""
        self._sightings: list[dict[Any, Sighting]] = [{} for _ in taps]
        self._memory: dict[tuple[int, Any], Tensor] = {}
        """By the number of the tap and the function that it taps."""
        self.failure: Failure | None = None
        """Why a tap made a launch fail."""

    def read(self) -> TapReading:
        """What every tap saw. Where several tap one intermediate, the later given wins where both stored.

        Raises:
            UsageFailure: no kernel has a tap's variable, or more than one has, or its index does not fit.
            TargetFailure: the code with the variable never ran.
        """
        if self.failure is not None:
            raise self.failure
        values: dict[str, Tensor] = {}
        stored: dict[str, Tensor] = {}
        notes: list[str] = []
        for number, tap in enumerate(self._taps):
            name, new = tap.intermediate, self._contents(number)
            values[name] = new.values.where(new.stored, values.get(name, new.values))
            stored[name] = new.stored | stored.get(name, new.stored)
            notes += sentences.notes(tap, new.stored, is_out_of_range=new.is_out_of_range)
        unstored = {name: ~there.flatten(2).any(2).cpu() for name, there in stored.items() if there.dim() >= 3}
        return TapReading(values, tuple(notes), unstored)

    def _contents(self, number: int) -> Contents:
        tap, sightings = self._taps[number], self._sightings[number]
        usable = {plain: sighting for plain, sighting in sightings.items() if sighting.places}
        usable = {plain: one for plain, one in usable.items() if one.function.name == tap.function} or usable
        if not usable:
            raise sentences.not_found(tap, [*self._functions.values()], [*sightings.values()])
        if len(usable) > 1:
            raise sentences.ambiguous(tap, [sighting.function.name for sighting in usable.values()])
        ((plain, sighting),) = usable.items()
        if (failure := sentences.misplaced(tap, sighting)) is not None:
            raise failure
        contents = _read(self._memory[number, plain], self._shapes[tap.intermediate])
        if not contents.stored.any():
            raise sentences.nothing_stored(tap, sighting.function.name, contents.stored, contents.is_out_of_range)
        return contents

    def launch(self, run: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Launches a kernel with the taps that it has the variables of."""
        if id(kernel) not in self._launches:
            self._launches[id(kernel)] = self._prepared(kernel)
        launch = self._launches[id(kernel)]
        if launch is None:
            return run(kernel, *args, **kwargs)
        launch.rewritten.refresh()
        try:
            return run(launch.rewritten.jit, *args, **kwargs, **launch.arguments)
        except Exception as error:
            self.failure = self.failure or sentences.raised(error, self._taps, launch.sightings)
            raise

    def _prepared(self, kernel: Any) -> _TappedLaunch | None:
        try:
            tree = call_tree(kernel)
        except (OSError, SyntaxError):
            return None
        self._functions |= {function.plain: function for function in tree}
        used: dict[int, Sighting] = {}
        arguments: dict[str, Any] = {}
        for number, tap in enumerate(self._taps):
            found = [one for function in named(tree, tap.function) if (one := sight(tree, function, tap))]
            # The outermost, where what comes of the others ends up.
            usable = outermost([one for one in found if one.places])
            self._sightings[number] |= {one.function.plain: one for one in usable or found}
            if len(usable) == 1 and sentences.misplaced(tap, usable[0]) is None:
                used[number] = usable[0]
                arguments |= self._arguments(number, usable[0].function.plain)
        return _TappedLaunch(used, rewrite(tree, used, self._taps), arguments) if used else None

    def _arguments(self, number: int, plain: Any) -> dict[str, Any]:
        """What a kernel is passed for a tap: memory, and four sizes, the first of them 1 where there are fewer axes."""
        shape = self._shapes[self._taps[number].intermediate]
        if (number, plain) not in self._memory:
            self._memory[number, plain] = _untouched(shape, self._device)
        given = (self._memory[number, plain], *(1,) * (4 - len(shape)), *shape)
        return dict(zip(parameters(number), given, strict=True))


def _untouched(shape: Sequence[int], device: str) -> Tensor:
    """Room for an intermediate in float32, and for marks behind it, that nothing has been stored to."""
    import torch

    from ...kernels.triton.tap import MARKS

    bits = torch.full((math.prod(shape) + len(MARKS),), _UNTOUCHED, dtype=torch.int32, device=device)
    return bits.view(torch.float32)


def _read(memory: Tensor, shape: Sequence[int]) -> Contents:
    import torch

    from ...kernels.triton.tap import MARKS

    size, is_touched = math.prod(shape), memory.view(torch.int32) != _UNTOUCHED
    marks, stored = dict(zip(MARKS, is_touched[size:].tolist(), strict=True)), is_touched[:size]
    values = torch.where(stored, memory[:size], 0.0)
    dtype = torch.bfloat16 if marks["bfloat16"] else torch.float16 if marks["float16"] else torch.float32
    return Contents(values.reshape(*shape).to(dtype), stored.reshape(*shape), marks["out of range"])


@contextlib.contextmanager
def tapped(taps: Sequence[Tap], shapes: Mapping[str, Sequence[int]], device: str) -> Iterator[Session]:
    """While open, every Triton kernel that has a tap's variable is launched with a store of it.

    The kernels, their files and their modules stay as they are. To be opened around `recorded_launches`, which then
    notes the kernels that the user wrote. A tap that fails makes the launch fail; the exception that leaves here is
    then the tap's own.

    Args:
        shapes: the intermediates that exist, as `trace.expected_shapes` gives them.
        device: "cpu" or "cuda", where the target runs.

    Raises:
        UsageFailure: a tap of an intermediate that does not exist, or with too few or too many indices, or whose index
            does not fit its variable.
    """
    import triton  # noqa: F401 - a target may import it no sooner than it launches

    for tap in taps:
        _check(tap, shapes)
    session = Session(taps, shapes, device)
    with launching_through(session.launch):
        try:
            yield session
        except Exception as error:
            if session.failure is not None:
                raise session.failure from error
            raise


def _check(tap: Tap, shapes: Mapping[str, Sequence[int]]) -> None:
    if tap.intermediate not in shapes:
        raise tap.failure(f": {tap.intermediate} does not exist in this case", f"it has {', '.join(shapes)}")
    shape = list(shapes[tap.intermediate])
    if len(tap.indices) != len(shape):
        words = f" has {len(tap.indices)} indices, but {tap.intermediate} has {len(shape)} axes"
        raise tap.failure(words, f"give one for each of {shape}")
