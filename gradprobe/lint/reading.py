"""Lint: which tensor each pointer of a kernel is, whose stride each number may be, and pointers that advance wrongly.

The rule: a pointer is advanced by the strides of its own tensor, and by those of no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..frontends.triton.launches import constants_of, storage_of
from ..model.case import Case
from ..model.intermediates import KINDS
from ..model.report import Where
from ..source.kernel_file import by_parameter, calls_of
from ..source.parameter_names import is_stride, stride_of, tensor_of, word_of
from ..source.pointers import Advance, Quantity, Record, pointer, read_kernel, stride
from ..source.text import SourceLine, python_file
from ..source.triton_source import Function, functions_of
from ..targets.find import Target
from .catching import Caught, HostLaunch, catch, tensor_in

if TYPE_CHECKING:
    from torch import Tensor

FOREIGN = "foreign"
# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2


@dataclass(frozen=True, eq=False)
class TensorViews:
    """One tensor, whatever views of it there are."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kinds: str
    """What its axes are, each one letter of the table of intermediates; "" where that is not known."""
    is_given: bool
    """Whether the target was given it, and did not allocate it."""
    own: set[int] = field(default_factory=set)
    """Every stride of it and of any view of it."""

    def kind(self, axis: int | None) -> str:
        return self.kinds[axis] if self.kinds and axis is not None else ""

    def axis_like(self, kind: str, number: int) -> int | None:
        """The axis of a kind, or of its family; where kinds are not known that of the same number."""
        if not self.kinds or not kind:
            return number if number < len(self.shape) else None
        alike = [axis for axis, own in enumerate(self.kinds) if KINDS.get(own, own) == KINDS.get(kind, kind)]
        return self.kinds.find(kind) if kind in self.kinds else next(iter(alike), None)


@dataclass(frozen=True)
class HeldStride:
    """One stride of one tensor."""

    tensor: TensorViews
    axis: int

    def __str__(self) -> str:
        return f"{self.tensor.name}.stride({self.axis})"


@dataclass(frozen=True, eq=False)
class KernelView:
    """One kernel, as it is in one launch, or as the names of its parameters say."""

    function: Function
    tensors: Mapping[str, TensorViews]
    """By the parameters of pointers."""
    strides: Mapping[str, int]
    """The numbers of the parameters that may be strides."""
    memory: Collection[TensorViews]
    """All tensors that its strides may be of."""
    given: Set[int]
    """The strides that only one tensor can have."""
    record: Record
    """What its pointers do. What the constants of the launch rule out is not followed."""
    launch: HostLaunch | None
    """None where it was never launched."""

    @cached_property
    def names(self) -> dict[str, str]:
        """The tensors by what parameters call them."""
        found = {held.name: held.name for held in self.tensors.values()}
        return found | {word_of(name): held.name for name, held in self.tensors.items()}

    def meanings(self, parameter: str) -> list[HeldStride]:
        """The strides that a parameter is: those of which its name speaks, else those that alone have its number."""
        number, named, found = self.strides[parameter], self.named(parameter), list[HeldStride]()
        for held in self.memory:
            for axis, size in enumerate(held.shape):
                if size > 1 and held.strides[axis] == number > 0:
                    found.append(HeldStride(held, axis))
        return [each for each in found if each.tensor.name == named] or (found if number in self.given else [])

    def said(self, parameter: str) -> tuple[str, str]:
        """The word of a tensor, and the axis, of which a parameter's name speaks."""
        return stride_of(parameter, self.names)

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        return self.names.get(self.said(parameter)[0], "")

    def parameter_of(self, held: TensorViews, axis: int) -> str:
        """The parameter that is a tensor's own stride along an axis, rather one that is called so; "" where none is."""
        own = [name for name, number in self.strides.items() if number == held.strides[axis] and held.shape[axis] > 1]
        named = [name for name in own if self.named(name) == held.name]
        return next(iter(named + [name for name in own if not self.named(name)]), "")


def views_of(call: Caught | None) -> Iterator[KernelView]:
    """The Triton kernels that were launched in a call, as they are in each launch."""
    if call is None:
        return
    memory = {storage_of(tensor): _views_of(call, name, tensor, True) for name, tensor in call.inputs.items()}
    for launch in call.launches:
        for parameter, value in launch.arguments.items():
            if (tensor := tensor_in(value)) is not None:
                address = storage_of(tensor)
                if address not in memory:
                    name = (call.storages or {}).get(address, "").lower() or word_of(parameter)
                    memory[address] = _views_of(call, name, tensor, False)
                memory[address].own.update(tensor.stride())
    for launch in call.launches:
        if launch.function is not None:
            yield _launched(launch.function, launch, memory, call.given)


def _views_of(caught: Caught, name: str, tensor: Tensor, is_given: bool) -> TensorViews:
    case, shape, strides = caught.case, tuple(tensor.shape), tuple(tensor.stride())
    kinds = case.input_axes(name) or (case.axes(name) if case.exists(name) else "")
    # What a target allocates may have its axes in another order than its name says.
    is_certain = shape == tuple(map(case.size, kinds)) and (is_given or len(set(shape)) == len(shape))
    return TensorViews(name, shape, strides, kinds if is_certain else "", is_given, set(strides))


