"""What is wrong with a tap, in sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import cast

from ...model.failures import Failure, TargetFailure, text_of
from ...model.intermediates import lookup
from ...model.number import in_words, spans
from ...source.triton_source import Function, named
from .rewrite import Sighting
from .tap import Contents, Tap


def not_found(tap: Tap, trees: Sequence[Sequence[Function]], sighted: Sequence[Sighting]) -> Failure:
    """No launched kernel has the variable, or none where all of the index has a value."""
    functions = list({function.plain: function for tree in trees for function in tree}.values())
    within = named(functions, tap.function)
    if not functions:
        return tap.failure(
            ": the run launched no Triton kernel",
            "taps read Triton kernels that are given as source; another target returns its intermediates itself",
        )
    if sighted:
        return _unknown_name(tap, sighted)
    if not within:
        return tap.failure(
            f": the run launched no kernel called {tap.function!r}, nor one with that in its name",
            f"it launched, with the functions that they call: {', '.join(function.name for function in functions)}",
        )
    takes = next((function.name for function in within if tap.variable in function.parameters), "")
    where = f"{takes} only takes it as a parameter" if takes else "none assigns it"
    # Of several kernels only those that have something like the name, if there are any.
    listed = {function.name: _near(tap.variable, function.assigned) for function in within if function.assigned}
    close = {function: names for function, names in listed.items() if _close(tap.variable, names)}
    return tap.failure(
        f": no launched kernel computes a variable {tap.variable!r}, {where}",
        "; ".join(f"{function} has {', '.join(names)}" for function, names in (close or listed).items()),
    )


def _unknown_name(tap: Tap, sighted: Sequence[Sighting]) -> Failure:
    first = sighted[0]
    names = ((name, each) for each in sighted for name in (*each.function.parameters, *each.function.assigned))
    existing = dict.fromkeys(name for name, each in names if any(name in visible for visible in each.seen))
    where = f"{first.function.name} where {tap.variable!r} is computed"
    return tap.failure(
        f": its index reads {first.unknown[0]!r}, which has no value in {where}",
        f"there are {', '.join(_near(first.unknown[0], list(existing)))}",
    )


def _near(name: str, others: Sequence[str]) -> list[str]:
    """The others without pointers and strides, those that look like a name first."""
    shown = [other for other in others if not re.search(r"(?i)stride|ptrs?$|^p_", other)]
    close = _close(name, shown)
    return close + [other for other in shown if other not in close]


def _close(name: str, others: Sequence[str]) -> list[str]:
    close = difflib.get_close_matches(name.lower(), [other.lower() for other in others], n=4, cutoff=0.6)
    return [other for word in dict.fromkeys(close) for other in others if other.lower() == word]


def ambiguous(tap: Tap, functions: Sequence[str]) -> Failure:
    """Several kernels have the variable, and it need not mean the same in all of them."""
    rest = tap.word.partition("=")[2].strip()
    rest = rest[len(tap.function) + 1 :] if tap.function else rest
    return tap.failure(
        f": {' and '.join(functions)} each compute a variable {tap.variable!r}",
        "say which: " + " or ".join(f"{tap.intermediate}={function}:{rest}" for function in functions),
    )


def nothing_stored(tap: Tap, function: Function, contents: Contents) -> Failure:
    """The kernel ran without reaching the place, or only with an index out of range."""
    intermediate = f"{tap.intermediate} {list(contents.stored.shape)}"
    if contents.is_out_of_range:
        return tap.failure(
            f": every index was outside of {intermediate}", "the indices come in the order of the intermediate's axes"
        )
    return TargetFailure(
        f"tap {tap.word!r}: {function.name} was launched but never computed {tap.variable!r}, "
        f"or only outside of {intermediate}",
        "is it in a branch or loop that this case does not run?",
    )


def raised(error: BaseException, taps: Sequence[Tap], sightings: Mapping[int, Sighting]) -> Failure | None:
    """Why a launch failed, where it was a tap's doing; None where it was not."""
    words, cause = "", cast("BaseException | None", error)
    while cause is not None:
        words, cause = f"{words}\n{text_of(cause)}", cause.__cause__ or cause.__context__
    told = re.search(r"gradprobe tap (\d+) (\w+)([^'\"\n]*)", words)
    if told is not None:
        return _unfit(taps[int(told[1])], told[2], [int(number) for number in re.findall(r"\d+", told[3])])
    for tap, sighting in ((taps[number], sighting) for number, sighting in sightings.items()):
        for name in tap.names:
            if re.search(rf"\b{re.escape(name)}\b['\"]? (is not defined|where it is not|referenced before)", words):
                return tap.failure(
                    f": {name!r} has no value in {sighting.function.name} at some place where {tap.variable!r} is "
                    "computed",
                    "index it with what has a value there, or compute it in the index",
                )
    return None


def _unfit(tap: Tap, rule: str, numbers: list[int]) -> Failure:
    if rule == "index":
        axis = next((i for i, rank in enumerate(numbers[4 - len(tap.indices) :]) if rank > 1), 0)
        return tap.failure(
            f": the index {tap.indices[axis]!r} is a tile of several axes",
            "an index is a scalar, or a block [BLOCK] along one axis of the tile",
        )
    if rule == "rank" and numbers[0] > 2:
        return tap.failure(f": {tap.variable!r} has {numbers[0]} axes", "only scalars, rows and tiles can be tapped")
    if rule == "rank":
        return tap.failure(
            f": {tap.value!r} has {numbers[0]} axes, but its index has {numbers[1]} blocks",
            "give one block for each axis of the tile, and scalars for the rest",
        )
    axis, length, block = numbers
    return tap.failure(
        f": axis {axis} of {tap.value!r} is {length} long, but the block that indexes it {block}",
        f"write {tap.variable}[...].T if the kernel holds the tile transposed",
    )


def notes(tap: Tap, contents: Contents) -> list[str]:
    """What does not stop a reading but may explain it."""
    found, stored = [], contents.stored
    if contents.is_out_of_range:
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
