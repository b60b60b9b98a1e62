"""Wide strides: equal for all tensors, so that no mix-up shows, with room to make any of them longer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...inputs.placement import Placement
from ...inputs.tensor_layouts import VECTOR, VECTORS
from ...model.assignment import spanned
from ...model.case import Case
from ...model.intermediates import KINDS

Stride = tuple[str, int]
"""(tensor, axis)."""

# By how much a stride is made longer. All but the innermost keep rows aligned for vector loads.
_MORE = {"d": 1, "m": VECTOR, "h": 2 * VECTOR, "b": 3 * VECTOR}
_GAP = VECTOR
# The kinds of any four axes; the innermost of a bias are keys.
_FOUR = "bhmd"


class WideTensors:
    """The tensors of a case with wide strides. Vectors of parameters stay contiguous."""

    def __init__(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> None:
        moved = (name for name in shapes if case.input_axes(name) and name not in VECTORS)
        self._shapes = {name: shapes[name] for name in moved}
        self._kinds = {
            name: _kinds(case.input_axes(name), len(shape))
            for name, shape in self._shapes.items()
        }
        self._strides = self._common()

    def strides(self) -> Iterator[Stride]:
        """Every stride of an axis longer than 1; other strides address nothing."""
        for name, shape in self._shapes.items():
            yield from ((name, axis) for axis, size in enumerate(shape) if size > 1)

    def kind(self, stride: Stride) -> str:
        """The kind of a stride. It may be mixed up with strides of the same kind."""
        name, axis = stride
        return self._kinds[name][axis]

    def placements(
        self, longer: Collection[Stride] = (), apart: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Wide strides for every tensor that is not set apart, with some strides longer."""
        return {
            name: Placement(
                tuple(self._stride(name, axis, longer) for axis in range(len(shape))),
                0,
                f"of {name}",
            )
            for name, shape in self._shapes.items()
            if name not in apart
        }

    def with_a_gap(self, name: str, axis: int) -> Placement:
        """Contiguous strides with a gap between the steps along one axis."""
        shape, strides, span = self._shapes[name], [], 1
        for at in reversed(range(len(shape))):
            strides.append(span + (_GAP if at == axis else 0))
            span = strides[-1] * shape[at]
        return Placement(tuple(reversed(strides)), 0, f"of {name}")

    def _stride(self, name: str, axis: int, longer: Collection[Stride]) -> int:
        kind = self._kinds[name][axis]
        return self._strides[kind] + (_MORE[kind] if (name, axis) in longer else 0)

    def _common(self) -> dict[str, int]:
        """A stride for each kind of axis, greater than what the kinds inside it span when they are longer."""
        most = dict.fromkeys("dmhb", 1)
        for name, shape in self._shapes.items():
            for kind, size in zip(self._kinds[name], shape, strict=True):
                most[kind] = max(most[kind], size)
        found, inner, span = {}, "dmhb", 1
        for kind in inner:
            found[kind] = span
            reach = spanned((most[kind],), (found[kind] + _MORE[kind],)) + found[kind]
            span = reach // VECTOR * VECTOR + VECTOR
        return found


def _kinds(axes: str, count: int) -> str:
    return _FOUR if count == len(_FOUR) else "".join(KINDS[letter] for letter in axes)


Strides = Mapping[str, tuple[int, ...]]
"""The strides of every tensor, by name."""
MIX_UP, STRIDE, WITHIN = "mix-up", "stride", "contiguous"
ALL_AXES = -1


@dataclass(frozen=True)
class Claim:
    """A condition under which a target is wrong."""

    kind: str
    """MIX_UP (strides that must be equal), STRIDE (one that must be as its like) or WITHIN (within one tensor)."""
    strides: tuple[Stride, ...]
    """(tensor, axis), or (tensor, ALL_AXES)."""
    words: str
    holds: Callable[[Strides], bool]


def differ(group: Sequence[Stride]) -> Claim:
    """Claims that these strides of several tensors are not all equal."""
    names = [f"{name}.stride({axis})" for name, axis in group]
    return Claim(
        MIX_UP,
        tuple(group),
        _unequal(names),
        lambda of: len({of[name][axis] for name, axis in group}) > 1,
    )


def tensors_differ(names: Sequence[str], axes: Sequence[int]) -> Claim:
    """Claims that these tensors do not all have the same strides along these axes."""
    strides = tuple((name, ALL_AXES) for name in names)
    words = _unequal([f"{name}.stride()" for name in names])
    return Claim(
        MIX_UP,
        strides,
        words,
        lambda of: len({tuple(of[name][axis] for axis in axes) for name in names}) > 1,
    )


def unlike(stride: Stride, like: Sequence[Stride]) -> Claim:
    """Claims that one stride differs from its counterparts in other tensors."""
    name, axis = stride
    words = f"{name}.stride({axis}) is not what it is in other tensors"
    return Claim(
        STRIDE,
        (stride,),
        words,
        lambda of: any(of[name][axis] != of[other][at] for other, at in like),
    )


def not_dense(name: str, axes: Sequence[int], shape: tuple[int, ...]) -> Claim:
    """Claims that the stride of an axis is not the span of the axis inside it, or that the last stride is not 1."""

    def claim(axis: int) -> str:
        inner = f"{name}.shape[{axis + 1}] * {name}.stride({axis + 1})"
        return f"{name}.stride({axis}) != {'1' if axis == len(shape) - 1 else inner}"

    def holds(strides: Strides) -> bool:
        spans = [size * step for size, step in zip(shape[1:], strides[name][1:], strict=True)] + [
            1
        ]
        return any(strides[name][axis] != spans[axis] for axis in axes)

    return Claim(
        WITHIN,
        tuple((name, axis) for axis in axes),
        any_of([claim(axis) for axis in axes]),
        holds,
    )


def not_contiguous(name: str, shape: tuple[int, ...]) -> Claim:
    """Claims that one tensor is not contiguous."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    holds = not_dense(name, axes, shape).holds
    return Claim(WITHIN, ((name, ALL_AXES),), f"{name} is not contiguous", holds)


def any_of(names: Sequence[str]) -> str:
    """ "q", "q or k", "q, k or v"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unequal(names: Sequence[str]) -> str:
    """Names the last tensor first, since a kernel usually takes an earlier tensor's stride for a later one's."""
    *others, last = reversed(names)
    return (
        f"{others[0]} != {last}"
        if len(names) == 2
        else f"{', '.join(others)} and {last} are not all equal"
    )
