"""Foreign: a pointer that starts at one tensor and advances by another's stride."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..source.parameter_names import renamed, stride_of, word_of
from ..source.text import SourceLine
from ..source.triton_source import call_tree
from .cuda import CudaKernel
from .finding import FOREIGN, LintFinding, finding_at
from .launch import HostArgument
from .values import Advance, StrideFactor
from .view import KernelView, Stride, TensorViews


def foreign(view: KernelView) -> Iterator[LintFinding]:
    """The pointers of a launched kernel that advance by a stride of a tensor that is not theirs."""
    for advance in view.record.advances:
        held, factors = view.tensor_of(advance.base), advance.term.factors
        if held is None or len(factors) != 1 or view.owns(advance.base, factors[0].parameter):
            continue
        meanings = view.meanings(factors[0].parameter) if view.is_certain(factors[0].parameter) else ()
        if meanings and not any(view.memory.is_as_long_as(held, stride.tensor) for stride in meanings):
            accused = Accused(view, advance, factors[0], held, meanings)
            yield accused.of_the_host() or accused.of_the_kernel()


@dataclass(frozen=True)
class Accused:
    """One advance by a foreign stride."""

    view: KernelView
    advance: Advance
    factor: StrideFactor
    held: TensorViews
    """The tensor that the pointer starts from."""
    meanings: Sequence[Stride]
    """Whose stride it is."""

    @property
    def axis(self) -> int | None:
        """The axis of the tensor that is meant: that of the same kind, else of the same number."""
        other = self.meanings[0]
        if self.held.kinds and other.kind:
            return axis_like(self.held, other.kind)
        return other.axis if other.axis < len(self.held.shape) else None

    def of_the_kernel(self) -> LintFinding:
        """The kernel takes another stride than that of its pointer."""
        spot, either = self._wrong_spot(), " or ".join(map(str, self.meanings[:3]))
        sentence = f"{self.held.name} is advanced by {spot.text}, which is {either}: {self._own()}"
        return self._finding(spot, sentence, self._edit(spot))

    def of_the_host(self) -> LintFinding | None:
        """The launch gave another tensor's stride for a parameter that is called this tensor's."""
        view, parameter, site = self.view, self.factor.parameter, self.view.launch.site
        if view.named(parameter) != self.held.name or site is None:
            return None
        name, other = host_name(view, self.advance.base), self.meanings[0]
        _, letter = stride_of(parameter, set(view.plain_names.values()))
        found = axis_like(self.held, letter) if letter and self.held.kinds else None
        axis = self.axis if found is None else found
        sentence = (
            f"parameter {parameter} of {view.name} is given {other} in the launch at {site.spot.place}, "
            f"so {self.held.name} is read with {other.tensor}'s stride"
        )
        given, own = given_for(view, parameter), f"{name}.stride({axis})"
        if given is None:  # the source does not tell which of the arguments it is
            fix = f"in the launch: pass {own} for {parameter}" if axis is not None else ""
            return self._finding(site.spot, sentence, fix, axis)
        if given.text != given.spot.text:  # one of several that `*q.stride()` gives
            fix = f"in the launch: *{given.spot.text} -> *{name}.stride()"
            return replace(self._finding(given.spot, sentence, fix), axis=None, kind="")
        fix = f"in the launch: {given.text} -> {own}" if axis is not None else ""
        return self._finding(given.spot, sentence, fix, axis)

    def _finding(self, spot: SourceLine, sentence: str, fix: str, axis: int | None = None) -> LintFinding:
        axis, other = self.axis if axis is None else axis, self.meanings[0]
        kind = self.held.kinds[axis] if axis is not None and self.held.kinds else ""
        told = {"other": other.tensor, "axis": axis, "kind": kind, "note": str(other)}
        return finding_at(spot, FOREIGN, self.view.name, sentence, fix, self.held.name, **told)

    def _own(self) -> str:
        """Whether the tensor's own stride reaches the kernel, and whether that is used."""
        if self.axis is None:
            return f"{self.held.name} has no such axis"
        own, call = self._own_parameter(), f"{self.held.name}.stride({self.axis})"
        if own is None:
            return f"{call} is never passed"
        used = own.partition("[")[0] in self.view.mentioned
        return f"{own} = {call} is passed and {'used elsewhere' if used else 'never used'}"

    def _own_parameter(self) -> str | None:
        own = self.view.parameters_of(self.advance.base, self.axis) if self.axis is not None else []
        return own[0] if own else None

    def _edit(self, spot: SourceLine) -> str:
        """The edit of the kernel, and of its launch where the right stride is no parameter; "" where one is no edit."""
        own = self._own_parameter()
        name = own or self._new_name()
        if not name or self._is_shared(spot):
            return ""
        product = product_at(self.view, spot)
        edit = f"{product} -> {product.replace(spot.text, name)}" if spot.text in product else f"{spot.text} -> {name}"
        return edit if own is not None or self.axis is None else f"{edit}; {self._added(name, self.axis)}"

    def _new_name(self) -> str:
        """What a parameter for the right stride is to be called; "" where something else is called so."""
        view, word = self.view, self.view.plain_names.get(self.advance.base, self.held.name)
        other, _ = stride_of(self.factor.parameter, set(view.plain_names.values()))
        letter = self.held.kinds[self.axis] if self.axis is not None and self.held.kinds else f"_{self.axis}"
        name = renamed(self.factor.parameter, other, word) if other else f"stride_{word}{letter}"
        return "" if name in view.mentioned or name in view.function.parameters else name

    def _is_shared(self, spot: SourceLine) -> bool:
        """Whether a spot holds more than the wrong stride: a whole offset, or what another pointer takes rightly."""
        if spot not in self.factor.spots:
            return True
        others = ((each.base, factor) for each in self.view.record.advances for factor in each.term.factors)
        return any(spot in factor.spots and self.view.owns(base, factor.parameter) for base, factor in others)

    def _added(self, name: str, axis: int) -> str:
        """What to add to kernel and launch where the stride does not reach the kernel."""
        view, base, site = self.view, self.advance.base, self.view.launch.site
        beside = [each for at in range(len(self.held.shape)) for each in view.parameters_of(base, at)]
        after = max(beside or view.strides[-1:], key=view.function.parameters.index)
        passed, own = view.launch.arguments[base], self.held.strides[axis]
        # The host may pass a view, in which the axis has another number.
        strides = tuple(passed.stride()) if hasattr(passed, "stride") else ()
        call = f"{host_name(view, base)}.stride({strides.index(own) if own in strides else axis})"
        at = f" at {site.spot.place}" if site is not None else ""
        return f"add a parameter {name} after {after} of {view.name}, and pass {call} for it in the launch{at}"

    def _wrong_spot(self) -> SourceLine:
        """Where the wrong name stands: in the kernel, or in a function whose own names contradict each other.

        An offset that another pointer uses rightly is wrong only where it is added to this pointer.
        """
        view, advance, spots = self.view, self.advance, self.factor.spots
        alike = (each for each in view.record.advances for one in each.term.factors if one.spots[0] == spots[0])
        if advance.term.via and any(view.owns(each.base, self.factor.parameter) for each in alike):
            return advance.term.via
        inner, function = spots[-1], view.function
        tree = [] if isinstance(function, CudaKernel) else call_tree(function.jit)
        names = next((each.parameters for each in tree if each.name == inner.function), ())
        # Beside pointers a function has indices: stride_i of i is no stride of another tensor.
        moved = {each.local for each in view.record.advances if each.spot.function == inner.function}
        pointers = {name for name in names if name in moved or "ptr" in name.lower()}
        word, _ = stride_of(inner.text, set(map(word_of, pointers)))
        is_inner = len(spots) > 1 and word and word != word_of(advance.local)
        return inner if is_inner and inner.function == advance.spot.function else spots[0]


