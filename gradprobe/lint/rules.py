"""Uses: which variable multiplies which stride of which tensor, in one kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..source.parameter_names import is_stride, renamed, stride_of, tensor_of, word_of
from ..source.triton_source import Function, kernel_below, read_once
from .finding import FOREIGN, MISSING, SWAPPED, LintFinding, finding_at
from .foreign import product_at
from .values import Advance, Record, StrideFactor
from .view import KernelView, Stride, TensorViews, by_name


@dataclass(frozen=True)
class Use:
    """A tensor's own stride in a pointer of that tensor."""

    advance: Advance
    factor: StrideFactor
    held: TensorViews
    stride: Stride

    @property
    def base(self) -> str:
        return self.advance.base

    @property
    def index(self) -> str:
        """The one variable that it is multiplied with; "" where there are more, or none."""
        first, *more = self.advance.term.index or ("",)
        return "" if more else first

    @property
    def family(self) -> str:
        """What the axis is; the dims of keys and of values are one."""
        return family(self.stride.kind)


def uses_of(view: KernelView) -> list[Use]:
    """Every use in a kernel whose axis is known."""
    found = []
    for advance in view.record.advances:
        held, factors = view.tensor_of(advance.base), advance.term.factors
        if held is not None and len(factors) == 1:
            number = view.number(factors[0].parameter)
            axes = [at for at, step in enumerate(held.strides) if step == number and held.shape[at] > 1]
            if len(axes) == 1:
                found.append(Use(advance, factors[0], held, held.stride(axes[0])))
    return found


def family(kind: str) -> str:
    """One letter for axes that one variable may run along: heads and key heads, dims and value dims."""
    return {"g": "h", "e": "d"}.get(kind, kind)


# As many other tensors must agree on what a variable runs along.
_WITNESSES = 2


def swapped(view: KernelView) -> Iterator[LintFinding]:
    """The strides of a launched kernel that stand where another axis's stride of the same tensor is meant."""
    uses = uses_of(view)
    for use in uses:
        meant = _meant(uses, use)
        right = [each for each in uses if each.base == use.base and each.stride.axis == meant]
        crossed = [each for each in right if _runs_along(uses, each) == use.family]
        if meant is None or len(crossed) != len(right):
            continue
        # That rows stand for keys proves nothing where the stride that would be meant is used nowhere.
        if crossed or {use.family, family(use.held.kinds[meant])} != {"m", "n"}:
            yield _swapped(view, use, meant)


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


def _swapped(view: KernelView, use: Use, meant: int) -> LintFinding:
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


_WORDS = {"b": "batch", "h": "head", "g": "key head", "m": "row", "n": "key", "d": "column", "e": "column"}


def missing(view: KernelView, accused: Sequence[LintFinding]) -> Iterator[LintFinding]:
    """The axes of a launched kernel's tensors along which no pointer moves although the stride is there.

    Args:
        accused: other findings of the kernel. Axes that they name are left out.
    """
    uses = uses_of(view)
    told = {(finding.tensor, finding.axis) for finding in accused}
    for base in view.record.accesses:
        held = view.tensor_of(base)
        if held is None or base in view.record.lost or _has_more_terms(view, base, held):
            continue
        for axis in range(len(held.shape)):
            if (held.name, axis) not in told and _is_missing(view, uses, base, held, axis):
                yield _missing(view, uses, base, held, axis)


def _has_more_terms(view: KernelView, base: str, held: TensorViews) -> bool:
    """Whether something is added to a pointer that may stand for an axis whose stride is taken for granted."""
    terms = [advance.term for advance in view.record.advances if advance.base == base]
    loose = {term.index for term in terms if term.index and not term.factors}
    spare = [axis for axis, size in enumerate(held.shape) if size > 1 and not view.parameters_of(base, axis)]
    return any(len(term.factors) > 1 for term in terms) or len(loose) > len(spare)


def _is_missing(view: KernelView, uses: Sequence[Use], base: str, held: TensorViews, axis: int) -> bool:
    own = view.parameters_of(base, axis)
    if not own or held.strides[axis] < 2 or not view.is_certain(own[0]):
        return False
    if any(use.base == base and use.stride.axis == axis for use in uses):
        return False
    # A stride that the kernel reads elsewhere than in pointers of other tensors may be used for this one.
    others = [factor for each in view.record.advances if each.base != base for factor in each.term.factors]
    for name in own:
        spots = {each.spots[0] for each in others if each.parameter == name}
        if view.mentioned.get(name.partition("[")[0], 0) > len(spots):
            return False
    return held.is_given or _is_apart(uses, base, held, axis)


def _is_apart(uses: Sequence[Use], base: str, held: TensorViews, axis: int) -> bool:
    """Whether no other axis of a tensor can stand for this one too, as b * n_heads + h does where it is contiguous.

    The variable that runs along the next axis must run along such an axis of another tensor whose own axis of this kind
    is walked apart.
    """
    inner = next((at for at in range(axis + 1, len(held.shape)) if held.shape[at] > 1), None)
    if inner is None or not held.kinds:
        return inner is None
    running = {use.index for use in uses if use.base == base and use.stride.axis == inner} - {""}
    outer_kind, inner_kind = family(held.kinds[axis]), family(held.kinds[inner])
    others = [use for use in uses if use.base != base and use.held.is_given]
    along = {use.base for use in others if use.index in running and use.family == inner_kind}
    return any(use.base in along and use.family == outer_kind for use in others)


