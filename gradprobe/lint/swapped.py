"""Swapped: a tensor's own stride of another axis than the variable runs along that it is multiplied with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .finding import SWAPPED, Finding, finding_at
from .foreign import product_at
from .uses import Use, family, uses_of
from .view import View

# As many other tensors must agree on what a variable runs along.
_WITNESSES = 2


def swapped(view: View) -> Iterator[Finding]:
    """The strides of a launched kernel that stand where another axis's stride of the same tensor is meant."""
    uses = uses_of(view)
    for use in uses:
        meant = _meant(uses, use)
        if meant is None:
            continue
        right = [each for each in uses if each.base == use.base and each.stride.axis == meant]
        crossed = [each for each in right if _runs_along(uses, each) == use.family]
        if len(crossed) == len(right) and (crossed or {use.family, family(use.held.kinds[meant])} != {"m", "n"}):
            yield _finding(view, use, meant)


def _meant(uses: Sequence[Use], use: Use) -> int | None:
    """The axis of its tensor that its variable runs along; None where it is that of the stride, or not certain."""
    along = _runs_along(uses, use)
    if not along or along == use.family or not use.family:
        return None
    axes = [axis for axis, kind in enumerate(use.held.kinds) if family(kind) == along and use.held.shape[axis] > 1]
    return axes[0] if len(axes) == 1 else None


def _runs_along(uses: Sequence[Use], use: Use) -> str:
    """The axis that a variable runs along in other tensors; "" where they do not agree, or are too few."""
    if not use.index:
        return ""
    others = {(each.held.name, each.family) for each in uses if each.index == use.index and each.base != use.base}
    families = {kind for _, kind in others}
    return families.pop() if len(families) == 1 and len(others) >= _WITNESSES else ""


def _finding(view: View, use: Use, meant: int) -> Finding:
    spot, held = use.factor.spots[0], use.held
    own = next(iter(view.parameters_of(use.base, meant)), f"{held.name}.stride({meant})")
    sentence = (
        f"{spot.text} is {use.stride}, and {use.index} runs along axis {meant} of {held.name}, "
        f"as it does in other tensors: {held.name}.stride({meant}) is meant"
    )
    product = product_at(view, spot)
    fix = f"{product} -> {product.replace(spot.text, own)}"
    axis = {"axis": meant, "kind": held.kinds[meant], "note": str(use.stride)}
    return finding_at(spot, SWAPPED, view.name, sentence, fix, held.name, other=held.name, **axis)
