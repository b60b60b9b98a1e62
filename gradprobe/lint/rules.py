"""Rules: which variable multiplies which stride of which tensor, in one launched kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..model.intermediates import AXIS_WORDS
from ..source.parameter_names import renamed, stride_of, word_of
from ..source.text import SourceLine
from .cuda import CudaKernel
from .finding import FOREIGN, MISSING, SWAPPED, LintFinding, finding_at
from .pointers import Advance, StrideFactor
from .view import KernelView, Stride, TensorViews


@dataclass(frozen=True)
class Use:
    """One stride in a pointer, its tensor's own or another's."""

    view: KernelView
    advance: Advance
    factor: StrideFactor
    held: TensorViews
    """The tensor that the pointer starts from."""
    axis: int | None
    """Of it, whose stride this is; None where it is that of no axis, or of several."""

    @property
    def base(self) -> str:
        return self.advance.base

    @property
    def index(self) -> str:
        """The one variable that it is multiplied with; "" where there are more, or none."""
        first, *more = self.advance.term.index or ("",)
        return "" if more else first

    @property
    def kind(self) -> str:
        return self.held.kinds[self.axis] if self.held.kinds and self.axis is not None else ""

    @cached_property
    def meanings(self) -> list[Stride]:
        """Whose stride it is; [] where it is the tensor's own, or nobody knows."""
        parameter = self.factor.parameter
        return [] if self.view.strides[parameter] in self.held.own else self.view.meanings(parameter)

    @property
    def is_foreign(self) -> bool:
        """Whether it is another tensor's."""
        is_alike = any(self.view.memory.is_as_long_as(self.held, stride.tensor) for stride in self.meanings)
        return bool(self.meanings) and not is_alike

    @property
    def meant(self) -> int | None:
        """The axis of the tensor that is meant: that of the same kind, else of the same number."""
        other = self.meanings[0]
        if self.held.kinds and other.kind:
            return self.held.axis_like(other.kind)
        return other.axis if other.axis < len(self.held.shape) else None

    @property
    def own(self) -> str:
        """The parameter that is meant; "" where none is passed."""
        own = self.view.parameters_of(self.base, self.meant) if self.meant is not None else []
        return own[0] if own else ""

    def of_the_kernel(self) -> LintFinding:
        """The kernel takes another stride than that of its pointer."""
        spot, either = self._wrong_spot(), " or ".join(map(str, self.meanings[:3]))
        call = f"{self.held.name}.stride({self.meant})"
        became = f"{self.held.name} has no such axis" if self.meant is None else f"{call} is never passed"
        if self.own:
            is_used = self.own.partition("[")[0] in self.view.mentioned
            became = f"{self.own} = {call} is passed and {'used elsewhere' if is_used else 'never used'}"
        sentence = f"{self.held.name} is advanced by {spot.text}, which is {either}: {became}"
        return self._finding(spot, sentence, self._edit(spot), self.meant)

    def of_the_host(self) -> LintFinding | None:
        """The launch gave another tensor's stride for a parameter that is called this tensor's."""
        view, parameter, launch, other = self.view, self.factor.parameter, self.view.launch, self.meanings[0]
        if view.named(parameter) != self.held.name or launch.spot is None:
            return None
        _, letter = stride_of(parameter, set(view.bare_names.values()))
        found = self.held.axis_like(letter) if letter and self.held.kinds else None
        axis = self.meant if found is None else found
        sentence = (
            f"parameter {parameter} of {view.name} is given {other} in the launch at {launch.spot.place}, "
            f"so {self.held.name} is read with {other.tensor}'s stride"
        )
        given, name = launch.given.get(parameter.partition("[")[0]), self._host_name()
        own = f"{name}.stride({axis})"
        if given is not None and given.text != given.spot.text:  # one of several that `*q.stride()` gives
            return self._finding(given.spot, sentence, f"in the launch: *{given.spot.text} -> *{name}.stride()", None)
        edit = f"pass {own} for {parameter}" if given is None else f"{given.text} -> {own}"
        fix = f"in the launch: {edit}" if axis is not None else ""
        return self._finding(launch.spot if given is None else given.spot, sentence, fix, axis)

    def _finding(self, spot: SourceLine, sentence: str, fix: str, axis: int | None) -> LintFinding:
        other, kind = self.meanings[0], self.held.kinds[axis] if axis is not None and self.held.kinds else ""
        told = {"other": other.tensor, "axis": axis, "kind": kind, "note": str(other)}
        return finding_at(spot, FOREIGN, self.view.name, sentence, fix, self.held.name, **told)

    def _host_name(self) -> str:
        """What the host calls the tensor: a variable's name, else the tensor's."""
        given = self.view.launch.given.get(self.base)
        return given.text if given is not None and given.text.isidentifier() else self.held.name

    def _edit(self, spot: SourceLine) -> str:
        """The edit of the kernel, and of its launch where the right stride is no parameter; "" where one is no edit."""
        name = self.own or self._new_name()
        # A whole offset, or what another pointer takes rightly, is more than the wrong stride.
        if not name or spot not in self.factor.spots or self._is_right_elsewhere(spot):
            return ""
        product = self.view.product_at(spot)
        edit = f"{product} -> {product.replace(spot.text, name)}" if spot.text in product else f"{spot.text} -> {name}"
        return edit if self.own or self.meant is None else f"{edit}; {self._added(name, self.meant)}"

    def _new_name(self) -> str:
        """What a parameter for the right stride is to be called; "" where something else is called so."""
        view, word = self.view, self.view.bare_names[self.base]
        other, _ = stride_of(self.factor.parameter, set(view.bare_names.values()))
        letter = self.held.kinds[self.meant] if self.meant is not None and self.held.kinds else f"_{self.meant}"
        name = renamed(self.factor.parameter, other, word) if other else f"stride_{word}{letter}"
        return "" if name in view.mentioned or name in view.function.parameters else name

    def _is_right_elsewhere(self, spot: SourceLine) -> bool:
        """Whether the same name at a spot is another pointer's own stride."""
        for advance in self.view.record.advances:
            held = self.view.tensors.get(advance.base)
            own = held.own if held is not None else ()
            if any(spot in each.spots and self.view.strides[each.parameter] in own for each in advance.term.factors):
                return True
        return False

    def _added(self, name: str, axis: int) -> str:
        """What to add to kernel and launch where the stride does not reach the kernel."""
        view, base, spot = self.view, self.base, self.view.launch.spot
        beside = [each for at in range(len(self.held.shape)) for each in view.parameters_of(base, at)]
        names = [each.partition("[")[0] for each in beside or [*view.strides][-1:]]
        after, passed, own = max(names, key=view.function.parameters.index), view.launch.arguments[base], axis
        # The host may pass a view, in which the axis has another number.
        if hasattr(passed, "stride") and self.held.strides[axis] in passed.stride():
            own = passed.stride().index(self.held.strides[axis])
        call, at = f"{self._host_name()}.stride({own})", f" at {spot.place}" if spot is not None else ""
        return f"add a parameter {name} after {after} of {view.name}, and pass {call} for it in the launch{at}"

    def _wrong_spot(self) -> SourceLine:
        """Where the wrong name stands: in the kernel, or in a function whose own names contradict each other.

        An offset that another pointer uses rightly is wrong only where it is added to this pointer.
        """
        record, advance, (first, *_) = self.view.record, self.advance, self.factor.spots
        if advance.term.via and self._is_right_elsewhere(first):
            return advance.term.via
        inner = self.factor.spots[-1]
        names = record.functions.get(inner.function, ())
        # Beside pointers a function has indices: stride_i of i is no stride of another tensor.
        moved = {each.local for each in record.advances if each.spot.function == inner.function}
        word, _ = stride_of(inner.text, {word_of(name) for name in names if name in moved or "ptr" in name.lower()})
        is_inner = inner != first and word and word != word_of(advance.local)
        return inner if is_inner and inner.function == advance.spot.function else first


