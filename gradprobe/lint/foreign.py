"""Foreign: a pointer that starts at one tensor and advances by another's stride."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..source.text import SourceLine
from ..source.triton import call_tree
from .cuda import CudaKernel
from .finding import FOREIGN, LintFinding, finding_at
from .launch import Given
from .values import Advance, Factor
from .view import Held, Stride, View, renamed, stride_of, word_of


def foreign(view: View) -> Iterator[LintFinding]:
    """The pointers of a launched kernel that advance by a stride of a tensor that is not theirs."""
    for advance in view.record.advances:
        if len(advance.term.factors) == 1:
            accused = _accused(view, advance, advance.term.factors[0])
            if accused is not None:
                yield accused.of_the_host() or accused.of_the_kernel()


def _accused(view: View, advance: Advance, factor: Factor) -> Accused | None:
    held = view.held(advance.base)
    if held is None or view.owns(advance.base, factor.parameter):
        return None
    meanings = view.meanings(factor.parameter)
    if not meanings or not view.is_certain(factor.parameter):
        return None
    if any(view.memory.is_as_long_as(held, stride.tensor) for stride in meanings):
        return None
    return Accused(view, advance, factor, held, meanings)


@dataclass(frozen=True)
class Accused:
    """One advance by a foreign stride."""

    view: View
    advance: Advance
    factor: Factor
    held: Held
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
        spot, other = wrong_spot(self.view, self.advance, self.factor), self.meanings[0]
        sentence = f"{self.held.name} is advanced by {spot.text}, which is {_either(self.meanings)}: {self._own()}"
        return self._finding(spot, sentence, self._edit(spot), str(other))

    def of_the_host(self) -> LintFinding | None:
        """The launch gave another tensor's stride for a parameter that is called this tensor's."""
        view, parameter, site = self.view, self.factor.parameter, self.view.launch.site
        if view.named(parameter) != self.held.name or site is None:
            return None
        given, name, axis = _given(view, parameter), host_name(view, self.advance.base), self._named_axis()
        sentence = (
            f"parameter {parameter} of {view.name} is given {self.meanings[0]} in the launch at {site.spot.place}, "
            f"so {self.held.name} is read with {self.meanings[0].tensor}'s stride"
        )
        note = str(self.meanings[0])
        if given is None:  # the source does not tell which of the arguments it is
            fix = f"in the launch: pass {name}.stride({axis}) for {parameter}" if axis is not None else ""
            return self._finding(site.spot, sentence, fix, note, axis)
        if given.text != given.spot.text:  # one of several that `*q.stride()` gives
            fix = f"in the launch: *{given.spot.text} -> *{name}.stride()"
            return replace(self._finding(given.spot, sentence, fix, note), axis=None, kind="")
        fix = f"in the launch: {given.text} -> {name}.stride({axis})" if axis is not None else ""
        return self._finding(given.spot, sentence, fix, note, axis)

    def _named_axis(self) -> int | None:
        _, letter = stride_of(self.factor.parameter, set(self.view.words.values()))
        found = axis_like(self.held, letter) if letter and self.held.kinds else None
        return self.axis if found is None else found

    def _finding(self, spot: SourceLine, sentence: str, fix: str, note: str, axis: int | None = None) -> LintFinding:
        axis = self.axis if axis is None else axis
        kind = self.held.kinds[axis] if axis is not None and self.held.kinds else ""
        told = {"other": self.meanings[0].tensor, "axis": axis, "kind": kind, "note": note}
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
        if self.axis is None:
            return None
        return next(iter(self.view.parameters_of(self.advance.base, self.axis)), None)

    def _edit(self, spot: SourceLine) -> str:
        """The edit of the kernel, and of its launch where the right stride is no parameter."""
        own = self._own_parameter()
        word = self.view.words.get(self.advance.base, self.held.name)
        other = _word_in(self.view, self.factor.parameter)
        name = own or (renamed(self.factor.parameter, other, word) if other else f"stride_{word}")
        product = product_at(self.view, spot)
        edit = f"{product} -> {product.replace(spot.text, name)}" if spot.text in product else f"{spot.text} -> {name}"
        if own is not None or self.axis is None:
            return edit
        return f"{edit}; {self._added(name)}"

    def _added(self, name: str) -> str:
        """What to add to kernel and launch where the stride does not reach the kernel."""
        view, base = self.view, self.advance.base
        beside = [each for axis in range(len(self.held.shape)) for each in view.parameters_of(base, axis)]
        after = max(beside or view.strides[-1:], key=view.function.parameters.index)
        site = view.launch.site
        at = f" at {site.spot.place}" if site is not None else ""
        call = f"{host_name(view, base)}.stride({_host_axis(view, base, self.held, self.axis or 0)})"
        return f"add a parameter {name} after {after} of {view.name}, and pass {call} for it in the launch{at}"


def axis_like(held: Held, kind: str) -> int | None:
    """The axis of a tensor that is of a kind, or of its family where that is the only one: heads are heads."""
    if kind in held.kinds:
        return held.kinds.index(kind)
    like = {"h": "gh", "g": "hg", "m": "mn", "n": "nm", "d": "de", "e": "ed"}.get(kind, "")
    found = [axis for axis, letter in enumerate(held.kinds) if letter in like]
    return found[0] if len(found) == 1 or (found and kind in "mn") else None


def wrong_spot(view: View, advance: Advance, factor: Factor) -> SourceLine:
    """Where the wrong name stands: in the kernel, or in a function whose own names contradict each other.

    An offset that another pointer uses rightly is wrong only where it is added to this pointer.
    """
    term = advance.term
    if term.via is not None and _is_right_elsewhere(view, factor):
        return term.via
    inner = factor.spots[-1]
    word, _ = stride_of(inner.text, {word_of(name) for name in _parameters(view, inner)})
    if len(factor.spots) > 1 and word and word != word_of(advance.local) and inner.function == advance.spot.function:
        return inner
    return factor.spots[0]


def _is_right_elsewhere(view: View, factor: Factor) -> bool:
    return any(
        view.owns(other.base, factor.parameter)
        for other in view.record.advances
        if any(each.spots[0] == factor.spots[0] for each in other.term.factors)
    )


def _parameters(view: View, spot: SourceLine) -> Sequence[str]:
    if isinstance(view.function, CudaKernel):
        return ()
    return next((each.parameters for each in call_tree(view.function.jit) if each.name == spot.function), ())


def product_at(view: View, spot: SourceLine) -> str:
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


def _given(view: View, parameter: str) -> Given | None:
    site = view.launch.site
    return site.given(parameter.partition("[")[0], list(view.launch.arguments)) if site is not None else None


def host_name(view: View, base: str) -> str:
    """What the host calls the tensor of a pointer: a variable's name, else the tensor's."""
    given, held = _given(view, base), view.held(base)
    if given is not None and given.text.isidentifier():
        return given.text
    return held.name if held is not None else base


def _host_axis(view: View, base: str, held: Held, axis: int) -> int:
    """The number that an axis has in the view that the host passes."""
    strides = tuple(view.launch.arguments[base].stride()) if hasattr(view.launch.arguments[base], "stride") else ()
    return strides.index(held.strides[axis]) if held.strides[axis] in strides else axis


def _word_in(view: View, parameter: str) -> str:
    return stride_of(parameter, set(view.words.values()))[0]


def _either(meanings: Sequence[Stride]) -> str:
    return " or ".join(str(stride) for stride in meanings[:3])