def axis_like(held: TensorViews, kind: str) -> int | None:
    """The axis of a tensor that is of a kind, or of its family where that is the only one: heads are heads."""
    if kind in held.kinds:
        return held.kinds.index(kind)
    like = {"h": "gh", "g": "hg", "m": "mn", "n": "nm", "d": "de", "e": "ed"}.get(kind, "")
    found = [axis for axis, letter in enumerate(held.kinds) if letter in like]
    return found[0] if len(found) == 1 or (found and kind in "mn") else None


def product_at(view: KernelView, spot: SourceLine) -> str:
    """The product that a name stands in, as it is written; the name alone where it stands in none."""
    function = view.function
    if isinstance(function, CudaKernel):
        return function.product_at(spot) or spot.text
    for node in ast.walk(function.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            names = (side for side in (node.left, node.right) if isinstance(side, ast.Name))
            if any(function.line_of(name) == spot for name in names):
                return ast.unparse(node)
    return spot.text


def given_for(view: KernelView, parameter: str) -> HostArgument | None:
    """What the host gave for a parameter; None where its source does not tell."""
    site = view.launch.site
    return site.given.get(parameter.partition("[")[0]) if site is not None else None


def host_name(view: KernelView, base: str) -> str:
    """What the host calls the tensor of a pointer: a variable's name, else the tensor's."""
    given, held = given_for(view, base), view.tensor_of(base)
    if given is not None and given.text.isidentifier():
        return given.text
    return held.name if held is not None else base
