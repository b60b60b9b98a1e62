"""The rule of lint: a pointer is advanced by the strides of its own tensor, and by those of no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..model.report import Where
from ..source.kernel_file import by_parameter, called, calls_of, parameters
from ..source.parameter_names import stride_of, tensor_of, word_of, words_of
from ..source.pointers import Advance
from ..source.text import SourceLine, python_file
from .view import HeldStride, KernelView, TensorViews

FOREIGN = "foreign"
# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2


@dataclass(frozen=True)
class LintFinding:
    """One wrong stride."""

    where: Where
    """The wrong name, and what belongs in its place."""
    sentence: str
    fix: str
    """The edit, in words."""
    tensor: str
    """The tensor that is misread, as arguments are called: "do"."""
    other: str = ""
    """Whose stride is used in place of its own."""
    axis: int | None = None
    """Of `tensor`, from 0; None where it is not known."""
    kind: str = ""
    """What that axis is, one letter of the table of intermediates; "" where it is not known."""
    by_name: bool = False
    """Whether the kernel was never launched, and its parameters are taken for what their names say."""


def findings_in(view: KernelView) -> Iterator[LintFinding]:
    """The wrong strides of a kernel."""
    wrong = [(advance, other) for advance in view.record.advances if (other := _other(view, advance)) is not None]
    for advance, other in wrong:
        if view.launch is not None:
            yield _of_the_host(view, advance, other) or _of_the_kernel(view, advance, other)
        elif _is_named_wrongly(view, advance):
            users = {each.base for each, its in wrong if its.tensor is other.tensor}
            if len(users) < _A_WAY:
                yield _of_the_kernel(view, advance, other)


def _other(view: KernelView, advance: Advance) -> HeldStride | None:
    """The stride of another tensor that a pointer is advanced by; None where it is its own, or nobody knows."""
    held = view.tensors.get(advance.base)
    if held is None or view.strides[advance.stride] in held.own:
        return None
    # A row of elements that the target allocated may lie as any tensor does.
    is_row = len(held.shape) == 1 and not held.is_given
    return next(iter(view.meanings(advance.stride)), None) if not is_row else None


def _is_named_wrongly(view: KernelView, advance: Advance) -> bool:
    """Whether names tell enough of a pointer: it has strides of its own, and walks by some of them.

    "stride_dq" of a pointer D may be its own along q; what is read under two names may be meant for another.
    """
    own = view.tensors[advance.base].own
    walks = any(view.strides[each.stride] in own for each in view.record.advances if each.base == advance.base)
    is_its = view.said(advance.stride)[0].startswith(word_of(advance.base))
    return walks and not is_its and len(advance.trail) == 1


def _of_the_kernel(view: KernelView, advance: Advance, other: HeldStride) -> LintFinding:
    """The kernel takes another stride than that of its pointer."""
    held, spot = view.tensors[advance.base], _wrong_spot(view, advance)
    axis = held.axis_like(other.tensor.kind(other.axis), other.axis)
    own = view.parameter_of(held, axis) if axis is not None else ""
    stride = f"{held.name}.stride({axis})"
    if view.launch is None:
        due = f"the kernel takes {own} too" if own else f"the kernel takes no such stride of {held.name}"
        said = f"by its name a stride of {other.tensor.name}: {due} (it was not launched)"
    elif axis is None:
        said = f"which is {other}: {held.name} has no such axis"
    else:
        said = f"which is {other}: " + (f"{own} = {stride} is passed" if own else f"{stride} is never passed")
    # An offset that is added here is more than the wrong stride.
    instead = own if spot == advance.trail[0] else ""
    fix = f"{spot.text} -> {own}" if instead else ""
    sentence = f"{held.name} is advanced by {spot.text}, {said}"
    return _finding(view, spot, sentence, fix, instead, held, axis, other)


def _wrong_spot(view: KernelView, advance: Advance) -> SourceLine:
    """The first name on the stride's way to the pointer that no pointer takes rightly on its own way."""
    right = set[SourceLine]()
    for each in view.record.advances:
        held = view.tensors.get(each.base)
        if held is not None and view.strides[each.stride] in held.own:
            right.update(each.trail)
    return next((spot for spot in advance.trail if spot not in right), advance.trail[0])


