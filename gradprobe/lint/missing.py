"""Missing: a stride that is passed for a tensor and that no pointer of that tensor uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..source.line import SourceLine
from .finding import MISSING, Finding, finding_at
from .foreign import product_at
from .memory import Held
from .uses import Use, family, uses_of
from .view import View

_WORDS = {"b": "batch", "h": "head", "g": "key head", "m": "row", "n": "key", "d": "column", "e": "column"}


def missing(view: View, accused: Sequence[Finding]) -> Iterator[Finding]:
    """The axes of a launched kernel's tensors along which no pointer moves although the stride is there.

    Args:
        accused: other findings of the kernel. Axes that they name are left out.
    """
    uses = uses_of(view)
    told = {(finding.tensor, finding.axis) for finding in accused}
    for base in view.record.accesses:
        held = view.held(base)
        if held is None or base in view.record.lost or _has_more_terms(view, base, held):
            continue
        for axis in range(len(held.shape)):
            if (held.name, axis) not in told and _is_missing(view, uses, base, held, axis):
                yield _finding(view, uses, base, held, axis)


def _has_more_terms(view: View, base: str, held: Held) -> bool:
    """Whether something is added to a pointer that may stand for an axis whose stride is taken for granted."""
    terms = [advance.term for advance in view.record.advances if advance.base == base]
    loose = {term.index for term in terms if term.index and not term.factors}
    spare = [axis for axis, size in enumerate(held.shape) if size > 1 and not view.parameters_of(base, axis)]
    return any(len(term.factors) > 1 for term in terms) or len(loose) > len(spare)


def _is_missing(view: View, uses: Sequence[Use], base: str, held: Held, axis: int) -> bool:
    own = view.parameters_of(base, axis)
    number = held.strides[axis]
    if not own or number < 2 or not view.is_certain(own[0]):
        return False
    if any(use.base == base and use.stride.axis == axis for use in uses):
        return False
    if any(_is_read(view, base, name) for name in own):
        return False
    return held.is_given or _is_apart(uses, base, held, axis)


def _is_read(view: View, base: str, parameter: str) -> bool:
    """Whether the kernel reads a stride elsewhere than in pointers of other tensors."""
    others = [advance.term.factors for advance in view.record.advances if advance.base != base]
    elsewhere = {each.spots[0] for factors in others for each in factors if each.parameter == parameter}
    return view.mentioned.get(parameter.partition("[")[0], 0) > len(elsewhere)


def _is_apart(uses: Sequence[Use], base: str, held: Held, axis: int) -> bool:
    """Whether no other axis of a tensor can stand for this one too, as b * n_heads + h does where it is contiguous.

    The variable that runs along the next axis must run along such an axis of another tensor whose own axis of this kind
    is walked apart.
    """
    inner = next((at for at in range(axis + 1, len(held.shape)) if held.shape[at] > 1), None)
    if inner is None:
        return True
    running = {use.index for use in uses if use.base == base and use.stride.axis == inner} - {""}
    kinds = [family(kind) for kind in held.kinds]
    if not kinds:
        return False
    alike = [use for use in uses if use.base != base and use.index in running and use.family == kinds[inner]]
    others = {use.base for use in alike if use.held.is_given}
    return any(use.base in others and use.family == kinds[axis] for use in uses)


def _finding(view: View, uses: Sequence[Use], base: str, held: Held, axis: int) -> Finding:
    spot = _where(view, base)
    own = view.parameters_of(base, axis)[0]
    kind = held.kinds[axis] if held.kinds else ""
    word = _WORDS.get(kind, f"index of axis {axis}")
    sentence = (
        f"{own} of {view.name} is {held.name}.stride({axis}) and is never used for {held.name}: "
        f"every {word} has {held.name} of {word} 0"
    )
    fix = f"add {_product(view, uses, own, kind)} to {base}"
    note = f"no {held.name}.stride({axis})"
    return finding_at(spot, MISSING, view.name, sentence, fix, held.name, axis=axis, kind=kind, note=note)


def _product(view: View, uses: Sequence[Use], own: str, kind: str) -> str:
    """The term that is lacking, after the way in which another tensor has it."""
    alike = [use for use in uses if kind and use.family == family(kind) and len(use.factor.spots) == 1]
    alike.sort(key=lambda use: use.stride.kind != kind)
    for use in alike:
        product = product_at(view, use.factor.spots[0])
        if product != use.factor.parameter:
            return product.replace(use.factor.parameter, own)
    return f"the index times {own}"


def _where(view: View, base: str) -> SourceLine:
    """The pointer's name where it is first advanced in the kernel itself, else where it is first used."""
    advances = [each for each in view.record.advances if each.base == base and each.spot.function == view.name]
    spot = advances[0].spot if advances else view.record.accesses[base]
    column = spot.code.find(base)
    return spot if column < 0 else replace(spot, column=column, length=len(base))
