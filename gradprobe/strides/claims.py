"""Claim: a condition on strides under which a target seems to be wrong, as words and as a test of any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .wide import Stride

Strides = Mapping[str, tuple[int, ...]]
"""Of every tensor, by name."""
MIX_UP, STRIDE, CONTIGUOUS = "mix-up", "stride", "contiguous"
ALL_AXES = -1


@dataclass(frozen=True)
class Claim:
    """A target is wrong where this is so."""

    kind: str
    """MIX_UP (strides that must be equal), STRIDE (one that must be as its like) or CONTIGUOUS (within one tensor)."""
    strides: tuple[Stride, ...]
    """(tensor, axis), or (tensor, ALL_AXES)."""
    words: str
    holds: Callable[[Strides], bool]


def differ(group: Sequence[Stride]) -> Claim:
    """Strides of several tensors are not all equal."""
    names = [f"{name}.stride({axis})" for name, axis in group]
    return Claim(MIX_UP, tuple(group), _unequal(names), lambda of: len({of[name][axis] for name, axis in group}) > 1)


def tensors_differ(names: Sequence[str], axes: Sequence[int]) -> Claim:
    """Several tensors do not all have the same strides along any of their axes, which are these."""
    return Claim(
        MIX_UP, tuple((name, ALL_AXES) for name in names), _unequal([f"{name}.stride()" for name in names]),
        lambda of: len({tuple(of[name][axis] for axis in axes) for name in names}) > 1,
    )  # fmt: skip


def unlike(stride: Stride, like: Sequence[Stride]) -> Claim:
    """One stride is not what its like are in other tensors."""
    name, axis = stride
    words = f"{name}.stride({axis}) is not what it is in other tensors"
    return Claim(STRIDE, (stride,), words, lambda of: any(of[name][axis] != of[other][at] for other, at in like))


def not_dense(name: str, axes: Sequence[int], shape: tuple[int, ...]) -> Claim:
    """Of one tensor, an axis begins elsewhere than where the one inside it ends, or the last one's stride is not 1."""

    def words(axis: int) -> str:
        inner = f"{name}.shape[{axis + 1}] * {name}.stride({axis + 1})"
        return f"{name}.stride({axis}) != {'1' if axis == len(shape) - 1 else inner}"

    def holds(of: Strides) -> bool:
        spans = [size * step for size, step in zip(shape[1:], of[name][1:], strict=True)] + [1]
        return any(of[name][axis] != spans[axis] for axis in axes)

    return Claim(CONTIGUOUS, tuple((name, axis) for axis in axes), any_of([words(axis) for axis in axes]), holds)


def not_contiguous(name: str, shape: tuple[int, ...]) -> Claim:
    """One tensor does not lie contiguous."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    holds = not_dense(name, axes, shape).holds
    return Claim(CONTIGUOUS, ((name, ALL_AXES),), f"{name} is not contiguous", holds)


def any_of(names: Sequence[str]) -> str:
    """ "q", "q or k", "q, k or v"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unequal(names: Sequence[str]) -> str:
    """The last first: what is taken for another's comes after it where tensors are listed."""
    *others, last = reversed(names)
    return f"{others[0]} != {last}" if len(names) == 2 else f"{', '.join(others)} and {last} are not all equal"
