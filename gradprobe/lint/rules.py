"""Rules: a pointer is advanced by each of its own strides, and by those of no other tensor."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.intermediates import AXIS_WORDS
from ..source.kernel_file import KernelFile, by_parameter, calls_of
from ..source.parameter_names import stride_of
from ..source.text import SourceLine
from .catching import HostLaunch
from .finding import FOREIGN, MISSING, LintFinding, finding_at
from .pointers import Advance
from .view import KernelView, Stride, TensorViews


def findings_in(view: KernelView) -> Iterator[LintFinding]:
    """The wrong strides of a launched kernel."""
    told: set[tuple[str, int | None]] = set()
    for advance in view.record.advances:
        other = _other(view, advance)
        if other is not None:
            finding = _of_the_host(view, advance, other) or _of_the_kernel(view, advance, other)
            told.add((finding.tensor, finding.axis))
            yield finding
    for base in view.record.accesses:
        for axis in _missing(view, base):
            if (view.tensors[base].name, axis) not in told:
                yield _of_a_missing_one(view, base, axis)


# --- another tensor's stride


def _other(view: KernelView, advance: Advance) -> Stride | None:
    """The stride of another tensor that a pointer is advanced by; None where it is its own, or nobody knows."""
    held, parameter = view.tensors.get(advance.base), advance.term.stride
    if held is None or not parameter or view.strides[parameter] in held.own:
        return None
    # A row of elements that the target allocated may lie as any tensor does.
    is_row = len(held.shape) == 1 and not held.is_given
    return next(iter(view.meanings(parameter)), None) if not is_row else None


def _of_the_kernel(view: KernelView, advance: Advance, other: Stride) -> LintFinding:
    """The kernel takes another stride than that of its pointer."""
    held, spot = view.tensors[advance.base], _wrong_spot(view, advance)
    axis = held.axis_like(other)
    name, own = f"{held.name}.stride({axis})", view.parameters_of(held, axis)[:1] if axis is not None else []
    became = f"{own[0]} = {name} is passed" if own else f"{name} is never passed"
    became = became if axis is not None else f"{held.name} has no such axis"
    # An offset that is added here is more than the wrong stride.
    is_stride = bool(own) and spot == advance.term.trail[0]
    sentence = f"{held.name} is advanced by {spot.text}, which is {other}: {became}"
    return _foreign(view, spot, sentence, f"{spot.text} -> {own[0]}" if is_stride else "", held, axis, other)


def _wrong_spot(view: KernelView, advance: Advance) -> SourceLine:
    """The first name on the stride's way to the pointer that no pointer takes rightly on its own way."""
    right = {
        spot
        for each in view.record.advances
        if each.term.stride and each.base in view.tensors
        if view.strides[each.term.stride] in view.tensors[each.base].own
        for spot in each.term.trail
    }
    trail = advance.term.trail
    return next((spot for spot in trail if spot not in right), trail[0])


def _of_the_host(view: KernelView, advance: Advance, other: Stride) -> LintFinding | None:
    """The launch gave another tensor's stride for a parameter that is called this tensor's."""
    held, parameter, launch = view.tensors[advance.base], advance.term.stride, view.launch
    if view.named(parameter) != held.name or launch.spot is None:
        return None
    letter = stride_of(parameter, set(view.tensor_words))[1]
    axis = held.axis_like(replace(other, kind=letter) if letter else other)
    sentence = (
        f"parameter {parameter} of {view.name} is given {other} in the launch at {launch.spot.place}, "
        f"so {held.name} is read with {other.tensor}'s stride"
    )
    given = _given(view, launch)
    owner, passed = given.get(advance.base), given.get(parameter)
    name = owner.text if owner is not None and owner.text.isidentifier() else held.name
    if passed is not None and passed.text.endswith(".stride()"):  # all of them
        fix = f"in the launch: *{passed.text} -> *{name}.stride()"
        return _foreign(view, passed, sentence, fix, held, None, other)
    own = f"{name}.stride({axis})"
    fix = f"in the launch: {passed.text} -> {own}" if passed is not None else f"pass {own} for {parameter}"
    return _foreign(view, passed or launch.spot, sentence, fix if axis is not None else "", held, axis, other)


def _given(view: KernelView, launch: HostLaunch) -> dict[str, SourceLine]:
    """What stands in the host's launch for each parameter, as far as its text tells."""
    spot = launch.spot
    if spot is None or not spot.file.endswith(".py"):
        return {}
    file, names = KernelFile(spot.file, Path(spot.file).read_text()), list(view.function.parameters)
    found: dict[str, SourceLine] = {}
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
    kind = held.kinds[axis] if axis is not None and held.kinds else ""
    told: dict[str, Any] = {"other": other.tensor, "axis": axis, "kind": kind, "note": str(other)}
    return finding_at(spot, FOREIGN, view.name, sentence, fix, held.name, **told)


# --- a stride of its own that is left out


def _missing(view: KernelView, base: str) -> Iterator[int]:
    """The axes along which no pointer of a tensor moves although the stride is there."""
    held, record = view.tensors.get(base), view.record
    if held is None or base in record.lost:
        return
    terms = [advance.term for advance in record.advances if advance.base == base]
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
    trails = [advance.term for advance in view.record.advances if advance.base != base]
    spots = {term.trail[0] for term in trails if term.stride == parameter}
    nodes = (node for statement in view.function.tree.body for node in ast.walk(statement))
    read = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return read[parameter.partition("[")[0]] > len(spots)


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
    held, terms = view.tensors[base], [each.term for each in view.record.advances if each.base == base]
    pairs = [(view.strides[term.stride], term.index) for term in terms if term.stride]
    return {(held.strides.index(number), index) for number, index in pairs if number in held.strides and index}


def _of_a_missing_one(view: KernelView, base: str, axis: int) -> LintFinding:
    held = view.tensors[base]
    own, kind, name = view.parameters_of(held, axis)[0], held.kinds[axis] if held.kinds else "", held.name
    word = AXIS_WORDS.get(kind, f"index of axis {axis}")
    sentence = (
        f"{own} of {view.name} is {name}.stride({axis}) and is never used for {name}: "
        f"every {word} uses {name} of {word} 0"
    )
    # The pointer's name where it is first advanced in the kernel itself, else where it is first used.
    advances = [each.spot for each in view.record.advances if each.base == base and each.spot.function == view.name]
    spot = next(iter(advances), view.record.accesses[base])
    if (column := spot.code.find(base)) >= 0:
        spot = replace(spot, column=column, length=len(base))
    told: dict[str, Any] = {"axis": axis, "kind": kind, "note": f"no {name}.stride({axis})"}
    return finding_at(spot, MISSING, view.name, sentence, f"add the {word} times {own} to {base}", name, **told)
