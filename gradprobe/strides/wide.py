"""Wide strides: equal for all tensors, so that no mix-up shows, with room to make any of them longer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..cases.case import Case
from ..cases.layouts import VECTOR, VECTORS
from ..cases.placement import Placement, spanned

Stride = tuple[str, int]
"""(tensor, axis)."""

# By how much a stride is made longer. All but the innermost keep rows aligned for vector loads.
_MORE = {"d": 1, "m": VECTOR, "h": 2 * VECTOR, "b": 3 * VECTOR}
_GAP = VECTOR
# The kinds of axes whose strides may be mixed up: batches, heads, rows or keys, and innermost axes.
_KINDS = {"b": "b", "h": "h", "g": "h", "m": "m", "n": "m", "d": "d", "e": "d", "w": "d"}
# The kinds of any four axes; the innermost of a bias are keys.
_FOUR = "bhmd"


class Wide:
    """The tensors of a case with wide strides. Vectors of parameters stay contiguous."""

    def __init__(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> None:
        moved = (name for name in shapes if case.input_axes(name) and name not in VECTORS)
        self._shapes = {name: shapes[name] for name in moved}
        self._kinds = {name: _kinds(case.input_axes(name), len(shape)) for name, shape in self._shapes.items()}
        self._strides = self._common()

    def strides(self) -> Iterator[Stride]:
        """Every stride of an axis longer than 1; other strides address nothing."""
        for name, shape in self._shapes.items():
            yield from ((name, axis) for axis, size in enumerate(shape) if size > 1)

    def kind(self, stride: Stride) -> str:
        """The kind of a stride. It may be mixed up with strides of the same kind."""
        name, axis = stride
        return self._kinds[name][axis]

    def placements(self, longer: Collection[Stride] = (), apart: Collection[str] = ()) -> dict[str, Placement]:
        """Wide strides for every tensor that is not set apart, with some strides longer."""
        return {
            name: Placement(tuple(self._stride(name, axis, longer) for axis in range(len(shape))), 0, f"of {name}")
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
    return _FOUR if count == len(_FOUR) else "".join(_KINDS[letter] for letter in axes)
