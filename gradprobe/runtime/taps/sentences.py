"""What is wrong with a tap, in sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.failures import Failure, TargetFailure, UsageFailure, text_of
from ...model.intermediates import lookup
from ...model.number import in_words, spans
from ...source.triton_source import Function, named
from .buffer import Contents
from .rewrite import Sighting
from .words import Tap

if TYPE_CHECKING:
    from torch import Tensor


def not_found(tap: Tap, trees: Sequence[Sequence[Function]], sighted: Sequence[Sighting]) -> Failure:
    """No launched kernel has the variable, or none where all of the index has a value."""
    functions = list({function.plain: function for tree in trees for function in tree}.values())
    if not functions:
        return UsageFailure(
            f"tap {tap.word!r}: no Triton kernel was launched in the run",
            "taps see into Triton kernels given by source; other targets export intermediates themselves",
        )
    if sighted:
        return _unknown_names(tap, sighted)
    within = named(functions, tap.function)
    if not within:
        return UsageFailure(
            f"tap {tap.word!r}: no kernel called {tap.function!r} was launched, nor one with that in its name",
            f"launched, with what they call: {', '.join(function.name for function in functions)}",
        )
    parameters = [function for function in within if tap.variable in function.parameters]
    where = f"{parameters[0].name} only takes it as a parameter" if parameters else "none assigns it"
    return UsageFailure(
        f"tap {tap.word!r}: no launched kernel computes a variable {tap.variable!r}, {where}",
        _variables(tap.variable, within),
    )


def _variables(name: str, functions: Sequence[Function]) -> str:
    """What the functions have; of several only those with something like a name, if there are any."""
    listed = {function.name: _near(name, function.assigned) for function in functions if function.assigned}
    close = {function: names for function, names in listed.items() if _close(name, names)}
    return "; ".join(f"{function} has {', '.join(names)}" for function, names in (close or listed).items())


def _unknown_names(tap: Tap, sighted: Sequence[Sighting]) -> Failure:
    first = sighted[0]
    name = first.unknown[0]
    there = f"{first.function.name} where {tap.variable!r} is computed"
    named = ((name, each) for each in sighted for name in (*each.function.parameters, *each.function.assigned))
    existing = dict.fromkeys(name for name, each in named if any(name in visible for visible in each.seen))
    return UsageFailure(
        f"tap {tap.word!r}: its index reads {name!r}, which has no value in {there}",
        f"there are {', '.join(_near(name, list(existing)))}",
    )


def _near(name: str, others: Sequence[str]) -> list[str]:
    """The others without pointers and strides, those that look like a name first."""
    shown = [other for other in others if not re.search(r"(?i)stride|ptrs?$|^p_", other)]
    close = _close(name, shown)
    return close + [other for other in shown if other not in close]


def _close(name: str, others: Sequence[str]) -> list[str]:
    lower = [other.lower() for other in others]
    close = difflib.get_close_matches(name.lower(), lower, n=4, cutoff=0.6)
    return [other for word in dict.fromkeys(close) for other in others if other.lower() == word]


def ambiguous(tap: Tap, functions: Sequence[str]) -> Failure:
    """Several kernels have the variable, and it need not mean the same in all of them."""
    rest = tap.word.partition("=")[2].strip()
    rest = rest[len(tap.function) + 1 :] if tap.function else rest
    return UsageFailure(
        f"tap {tap.word!r}: {' and '.join(functions)} each compute a variable {tap.variable!r}",
        "say which: " + " or ".join(f"{tap.intermediate}={function}:{rest}" for function in functions),
    )


def stale(tap: Tap, sighting: Sighting) -> Failure:
    """The index does not tell the tiles of a loop apart."""
    return UsageFailure(
        f"tap {tap.word!r}: in {sighting.function.name}, where {tap.variable!r} is computed, {sighting.stale}",
        "index it with what is right in every turn, for example start_n + tl.arange(0, BLOCK_N)",
    )


def not_transposed(tap: Tap, function: Function) -> Failure:
    """`.T` is written, and the kernel's own expressions say otherwise."""
    return UsageFailure(
        f"tap {tap.word!r}: {function.name} holds {tap.variable!r} with its axes as they are indexed, not transposed",
        "leave out .T",
    )