def _launched(function: Function, launch: HostLaunch, memory: Mapping[int, TensorViews], given: Set[int]) -> KernelView:
    tensors, strides, lost = dict[str, TensorViews](), dict[str, int](), set[str]()
    values, constants = dict[str, Quantity](), constants_of(function.plain)
    for name, value in launch.arguments.items():
        if (tensor := tensor_in(value)) is not None:
            tensors[name], values[name] = memory[storage_of(tensor)], pointer(name)
        elif type(value) is int and (value in given or (is_stride(name) and not name.isupper())):
            strides[name], values[name] = value, stride(name)
        elif name in constants or isinstance(value, (bool, str, type(None))):
            values[name] = Quantity(constant=value)
        elif isinstance(value, (tuple, list)) and not given.isdisjoint(value):
            lost.add(name)  # a tuple of strides is not followed into pointers
    record = read_kernel(function, values)
    record.lost |= lost
    return KernelView(function, tensors, strides, list(memory.values()), given, record, launch)


def view_by_name(function: Function) -> KernelView:
    """A kernel that was never launched: each stride is of the tensor that it is called after, and of no other."""
    # What is called a pointer is one, also where nobody knows of which tensor.
    pointers = {word_of(name): name for name in function.parameters if tensor_of(name) or "ptr" in name.lower()}
    values = {name: pointer(name) for name in pointers.values()}
    strides, axes = dict[str, int](), {word: dict[int, str]() for word in pointers}
    for number, name in enumerate(function.parameters, 1):
        if is_stride(name):
            strides[name], values[name] = number, stride(name)
            word, axis = stride_of(name, pointers)
            axes.get(word, {})[number] = axis or "?"
    tensors = dict[str, TensorViews]()
    for word, name in pointers.items():
        own, kinds = tuple(axes[word]), "".join(axes[word].values())
        tensors[name] = TensorViews(tensor_of(name) or word, (2,) * len(own), own, kinds, True, set(own))
    return KernelView(
        function, tensors, strides, list(tensors.values()), frozenset(), read_kernel(function, values), None
    )


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
    where = _where(at, view.function.name, f"of {owner}" if by_name else str(other), instead)
    return LintFinding(where, sentence, fix, held.name, owner, None if by_name else axis, kind, by_name)


@dataclass
class ReadKernel:
    """A kernel that was read."""

    name: str
    file: str
    line: int
    launched: bool
    """Whether its arguments were caught; if not, its parameters are taken for what they are called."""
    accesses: int
    """How many loads, stores and atomics were read in it."""
    lost: list[str]
    """The parameters of pointers that could not be followed everywhere."""


@dataclass(frozen=True)
class KernelReading:
    """What came of reading some kernels."""

    findings: tuple[LintFinding, ...]
    kernels: tuple[ReadKernel, ...]


def caught_views(target: Target, case: Case) -> list[KernelView]:
    """The kernels that a target launches; none where nothing can be caught.

    Kernels are not run, and no value counts: only the case's options and dtype do.
    """
    return list(views_of(catch(target, case)))


def left_out(views: Iterable[KernelView], tensor: str, axes: Collection[str]) -> Iterator[Where]:
    """Where each kernel first advances its pointer of a tensor, if it never does so by the stride of one of some axes.

    That may be right: it is for who knows that a term of the index is missing.
    """
    for view in views:
        for base, held in view.tensors.items():
            advances = [each for each in view.record.advances if each.base == base]
            used = {view.strides[each.stride] for each in advances}
            long = zip(held.kinds, held.shape, held.strides, strict=False)
            is_lacking = any(kind in axes and size > 1 and step not in used for kind, size, step in long)
            spots = [each.trail[0] for each in advances]
            spots += [access.spot for access in view.record.accesses if access.base == base]
            if held.name == tensor and is_lacking and spots and base not in view.record.lost:
                yield _where(spots[0], view.function.name, "its address")


def _where(at: SourceLine, kernel: str, note: str, instead: str = "") -> Where:
    return Where(at.file, at.line, at.code, at.column, at.length, kernel, note, instead=instead)


def read_views(views: Sequence[KernelView], scopes: Iterable[tuple[dict[str, object], str]] = ()) -> KernelReading:
    """What is found of launched kernels, and of those beside them.

    Args:
        scopes: modules to look in for kernels that were not launched: what their names mean, and their files.
    """
    launched = {view.function.name for view in views}
    beside = list[KernelView]()
    for scope, file in scopes:
        functions = functions_of(scope, file)
        called = [jit.fn for function in functions for _, jit in function.calls]
        alone = [each for each in functions if each.name not in launched and each.plain not in called]
        beside += [view for view in map(view_by_name, alone) if view.record.accesses]
    kernels, found = dict[tuple[str, int], ReadKernel](), dict[tuple[object, ...], LintFinding]()
    for view in (*views, *beside):
        of, record = view.function, view.record
        before = kernels.setdefault((of.file, of.line), ReadKernel(of.name, of.file, of.line, bool(view.launch), 0, []))
        before.accesses = max(before.accesses, len(record.accesses))
        before.lost = sorted({*before.lost, *record.lost})
        for one in findings_in(view):
            found.setdefault((*_place(one.where), one.tensor), one)
    ordered = sorted(found.values(), key=lambda one: (one.by_name, *_place(one.where)))
    return KernelReading(tuple(ordered), tuple(kernels.values()))


def _place(where: Where) -> tuple[str, int, int]:
    return where.file, where.line, where.column or 0
