"""What is wrong with a tap, in sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ...model.failures import Failure, TargetFailure, did_you_mean, text_of
from ...model.intermediates import lookup
from ...model.number import in_words, spans
from ...source.triton_source import Function, named
from .rewrite import Sighting
from .tap import Tap

if TYPE_CHECKING:
    from torch import Tensor


def not_found(tap: Tap, functions: Sequence[Function], sighted: Sequence[Sighting]) -> Failure:
    """No launched kernel has the variable, or none where all of the index has a value."""
    within = named(functions, tap.function)
    if not functions:
        return tap.failure(
            ": the run launched no Triton kernel",
            "taps read Triton kernels that are given as source; another target returns its intermediates itself",
        )
    if sighted:
        function, unknown = sighted[0].function, sighted[0].unknown
        return tap.failure(
            f": its index reads {unknown!r}, which has no value in {function.name} where {tap.variable!r} is computed",
            did_you_mean(unknown, _names(*function.parameters, *function.assigned), "there are"),
        )
    if not within:
        return tap.failure(
            f": the run launched no kernel called {tap.function!r}, nor one with that in its name",
            f"it launched, with the functions that they call: {', '.join(function.name for function in functions)}",
        )
    near = {function.name: did_you_mean(tap.variable, function.assigned, "") for function in within}
    listed = [f"{name}: {words}" for name, words in near.items() if words]
    listed = listed or [f"{function.name} has {', '.join(_names(*function.assigned))}" for function in within]
    return tap.failure(f": no launched kernel computes a variable {tap.variable!r}", "; ".join(listed))


def _names(*names: str) -> list[str]:
    """Without pointers and strides, which nobody indexes by."""
    return [name for name in names if not re.search(r"(?i)stride|ptrs?$|^p_", name)]


def ambiguous(tap: Tap, functions: Sequence[str]) -> Failure:
    """Several kernels have the variable, and it need not mean the same in all of them."""
    rest = tap.word.partition("=")[2].strip()
    rest = rest[len(tap.function) + 1 :] if tap.function else rest
    return tap.failure(
        f": {' and '.join(functions)} each compute a variable {tap.variable!r}",
        "say which: " + " or ".join(f"{tap.intermediate}={function}:{rest}" for function in functions),
    )


def misplaced(tap: Tap, sighting: Sighting) -> Failure | None:
    """Why a tile would be stored in the place of another, or turned; None where it would not."""
    name, stale = sighting.function.name, next((place.stale for place in sighting.places if place.stale), "")
    if stale:
        return tap.failure(
            f": in {name}, where {tap.variable!r} is computed, {stale}",
            "index it with what is right in every turn, for example start_n + tl.arange(0, BLOCK_N)",
        )
    if tap.is_transposed and any(place.is_transposed is False for place in sighting.places):
        words = f": {name} holds {tap.variable!r} with its axes as they are indexed, not transposed"
        return tap.failure(words, "leave out .T")
    return None


def nothing_stored(tap: Tap, function: str, stored: Tensor, is_out_of_range: bool) -> Failure:
    """The kernel ran without reaching the place, or only with an index out of range."""
    intermediate = f"{tap.intermediate} {list(stored.shape)}"
    if is_out_of_range:
        words = f": every index was outside of {intermediate}"
        return tap.failure(words, "the indices come in the order of the intermediate's axes")
    return TargetFailure(
        f"tap {tap.word!r}: {function} was launched but never computed {tap.variable!r}, or only outside of "
        f"{intermediate}",
        "is it in a branch or loop that this case does not run?",
    )


def raised(error: BaseException, taps: Sequence[Tap], sightings: Mapping[int, Sighting]) -> Failure | None:
    """Why a launch failed, where it was a tap's doing; None where it was not."""
    words, cause = "", cast("BaseException | None", error)
    while cause is not None:
        words, cause = f"{words}\n{text_of(cause)}", cause.__cause__ or cause.__context__
    broken = re.search(r"gradprobe tap (\d+) (\w+)([^'\"\n]*)", words)
    if broken is not None:
        return _unfit(taps[int(broken[1])], broken[2], [int(number) for number in re.findall(r"\d+", broken[3])])
    for number, sighting in sightings.items():
        for name in (tap := taps[number]).names:
            if re.search(rf"\b{re.escape(name)}\b['\"]? (is not defined|where it is not|referenced before)", words):
                where = f"{sighting.function.name} at some place where {tap.variable!r} is computed"
                way_out = "index it with what has a value there, or compute it in the index"
                return tap.failure(f": {name!r} has no value in {where}", way_out)
    return None


def _unfit(tap: Tap, rule: str, numbers: list[int]) -> Failure:
    """Of an assertion of the kernel that stores."""
    if rule == "index":
        axis = next((i for i, rank in enumerate(numbers[4 - len(tap.indices) :]) if rank > 1), 0)
        words = f": the index {tap.indices[axis]!r} is a tile of several axes"
        return tap.failure(words, "an index is a scalar, or a block [BLOCK] along one axis of the tile")
    if rule == "rank":
        words = f": {tap.value!r} has {numbers[0]} axes, but its index has {numbers[1]} blocks"
        return tap.failure(words, "give one block for each axis of the tile, two at most, and scalars for the rest")
    axis, length, block = numbers
    words = f": axis {axis} of {tap.value!r} is {length} long, but the block that indexes it {block}"
    return tap.failure(words, f"write {tap.variable}[...].T if the kernel holds the tile transposed")


def notes(tap: Tap, stored: Tensor, *, is_out_of_range: bool) -> list[str]:
    """What does not stop a reading but may explain it."""
    found = []
    if is_out_of_range:
        found.append(f"a scalar index was outside of {tap.intermediate}; the tap or the kernel is wrong")
    written = {"head": stored.flatten(2).any(2).any(0), "batch": stored.flatten(1).any(1)} if stored.dim() >= 3 else {}
    for what, has_any in written.items():
        if not has_any.all():
            left = in_words(spans((~has_any).nonzero().flatten().tolist()))
            found.append(f"nothing was stored in {what} {left} of {len(has_any)}")
    row = lookup(tap.intermediate)
    steps = (row.softmax, row.lazy) if row is not None else ()
    # Of what has a place for every row and key, kernels leave out those that a mask hides.
    is_masked = any(step is not None and {"m", "n"} <= set(step.axes) for step in steps)
    if not found and not is_masked and not stored.all():
        found.append(f"nothing was stored at {int((~stored).sum())} of {stored.numel()} places")
    return [f"tap {tap.word!r}, {tap.intermediate}: {words}" for words in found]
