"""Rules: a pointer is advanced by each of its own strides, and by those of no other tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..model.intermediates import AXIS_WORDS
from ..source.kernel_file import by_parameter, calls_of, inside
from ..source.pointers import Term
from ..source.text import SourceLine, python_file
from .finding import FOREIGN, MISSING, LintFinding, finding_at
from .view import KernelView, Stride, TensorViews


def findings_in(view: KernelView) -> Iterator[LintFinding]:
    """The wrong strides of a launched kernel."""
    told: set[tuple[str, int | None]] = set()
    for term in view.record.advances:
        other = _other(view, term)
        if other is not None:
            finding = _of_the_host(view, term, other) or _of_the_kernel(view, term, other)
            told.add((finding.tensor, finding.axis))
            yield finding
    for base in dict.fromkeys(access.base for access in view.record.accesses):
        for axis in _missing(view, base):
            if (view.tensors[base].name, axis) not in told:
                yield _of_a_missing_one(view, base, axis)


# --- another tensor's stride


def _other(view: KernelView, term: Term) -> Stride | None:
    """The stride of another tensor that a pointer is advanced by; None where it is its own, or nobody knows."""
    held = view.tensors.get(term.base)
    if held is None or not term.stride or view.strides[term.stride] in held.own:
        return None
    # A row of elements that the target allocated may lie as any tensor does.
    is_row = len(held.shape) == 1 and not held.is_given
    return next(iter(view.meanings(term.stride)), None) if not is_row else None


def _of_the_kernel(view: KernelView, term: Term, other: Stride) -> LintFinding:
    """The kernel takes another stride than that of its pointer."""
    held, spot = view.tensors[term.base], _wrong_spot(view, term)
    axis = held.axis_like(other.tensor.kind(other.axis), other.axis)
    own = view.parameters_of(held, axis)[:1] if axis is not None else []
    stride = f"{held.name}.stride({axis})"
    if axis is None:
        instead = f"{held.name} has no such axis"
    else:
        instead = f"{own[0]} = {stride} is passed" if own else f"{stride} is never passed"
    # An offset that is added here is more than the wrong stride.
    fix = f"{spot.text} -> {own[0]}" if own and spot == term.trail[0] else ""
    sentence = f"{held.name} is advanced by {spot.text}, which is {other}: {instead}"
    return _foreign(view, spot, sentence, fix, held, axis, other)


def _wrong_spot(view: KernelView, term: Term) -> SourceLine:
    """The first name on the stride's way to the pointer that no pointer takes rightly on its own way."""
    right = set[SourceLine]()
    for each in view.record.advances:
        held = view.tensors.get(each.base)
        if held is not None and each.stride and view.strides[each.stride] in held.own:
            right.update(each.trail)
    return next((spot for spot in term.trail if spot not in right), term.trail[0])


def _of_the_host(view: KernelView, term: Term, other: Stride) -> LintFinding | None:
    """The launch gave another tensor's stride for a parameter that is called this tensor's."""
    held, parameter, spot = view.tensors[term.base], term.stride, view.launch.spot
    if view.named(parameter) != held.name or spot is None:
        return None
    sentence = (
        f"parameter {parameter} of {view.name} is given {other} in the launch at {spot.place}, "
        f"so {held.name} is read with {other.tensor.name}'s stride"
    )
    axis = held.axis_like(view.said(parameter)[1] or other.tensor.kind(other.axis), other.axis)
    given = _given(view, spot)
    owner, passed = given.get(term.base), given.get(parameter)
    name = owner.text if owner is not None and owner.text.isidentifier() else held.name
    own = f"{name}.stride({axis})"
    if passed is None:
        fix = f"pass {own} for {parameter}"
    elif passed.text.endswith(".stride()"):  # all of them
        return _foreign(view, passed, sentence, f"in the launch: *{passed.text} -> *{name}.stride()", held, None, other)
    else:
        fix = f"in the launch: {passed.text} -> {own}"
    return _foreign(view, passed or spot, sentence, fix if axis is not None else "", held, axis, other)