def _missing(view: KernelView, uses: Sequence[Use], base: str, held: TensorViews, axis: int) -> LintFinding:
    own, kind = view.parameters_of(base, axis)[0], held.kinds[axis] if held.kinds else ""
    word = _WORDS.get(kind, f"index of axis {axis}")
    sentence = (
        f"{own} of {view.name} is {held.name}.stride({axis}) and is never used for {held.name}: "
        f"every {word} uses {held.name} of {word} 0"
    )
    fix, note = f"add {_product(view, uses, own, kind)} to {base}", f"no {held.name}.stride({axis})"
    # The pointer's name where it is first advanced in the kernel itself, else where it is first used.
    advances = [each.spot for each in view.record.advances if each.base == base and each.spot.function == view.name]
    spot = next(iter(advances), view.record.accesses[base])
    if (column := spot.code.find(base)) >= 0:
        spot = replace(spot, column=column, length=len(base))
    return finding_at(spot, MISSING, view.name, sentence, fix, held.name, axis=axis, kind=kind, note=note)


def _product(view: KernelView, uses: Sequence[Use], own: str, kind: str) -> str:
    """The term that is lacking, after the way in which another tensor has it."""
    alike = [use for use in uses if kind and use.family == family(kind) and len(use.factor.spots) == 1]
    alike.sort(key=lambda use: use.stride.kind != kind)
    for use in alike:
        product = product_at(view, use.factor.spots[0])
        if product != use.factor.parameter:
            return product.replace(use.factor.parameter, own)
    return f"the index times {own}"


# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2


def siblings(functions: Sequence[Function], views: Sequence[KernelView]) -> Iterator[tuple[Record, list[LintFinding]]]:
    """The kernels among functions that were never launched, as they are read by names, and what these contradict."""
    launched = {view.name for view in views}
    called = {id(jit) for function in functions for _, jit in function.calls}
    given = [(name, view.tensor_of(name)) for view in views for name in view.plain_names]
    told = {name: {held.name if held else "" for each, held in given if each == name} for name, _ in given}
    # What the parameters of pointers were given in every launch that has them.
    tensors = {name: next(iter(each)) for name, each in told.items() if len(each) == 1}
    for function in functions:
        if function.name in launched or id(function.jit) in called:
            continue
        names = [name for name in function.parameters if not is_stride(name)]
        pointers = {name: tensor for name in names if (tensor := tensors.get(name) or tensor_of(name))}
        # What is called a pointer is one, also where nobody knows of which tensor.
        pointers |= {name: word_of(name) for name in names if name not in pointers and "ptr" in name.lower()}
        record = by_name(function, pointers)
        if record.accesses:
            yield record, list(_foreign(record, pointers))


def functions_of(scope: Mapping[str, Any], file: str) -> list[Function]:
    """The Triton functions that are defined in a file, of those that a module's names mean."""
    found: dict[int, Function] = {}
    for jit in map(kernel_below, list(scope.values())):
        with contextlib.suppress(OSError, SyntaxError, TypeError):
            if jit is not None and (function := read_once(jit)).file == file:
                found[id(jit)] = function
    return sorted(found.values(), key=lambda function: function.line)


def _foreign(record: Record, pointers: Mapping[str, str]) -> Iterator[LintFinding]:
    words = {word_of(name): tensor for name, tensor in pointers.items()}
    accused: list[tuple[Advance, str]] = []
    own: set[str] = set()
    for advance in record.advances:
        factors = advance.term.factors
        word = stride_of(factors[0].parameter, set(words))[0] if len(factors) == 1 else ""
        if word and words[word] == pointers[advance.base]:
            own.add(advance.base)
        elif word and advance.term.via is None:
            accused.append((advance, word))
    for advance, word in accused:
        users = {each.base for each, other in accused if other == word}
        if advance.base in own and len(users) < _A_WAY:
            yield _sibling_finding(record, advance, word, words, pointers)


def _sibling_finding(
    record: Record, advance: Advance, word: str, words: Mapping[str, str], pointers: Mapping[str, str]
) -> LintFinding:
    factor, tensor, other, kernel = advance.term.factors[0], pointers[advance.base], words[word], record.function
    name, spot = renamed(factor.parameter, word, word_of(advance.base)), factor.spots[0]
    passed, more = f"the kernel takes {name} too", ""
    if name not in kernel.parameters:
        passed, more = f"the kernel does not take {name}", ", a parameter to add here and in the launch"
    sentence = f"{tensor} is advanced by {spot.text}, by its name a stride of {other}: {passed} (it was not launched)"
    told = {"other": other, "kind": stride_of(name, set(words))[1], "note": f"of {other}", "by_name": True}
    return finding_at(spot, FOREIGN, kernel.name, sentence, f"{spot.text} -> {name}{more}", tensor, **told)
