"""Uses: which variable multiplies which stride of which tensor, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .memory import Held, Stride
from .record import Advance
from .values import Factor
from .view import View


@dataclass(frozen=True)
class Use:
    """A tensor's own stride in a pointer of that tensor."""

    advance: Advance
    factor: Factor
    held: Held
    stride: Stride

    @property
    def base(self) -> str:
        return self.advance.base

    @property
    def index(self) -> str:
        """The one variable that it is multiplied with; "" where there are more, or none."""
        words = self.advance.term.index
        return next(iter(words)) if len(words) == 1 else ""

    @property
    def family(self) -> str:
        """What the axis is; the dims of keys and of values are one."""
        return family(self.stride.kind)


def uses_of(view: View) -> list[Use]:
    """Every use in a kernel whose axis is known."""
    found = []
    for advance in view.record.advances:
        held = view.held(advance.base)
        if held is not None and len(advance.term.factors) == 1:
            factor = advance.term.factors[0]
            axes = axes_of(held, view.number(factor.parameter))
            if len(axes) == 1:
                found.append(Use(advance, factor, held, held.stride(axes[0])))
    return found


def axes_of(held: Held, number: int) -> Sequence[int]:
    """The axes longer than 1 along which a tensor has a stride."""
    return [axis for axis, step in enumerate(held.strides) if step == number and held.shape[axis] > 1]


def family(kind: str) -> str:
    """One letter for axes that one variable may run along: heads and key heads, dims and value dims."""
    return {"g": "h", "e": "d"}.get(kind, kind)