def _given(view: KernelView, spot: SourceLine) -> dict[str, SourceLine]:
    """What stands in the host's launch for each parameter, as far as its text tells."""
    file, names, found = python_file(spot.file), list(view.function.parameters), dict[str, SourceLine]()
    for call in calls_of(file, view.name):
        if call.lineno <= spot.line <= (call.end_lineno or 0):
            for name, node in by_parameter(call, names):
                at = file.line_of(node, spot.function)
                # `*q.stride()` stands for the strides behind the first one too.
                following = names[names.index(name) :] if at.text.endswith(".stride()") else [name]
                found |= {each: at for each in following if view.named(each) == view.named(name)}
    return found


def _foreign(
    view: KernelView, spot: SourceLine, sentence: str, fix: str, held: TensorViews, axis: int | None, other: Stride
) -> LintFinding:
    found = finding_at(spot, FOREIGN, view.name, sentence, fix, held.name)
    return replace(found, other=other.tensor.name, axis=axis, kind=held.kind(axis), note=str(other))


# --- a stride of its own that is left out


def _missing(view: KernelView, base: str) -> Iterator[int]:
    """The axes along which no pointer of a tensor moves although the stride is there."""
    held = view.tensors.get(base)
    if held is None or base in view.record.lost:
        return
    terms = [term for term in view.record.advances if term.base == base]
    used = {view.strides[term.stride] for term in terms if term.stride}
    passed = {axis: view.parameters_of(held, axis) for axis in range(len(held.shape))}
    # What is added without a stride may stand for an axis whose stride is taken for granted.
    loose = {term.index for term in terms if term.index and not term.stride}
    if len(loose) > sum(held.shape[axis] > 1 and not names for axis, names in passed.items()):
        return
    for axis, names in passed.items():
        if not names or held.strides[axis] < 2 or held.strides[axis] in used or not view.meanings(names[0]):
            continue
        if any(_is_read_elsewhere(view, base, name) for name in names):
            continue
        if held.is_given or _is_walked_apart(view, base, axis):
            yield axis


def _is_read_elsewhere(view: KernelView, base: str, parameter: str) -> bool:
    """Whether the kernel reads a stride elsewhere than in pointers of other tensors: it may be used for this one."""
    others = [term for term in view.record.advances if term.base != base]
    spots = {term.trail[0] for term in others if term.stride == parameter}
    read = [name for name in inside(view.function.tree, ast.Name) if name.id == parameter]
    return len(read) > len(spots)


def _is_walked_apart(view: KernelView, base: str, axis: int) -> bool:
    """Whether no other axis of a tensor can stand for this one too, as b * n_heads + h does where it is contiguous.

    What runs along its next axis must run along one of a tensor that was given, and is advanced along all outer ones.
    """
    inner = {index for at, index in _walked(view, base) if at == axis + 1}
    for other, held in view.tensors.items():
        walked = _walked(view, other)
        outer = {at for at, _ in walked}
        if other != base and held.is_given and any(index in inner and outer >= {*range(at)} for at, index in walked):
            return True
    return False


def _walked(view: KernelView, base: str) -> set[tuple[int, frozenset[str]]]:
    """(axis, the variables that it is walked by) of a tensor."""
    strides, found = view.tensors[base].strides, set[tuple[int, frozenset[str]]]()
    for term in view.record.advances:
        number = view.strides.get(term.stride)
        if term.base == base and term.index and number is not None and number in strides:
            found.add((strides.index(number), term.index))
    return found


def _of_a_missing_one(view: KernelView, base: str, axis: int) -> LintFinding:
    held = view.tensors[base]
    own, kind, name = view.parameters_of(held, axis)[0], held.kind(axis), held.name
    word = AXIS_WORDS.get(kind, f"index of axis {axis}")
    sentence = (
        f"{own} of {view.name} is {name}.stride({axis}) and is never used for {name}: "
        f"every {word} uses {name} of {word} 0"
    )
    # The pointer's name where it is first advanced in the kernel itself, else where it is first used.
    spots = [term.spot for term in view.record.advances if term.base == base and term.spot]
    spots = [spot for spot in spots if spot.function == view.name]
    spot = [*spots, *(access.spot for access in view.record.accesses if access.base == base)][0]
    if (column := spot.code.find(base)) >= 0:
        spot = replace(spot, column=column, length=len(base))
    found = finding_at(spot, MISSING, view.name, sentence, f"add the {word} times {own} to {base}", name)
    return replace(found, axis=axis, kind=kind, note=f"no {name}.stride({axis})")
