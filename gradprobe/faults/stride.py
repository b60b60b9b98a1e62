"""S1: a tensor is read with another tensor's strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from torch import Tensor

from .hypothesis import AXES, Hypothesis, Seen, entered, title
from .memory import KINDS, axes_of, by_kind, in_words, readable, reading, through, word

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
    along = in_words(axes)
    whose = f"its own {along} strides swapped" if other == name else f"{title(other)}'s {along} stride"
    fault, summary = f"stride/{word(name, axes, axes_of(name, seen))}", f"{title(name)} is read with {whose}"
    alter, changes = reading(name, through(tensors[name], strides)), entered(name, seen.case.family)
    # Why the first one is right.
    evidence = (f"{along} 0 is right and others are wrong: 0 times any stride is 0",) if len(axes) == 1 else ()
    return Hypothesis(fault, "S1", summary, alter, changes, evidence=evidence, tensor=name, axes=axes, other=other)
