"""A run in which kernels are launched with taps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model.failures import Failure
from ...model.intermediates import lookup
from ...source.triton_source import Function, call_tree, named
from ..launches import launching_through
from . import sentences
from .rewrite import Rewritten, Sighting, outermost, parameters, rewrite, sight
from .tap import Buffer, Contents, Tap, new_buffer

if TYPE_CHECKING:
    from torch import Tensor


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
    """A kernel that was launched."""

    tree: Sequence[Function]
    sightings: Mapping[int, Sighting]
    """By the number of the tap."""
    rewritten: Rewritten | None
    arguments: Mapping[str, Any]
    """What the rewritten kernel takes besides its own arguments."""


class Session:
    """Taps while they are open; `read` gives what they saw."""

    def __init__(self, taps: Sequence[Tap], shapes: Mapping[str, Sequence[int]], device: str) -> None:
        self._taps = tuple(taps)
        self._shapes = shapes
        self._device = device
        self._launches: dict[int, _TappedLaunch] = {}
        self._chosen: dict[int, Function] = {}
        self._buffers: dict[tuple[int, Any], Buffer] = {}
        """By the number of the tap and the Python function that it taps."""
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
        seen = [(tap, self._contents(number)) for number, tap in enumerate(self._taps)]
        values: dict[str, Tensor] = {}
        stored: dict[str, Tensor] = {}
        for tap, new in seen:
            name, below = tap.intermediate, values.get(tap.intermediate)
            values[name] = new.values if below is None else new.values.where(new.stored, below)
            stored[name] = new.stored if below is None else new.stored | stored[name]
        unstored = {name: ~there.flatten(2).any(2).cpu() for name, there in stored.items() if there.dim() >= 3}
        return TapReading(values, tuple(note for tap, new in seen for note in sentences.notes(tap, new)), unstored)

    def _contents(self, number: int) -> Contents:
        tap = self._taps[number]
        trees = [launch.tree for launch in self._launches.values()]
        sighted = [launch.sightings[number] for launch in self._launches.values() if number in launch.sightings]
        usable = {sighting.function.plain: sighting for sighting in sighted if sighting.places}
        exact = {plain: sighting for plain, sighting in usable.items() if sighting.function.name == tap.function}
        usable = exact or usable
        if not usable:
            raise sentences.not_found(tap, trees, sighted)
        if len(usable) > 1:
            raise sentences.ambiguous(tap, [sighting.function.name for sighting in usable.values()])
        ((plain, sighting),) = usable.items()
        if sighting.stale:
            raise tap.failure(
                f": in {sighting.function.name}, where {tap.variable!r} is computed, {sighting.stale}",
                "index it with what is right in every turn, for example start_n + tl.arange(0, BLOCK_N)",
            )
        contents = self._buffers[number, plain].read()
        if not contents.stored.any():
            raise sentences.nothing_stored(tap, sighting.function, contents)
        return contents

    def launch(self, run: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Launches a kernel with the taps that it has the variables of."""
        launch = self._launches.get(id(kernel))
        if launch is None:
            launch = self._launches[id(kernel)] = self._prepared(kernel)
        if launch.rewritten is None:
            return run(kernel, *args, **kwargs)
        launch.rewritten.refresh()
        try:
            return run(launch.rewritten.jit, *args, **kwargs, **launch.arguments)
        except Exception as error:
            self.failure = self.failure or sentences.raised(error, self._taps, launch.sightings)
            raise

    def _prepared(self, kernel: Any) -> _TappedLaunch:
        try:
            tree = call_tree(kernel)
        except (OSError, SyntaxError):
            return _TappedLaunch((), {}, None, {})
        sightings = {number: found for number, tap in enumerate(self._taps) if (found := self._sighted(tree, tap))}
        storable = {number: found for number, found in sightings.items() if found.places and not found.stale}
        used = {number: found for number, found in storable.items() if self._is_chosen(number, found)}
        arguments: dict[str, Any] = {}
        for number, sighting in used.items():
            key, shape = (number, sighting.function.plain), self._shapes[self._taps[number].intermediate]
            self._buffers[key] = self._buffers.get(key) or new_buffer(shape, self._device)
            arguments |= dict(zip(parameters(number), self._buffers[key].arguments(), strict=True))
        return _TappedLaunch(tree, sightings, rewrite(tree, used, self._taps) if used else None, arguments)

    def _is_chosen(self, number: int, sighting: Sighting) -> bool:
        """One function only is tapped; if another has the variable too, `read` says so unless one has the very name."""
        word, chosen = self._taps[number].function, self._chosen.get(number)
        if chosen is None or (sighting.function.name == word and chosen.name != word):
            self._chosen[number] = chosen = sighting.function
        return chosen.plain is sighting.function.plain

    def _sighted(self, tree: Sequence[Function], tap: Tap) -> Sighting | None:
        """The tap in one function of a kernel's call tree: the outermost, where what comes of the others ends up."""
        found = [sighting for function in named(tree, tap.function) if (sighting := sight(tree, function, tap))]
        usable = outermost([sighting for sighting in found if sighting.places])
        if len(usable) > 1:
            self.failure = self.failure or sentences.ambiguous(tap, [each.function.name for each in usable])
            return None
        if tap.is_transposed and any(place.is_transposed is False for each in usable for place in each.places):
            name = usable[0].function.name
            self.failure = self.failure or tap.failure(
                f": {name} holds {tap.variable!r} with its axes as they are indexed, not transposed", "leave out .T"
            )
            return None
        return next(iter(usable or found), None)

    def close(self) -> None:
        for launch in self._launches.values():
            if launch.rewritten is not None:
                launch.rewritten.forget()


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
        finally:
            session.close()


def _check(tap: Tap, shapes: Mapping[str, Sequence[int]]) -> None:
    if tap.intermediate not in shapes:
        raise tap.failure(f": {tap.intermediate} does not exist in this case", f"it has {', '.join(shapes)}")
    count, row = len(shapes[tap.intermediate]), lookup(tap.intermediate)
    if len(tap.indices) != count:
        steps = (row.softmax, row.lazy) if row is not None else ()
        # The axes by their letters, as the table of intermediates has them in either family.
        letters = (", ".join(step.axes) for step in steps if step is not None and len(step.axes) == count)
        raise tap.failure(
            f" has {len(tap.indices)} indices, but {tap.intermediate} has {count} axes",
            f"give one for each of {next(letters, f'{count} axes')}",
        )