def findings_in(view: KernelView) -> list[LintFinding]:
    """The wrong strides of a launched kernel."""
    uses = list(_uses(view))
    own = [use for use in uses if use.axis is not None]
    # A loop's variable in C++ may run along another axis in the next loop.
    found = [use.of_the_host() or use.of_the_kernel() for use in uses if use.is_foreign]
    found += [] if isinstance(view.function, CudaKernel) else _swapped(own)
    return [*found, *_missing(view, own, {(one.tensor, one.axis) for one in found})]


def _uses(view: KernelView) -> Iterator[Use]:
    for advance in view.record.advances:
        held, factors = view.tensors.get(advance.base), advance.term.factors
        if held is not None and len(factors) == 1:
            number = view.strides[factors[0].parameter]
            axes = [axis for axis, step in enumerate(held.strides) if step == number and held.shape[axis] > 1]
            yield Use(view, advance, factors[0], held, axes[0] if len(axes) == 1 else None)


# As many other tensors must agree on what a variable runs along.
_WITNESSES = 2


def family(kind: str) -> str:
    """One letter for axes that one variable may run along: heads and key heads, dims and value dims."""
    return {"g": "h", "e": "d"}.get(kind, kind)


def _swapped(uses: Sequence[Use]) -> Iterator[LintFinding]:
    """The strides that stand where another axis's stride of the same tensor is meant."""
    for use in uses:
        meant = _meant(uses, use)
        right = [each for each in uses if each.base == use.base and each.axis == meant]
        crossed = [each for each in right if _runs_along(uses, each) == family(use.kind)]
        if meant is None or len(crossed) != len(right):
            continue
        # That rows stand for keys proves nothing where the stride that would be meant is used nowhere.
        if crossed or {family(use.kind), family(use.held.kinds[meant])} != {"m", "n"}:
            yield _swapped_finding(use, meant)


