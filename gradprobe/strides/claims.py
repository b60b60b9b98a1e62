"""Claim: a condition on strides under which a target seems to be wrong, in words and as a test of any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .wide import Stride

Strides = Mapping[str, tuple[int, ...]]
"""The strides of every tensor, by name."""
MIX_UP, STRIDE, CONTIGUOUS = "mix-up", "stride", "contiguous"
ALL_AXES = -1


@dataclass(frozen=True)
class Claim:
    """A condition under which a target is wrong."""

    kind: str
    """MIX_UP (strides that must be equal), STRIDE (one that must be as its like) or CONTIGUOUS (within one tensor)."""
    strides: tuple[Stride, ...]
    """(tensor, axis), or (tensor, ALL_AXES)."""
    words: str
    holds: Callable[[Strides], bool]


def differ(group: Sequence[Stride]) -> Claim:
    """Claims that these strides of several tensors are not all equal."""
    names = [f"{name}.stride({axis})" for name, axis in group]
    return Claim(MIX_UP, tuple(group), _unequal(names), lambda of: len({of[name][axis] for name, axis in group}) > 1)


def tensors_differ(names: Sequence[str], axes: Sequence[int]) -> Claim:
    """Claims that these tensors do not all have the same strides along these axes."""
    strides = tuple((name, ALL_AXES) for name in names)
    words = _unequal([f"{name}.stride()" for name in names])
    return Claim(MIX_UP, strides, words, lambda of: len({tuple(of[name][axis] for axis in axes) for name in names}) > 1)


def unlike(stride: Stride, like: Sequence[Stride]) -> Claim:
    """Claims that one stride differs from its counterparts in other tensors."""
    name, axis = stride
    words = f"{name}.stride({axis}) is not what it is in other tensors"
    return Claim(STRIDE, (stride,), words, lambda of: any(of[name][axis] != of[other][at] for other, at in like))


def not_dense(name: str, axes: Sequence[int], shape: tuple[int, ...]) -> Claim:
    """Claims that the stride of an axis is not the span of the axis inside it, or that the last stride is not 1."""

    def words(axis: int) -> str:
        inner = f"{name}.shape[{axis + 1}] * {name}.stride({axis + 1})"
        return f"{name}.stride({axis}) != {'1' if axis == len(shape) - 1 else inner}"

    def holds(of: Strides) -> bool:
        spans = [size * step for size, step in zip(shape[1:], of[name][1:], strict=True)] + [1]
        return any(of[name][axis] != spans[axis] for axis in axes)

    return Claim(CONTIGUOUS, tuple((name, axis) for axis in axes), any_of([words(axis) for axis in axes]), holds)


def not_contiguous(name: str, shape: tuple[int, ...]) -> Claim:
    """Claims that one tensor is not contiguous."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    holds = not_dense(name, axes, shape).holds
    return Claim(CONTIGUOUS, ((name, ALL_AXES),), f"{name} is not contiguous", holds)


def any_of(names: Sequence[str]) -> str:
    """ "q", "q or k", "q, k or v"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unequal(names: Sequence[str]) -> str:
    """Names the last tensor first, since a kernel usually takes an earlier tensor's stride for a later one's."""
    *others, last = reversed(names)
    return f"{others[0]} != {last}" if len(names) == 2 else f"{', '.join(others)} and {last} are not all equal"