def _of_the_host(view: KernelView, advance: Advance, other: HeldStride) -> LintFinding | None:
    """The launch gave another tensor's stride for a parameter that is called this tensor's."""
    held, parameter = view.tensors[advance.base], advance.stride
    launch = view.launch.spot if view.launch is not None else None
    if view.named(parameter) != held.name or launch is None:
        return None
    axis = held.axis_like(view.said(parameter)[1] or other.tensor.kind(other.axis), other.axis)
    given = _given(view, launch)
    owner, passed = given.get(advance.base), given.get(parameter)
    name = owner.text if owner is not None and owner.text.isidentifier() else held.name
    star, instead = "", f"{name}.stride({axis})" if axis is not None else ""
    if passed is not None and passed.text.endswith(".stride()"):  # all of them
        axis, star, instead = None, "*", f"{name}.stride()"
    fix = f"in the launch: {star}{passed.text} -> {star}{instead}" if passed else f"pass {instead} for {parameter}"
    sentence = (
        f"parameter {parameter} of {view.function.name} is given {other} in the launch at {launch.place}, "
        f"so {held.name} is read with {other.tensor.name}'s stride"
    )
    fix, instead = fix if instead else "", instead if passed else ""
    return _finding(view, passed or launch, sentence, fix, instead, held, axis, other)


def _given(view: KernelView, launch: SourceLine) -> dict[str, SourceLine]:
    """What stands in the host's launch for each parameter, as far as its text tells."""
    file, names, found = python_file(launch.file), list(view.function.parameters), dict[str, SourceLine]()
    for call in calls_of(file, view.function.name):
        if call.lineno <= launch.line <= (call.end_lineno or 0):
            for name, node in by_parameter(call, names):
                at = file.line_of(node, "")
                # `*q.stride()` stands for the strides behind the first one too.
                following = names[names.index(name) :] if at.text.endswith(".stride()") else [name]
                found |= {each: at for each in following if view.named(each) == view.named(name)}
    return found


def _finding(
    view: KernelView, at: SourceLine, sentence: str, fix: str, instead: str, held: TensorViews, axis: int | None,
    other: HeldStride,
) -> LintFinding:  # fmt: skip
    by_name, kind, owner = view.launch is None, held.kind(axis), other.tensor.name
    where = Where(
        at.file, at.line, at.code, at.column, at.length, view.function.name,
        note=f"of {owner}" if by_name else str(other), instead=instead,
    )  # fmt: skip
    return LintFinding(where, sentence, fix, held.name, owner, None if by_name else axis, kind, by_name)


def passed_of_others(path: str, kernel: str, tensor: str) -> Iterator[int]:
    """The lines at which launches of a kernel pass `q.stride(1)` for a parameter that is called a stride of `tensor`.

    Or `k.stride(1)` where another variable is passed for the tensor itself, as one that holds k times the scale. By
    names alone, so that it says nothing of tensors whose names mean none by custom; only of launches in its file.
    """
    file, words = python_file(path), words_of(tensor)
    names = next((parameters(each) for each in file.functions if each.name == kernel), [])
    for call in calls_of(file, kernel):
        given = list(by_parameter(call, names))
        itself = [value.id for name, value in given if isinstance(value, ast.Name) and word_of(name) in words]
        for name, argument in given:
            owners = _owners(argument)
            is_own = bool(words & set(map(word_of, owners)))
            is_called_so = bool(stride_of(name, words)[0]) and any(map(tensor_of, owners))
            if (is_own and itself and itself[0] not in owners) or (is_called_so and not is_own):
                yield argument.lineno


def _owners(argument: ast.expr) -> set[str]:
    """The variables whose strides an expression takes."""
    found = set[str]()
    for node in ast.walk(argument):
        if called(node) == "stride" and isinstance(owner := node.func.value, ast.Name):  # type: ignore[attr-defined]
            found.add(owner.id)
    return found