def _meant(uses: Sequence[Use], use: Use) -> int | None:
    """The axis of its tensor that its variable runs along; None where it is that of the stride, or not certain."""
    along = _runs_along(uses, use)
    if not along or not use.kind or along == family(use.kind):
        return None
    axes = [axis for axis, kind in enumerate(use.held.kinds) if family(kind) == along and use.held.shape[axis] > 1]
    return axes[0] if len(axes) == 1 else None


def _runs_along(uses: Sequence[Use], use: Use) -> str:
    """The axis that a variable runs along in other tensors; "" where they do not agree, or are too few."""
    alike = [each for each in uses if use.index and each.index == use.index and each.base != use.base]
    others = {(each.held.name, family(each.kind)) for each in alike}
    families = {kind for _, kind in others}
    return families.pop() if len(families) == 1 and len(others) >= _WITNESSES else ""


def _swapped_finding(use: Use, meant: int) -> LintFinding:
    spot, name, view = use.factor.spots[0], use.held.name, use.view
    own, note = next(iter(view.parameters_of(use.base, meant)), f"{name}.stride({meant})"), f"{name}.stride({use.axis})"
    sentence = (
        f"{spot.text} is {note}, and {use.index} runs along axis {meant} of {name}, "
        f"as it does in other tensors: {name}.stride({meant}) is meant"
    )
    product = view.product_at(spot)
    fix, kind = f"{product} -> {product.replace(spot.text, own)}", use.held.kinds[meant]
    return finding_at(spot, SWAPPED, view.name, sentence, fix, name, other=name, axis=meant, kind=kind, note=note)


def _missing(view: KernelView, uses: Sequence[Use], told: set[tuple[str, int | None]]) -> Iterator[LintFinding]:
    """The axes along which no pointer of a tensor moves although the stride is there, but those that are told."""
    for base in view.record.accesses:
        held = view.tensors.get(base)
        if held is None or base in view.record.lost or _has_more_terms(view, base, held):
            continue
        for axis in range(len(held.shape)):
            if (held.name, axis) not in told and _is_missing(view, uses, base, axis):
                yield _missing_finding(view, uses, base, axis)


def _has_more_terms(view: KernelView, base: str, held: TensorViews) -> bool:
    """Whether something is added to a pointer that may stand for an axis whose stride is taken for granted."""
    terms = [advance.term for advance in view.record.advances if advance.base == base]
    loose = {term.index for term in terms if term.index and not term.factors}
    spare = [axis for axis, size in enumerate(held.shape) if size > 1 and not view.parameters_of(base, axis)]
    return any(len(term.factors) > 1 for term in terms) or len(loose) > len(spare)


def _is_missing(view: KernelView, uses: Sequence[Use], base: str, axis: int) -> bool:
    own, held = view.parameters_of(base, axis), view.tensors[base]
    if not own or held.strides[axis] < 2 or not view.meanings(own[0]):
        return False
    if any(use.base == base and use.axis == axis for use in uses):
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
    running = {use.index for use in uses if use.base == base and use.axis == inner} - {""}
    outer_kind, inner_kind = family(held.kinds[axis]), family(held.kinds[inner])
    others = [use for use in uses if use.base != base and use.held.is_given]
    along = {use.base for use in others if use.index in running and family(use.kind) == inner_kind}
    return any(use.base in along and family(use.kind) == outer_kind for use in others)


def _missing_finding(view: KernelView, uses: Sequence[Use], base: str, axis: int) -> LintFinding:
    own, held = view.parameters_of(base, axis)[0], view.tensors[base]
    kind, name = held.kinds[axis] if held.kinds else "", held.name
    word = AXIS_WORDS.get(kind, f"index of axis {axis}")
    sentence = (
        f"{own} of {view.name} is {name}.stride({axis}) and is never used for {name}: "
        f"every {word} uses {name} of {word} 0"
    )
    fix, note = f"add {_lacking_product(view, uses, own, kind)} to {base}", f"no {name}.stride({axis})"
    # The pointer's name where it is first advanced in the kernel itself, else where it is first used.
    advances = [each.spot for each in view.record.advances if each.base == base and each.spot.function == view.name]
    spot = next(iter(advances), view.record.accesses[base])
    if (column := spot.code.find(base)) >= 0:
        spot = replace(spot, column=column, length=len(base))
    return finding_at(spot, MISSING, view.name, sentence, fix, name, axis=axis, kind=kind, note=note)


def _lacking_product(view: KernelView, uses: Sequence[Use], own: str, kind: str) -> str:
    """The term that is lacking, after the way in which another tensor has it."""
    alike = [use for use in uses if kind and family(use.kind) == family(kind) and len(use.factor.spots) == 1]
    for use in sorted(alike, key=lambda use: use.kind != kind):
        product = view.product_at(use.factor.spots[0])
        if product != use.factor.parameter:
            return product.replace(use.factor.parameter, own)
    return f"the index times {own}"
