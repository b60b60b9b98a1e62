"""S1: a tensor is read with another tensor's strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from torch import Tensor

from ..model.intermediates import title
from .hypothesis import AXES, Hypothesis, Observed
from .memory import axes_of, in_words, misreading, readable, through, with_strides_of, word


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, with each other tensor's strides along some of its axes, each reading once."""
    tensors = readable(seen)
    strides = {name: tuple(tensor.stride()) for name, tensor in (*tensors.items(), *seen.tensors.items())}
    for name, tensor in tensors.items():
        tried = {_felt(tensor, strides[name])}
        for axes, other, taken in _readings(name, strides, seen):
            if _felt(tensor, taken) not in tried:
                tried.add(_felt(tensor, taken))
                read, along, fault = through(tensor, taken), in_words(axes), word(name, axes, axes_of(name, seen))
                whose = f"its own {along} strides swapped" if other == name else f"{title(other)}'s {along} stride"
                about = (f"stride/{fault}", "S1", f"{title(name)} is read with {whose}")
                # Why the first one is right.
                right = (f"{along} 0 is right because its offset is 0 with any stride",)
                evidence = right if len(axes) == 1 else ()
                found = misreading(seen, name, read, *about, axes=axes, other=other, evidence=evidence)
                yield replace(found, taken=taken)


def _readings(
    name: str, strides: Mapping[str, tuple[int, ...]], seen: Observed
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(axes, the other tensor, the strides taken), one axis first; at last those of the tensor itself, swapped."""
    yield from with_strides_of(seen, name, strides[name], strides)
    own = axes_of(name, seen)
    for one, two in combinations([at for at, axis in enumerate(own) if axis in AXES], 2):
        swapped = list(strides[name])
        swapped[one], swapped[two] = swapped[two], swapped[one]
        yield own[one] + own[two], name, tuple(swapped)


def _felt(tensor: Tensor, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that make a difference: one along an axis of a single step makes none."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, strides, strict=True))