def nothing_stored(tap: Tap, function: Function, contents: Contents) -> Failure:
    """The kernel ran without reaching the place, or only with an index out of range."""
    if contents.is_out_of_range:
        return UsageFailure(
            f"tap {tap.word!r}: every index was outside of {tap.intermediate} {list(contents.stored.shape)}",
            "its order is that of the intermediate's axes",
        )
    return TargetFailure(
        f"tap {tap.word!r}: {function.name} was launched but never computed {tap.variable!r}, "
        f"or only outside of {tap.intermediate} {list(contents.stored.shape)}",
        "is it in a branch or loop that this case does not run?",
    )


def raised(error: BaseException, taps: Sequence[Tap], sightings: Mapping[int, Sighting]) -> Failure | None:
    """Why a launch failed, where it was a tap's doing; None where it was not."""
    words = _all_words(error)
    told = re.search(r"gradprobe tap (\d+) (\w+)([^'\"\n]*)", words)
    if told is not None:
        return _unfit(taps[int(told[1])], told[2], [int(number) for number in re.findall(r"\d+", told[3])])
    for number in sightings:
        for name in taps[number].names:
            if re.search(rf"\b{re.escape(name)}\b['\"]? (is not defined|where it is not|referenced before)", words):
                return UsageFailure(
                    f"tap {taps[number].word!r}: {name!r} has no value in {sightings[number].function.name} at some "
                    f"place where {taps[number].variable!r} is computed",
                    "index it with what has a value there, or compute it in the index",
                )
    return None


def _unfit(tap: Tap, rule: str, numbers: list[int]) -> Failure:
    if rule == "index":
        axis = next((i for i, rank in enumerate(numbers[4 - len(tap.indices) :]) if rank > 1), 0)
        return UsageFailure(
            f"tap {tap.word!r}: the index {tap.indices[axis]!r} is a tile of several axes",
            "an index is a scalar, or a block [BLOCK] along one axis of the tile",
        )
    if rule == "rank" and numbers[0] > 2:
        return UsageFailure(
            f"tap {tap.word!r}: {tap.variable!r} has {numbers[0]} axes", "only scalars, rows and tiles can be tapped"
        )
    if rule == "rank":
        return UsageFailure(
            f"tap {tap.word!r}: {tap.value!r} has {numbers[0]} axes, but its index has {numbers[1]} blocks",
            "it needs one block for each axis of the tile, and scalars for the rest",
        )
    axis, length, block = numbers
    return UsageFailure(
        f"tap {tap.word!r}: axis {axis} of {tap.value!r} is {length} long, but the block that indexes it {block}",
        f"a tile held transposed is written {tap.variable}[...].T",
    )


def _all_words(error: BaseException | None) -> str:
    words = []
    while error is not None:
        words.append(text_of(error))
        error = error.__cause__ or error.__context__
    return "\n".join(words)


def notes(tap: Tap, contents: Contents) -> list[str]:
    """What does not stop a reading but may explain it."""
    found = ["a scalar index was outside of it; tap or kernel is wrong"] if contents.is_out_of_range else []
    stored = contents.stored
    if stored.dim() >= 3:
        found += _without("head", stored.flatten(2).any(2).any(0)) + _without("batch", stored.flatten(1).any(1))
    # Of what has a place for every row and key, kernels leave out those that a mask hides.
    if not found and not _has_rows_and_keys(tap.intermediate) and not stored.all():
        found.append(f"nothing was stored at {int((~stored).sum())} of {stored.numel()} places")
    return [f"tap {tap.word!r}, {tap.intermediate}: {words}" for words in found]


def _without(what: str, has_any: Tensor) -> list[str]:
    if has_any.all():
        return []
    return [
        f"nothing was stored in {what} {in_words(spans((~has_any).nonzero().flatten().tolist()))} of {len(has_any)}"
    ]


def _has_rows_and_keys(intermediate: str) -> bool:
    row = lookup(intermediate)
    steps = (row.softmax, row.lazy) if row is not None else ()
    return any(step is not None and {"m", "n"} <= set(step.axes) for step in steps)
