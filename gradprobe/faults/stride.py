"""S1: a tensor is read with another tensor's strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from .hypothesis import AXES, Hypothesis, Seen, entered, title
from .memory import KINDS, axes_of, by_kind, in_words, readable, reading, through, word
from .variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, those of a tile, or all.
_SETS = ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd")


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, with each other tensor's strides along some of its axes, each reading once."""
    tensors = readable(seen)
    strides = {name: tuple(tensor.stride()) for name, tensor in tensors.items()}
    strides |= {name: tuple(tensor.stride()) for name, tensor in seen.tensors.items()}
    for name, tensor in tensors.items():
        tried = {_felt(tensor, strides[name])}
        for axes, other, taken in _readings(name, strides, seen):
            if _felt(tensor, taken) not in tried:
                tried.add(_felt(tensor, taken))
                yield _hypothesis(seen, tensors, name, axes, other, taken)


def _readings(
    name: str, strides: Mapping[str, tuple[int, ...]], seen: Seen
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(axes, the other tensor, the strides taken), one axis first."""
    own = axes_of(name, seen)
    for kinds in _SETS:
        axes = "".join(axis for axis in own if KINDS.get(axis, "?") in kinds)
        if len(axes) != len(kinds):
            continue
        for other, theirs in strides.items():
            named = by_kind(axes_of(other, seen), theirs) if axes_of(other, seen) else {}
            # All strides of what the wrapper allocates are those of a contiguous tensor: that is another fault.
            foreign = other in seen.tensors or len(axes) == 1
            if other != name and foreign and set(kinds) <= named.keys():
                pairs = zip(own, strides[name], strict=True)
                yield axes, other, tuple(named[KINDS[axis]] if axis in axes else mine for axis, mine in pairs)
    for one, two in combinations([at for at, axis in enumerate(own) if axis in AXES], 2):
        swapped = list(strides[name])
        swapped[one], swapped[two] = swapped[two], swapped[one]
        yield own[one] + own[two], name, tuple(swapped)


def _felt(tensor: Tensor, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that make a difference: one along an axis of a single step makes none."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, strides, strict=True))


def _hypothesis(
    seen: Seen, tensors: Mapping[str, Tensor], name: str, axes: str, other: str, strides: tuple[int, ...]
) -> Hypothesis:
    whose = (
        f"its own {in_words(axes)} strides swapped" if other == name else f"{title(other)}'s {in_words(axes)} stride"
    )
    return Hypothesis(
        f"stride/{word(name, axes, axes_of(name, seen))}",
        "S1",
        f"{title(name)} is read with {whose}",
        partial(_misread, name, tensors[name], strides),
        entered(name, seen.case.family),
        evidence=_why_not_the_first(axes),
        tensor=name, axes=axes, other=other,
    )  # fmt: skip


def _misread(name: str, tensor: Tensor, strides: tuple[int, ...], variant: Variant) -> Variant:
    return reading(variant, name, through(tensor, strides))


def _why_not_the_first(axes: str) -> tuple[str, ...]:
    if len(axes) != 1:
        return ()
    return (f"{in_words(axes)} 0 is right and others are wrong: 0 times any stride is 0",)
