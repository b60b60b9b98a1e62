"""What a target allocates, and inputs that it changes."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..frontends import replaced
from ..inputs.guard_bands import Breach, Guards, guarded, mapped, same_bits
from ..inputs.memory import UnwrittenElements, home_of
from ..inputs.tensor_layouts import VECTOR, Inputs, write
from ..model.assignment import OUTPUTS, spanned
from ..model.case import Case
from ..model.intermediates import slots, title
from ..model.memory_finding import CHANGED, SHARED, MemoryFinding
from ..processes.ended import is_users
from ..source.syntax import SourceLine
from ..targets.find import Target

if TYPE_CHECKING:
    from torch import Tensor


# Elements of guard band on either side; a multiple of 128 keeps the alignment of an allocation.
BAND = 1024
# Bytes from which an allocation is left as it is.
LARGEST = 1 << 28


@dataclass
class Allocations:
    """While entered, a target's new floating-point tensors lie in guard bands."""

    fill: str
    unwritten: float
    register: UnwrittenElements = field(default_factory=UnwrittenElements)
    copies: bool = False
    spread: AllocationSpread | None = None
    # Each tensor, the line that asked for it, and its bands.
    made: list[tuple[Tensor, SourceLine, Guards]] = field(default_factory=list)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Allocations:
        mode = factory_mode(self._allocated, self.register.written, copies=self.copies)
        self._open.enter_context(mode)
        if self.spread:
            self._open.enter_context(self.spread.asked_for())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def breaches(self, names: Mapping[int, str]) -> list[Breach]:
        found = list[Breach]()
        for tensor, at, guards in self.made:
            for breach in guards.breaches():
                there = f"the tensor allocated at {at.place if at.file else ''}"
                found.append(replace(breach, tensor=names.get(home_of(tensor), there)))
        return found

    def _allocated(self, tensor: Tensor, has_values: bool) -> Tensor:
        if not _is_plain(tensor):
            return tensor
        at, held = calling_line(), tensor.untyped_storage().nbytes() // tensor.element_size()
        strides = self.spread.strides(at.place, tensor) if self.spread else tensor.stride()
        size = 2 * BAND + max(held, spanned(tensor.shape, strides))
        storage = guarded(size, tensor.dtype, tensor.device, self.fill, reserve=0)
        inside = storage.as_strided(tensor.shape, strides, BAND)
        inside.copy_(tensor) if has_values else inside.fill_(self.unwritten)
        if self.spread:
            self.spread.made[home_of(inside)] = at.place, inside
        self.made.append((inside, at, Guards({"": inside}, self.fill)))
        if not has_values:
            self.register.allocated(inside, (at.file, at.line))
        return inside


class AllocationSpread:
    """Lays those axes apart whose strides a target asked for in the run before: an edit that takes the stride of
    another buffer does not pass for right because both are dense."""

    def __init__(self) -> None:
        self.axes: dict[str, set[int] | None] = {}
        """By place of an allocation, those asked for; None where they were asked of a view of it."""
        self.made: dict[int, tuple[str, Tensor]] = {}
        self._is_laid = False

    def lay(self) -> bool:
        """Whether there is anything to be laid apart."""
        self._is_laid = True
        self.made.clear()
        return any(self.axes.values())

    def strides(self, place: str, tensor: Tensor) -> tuple[int, ...]:
        axes = self.axes.get(place) if self._is_laid else None
        if not axes or not tensor.is_contiguous():
            return tensor.stride()
        # What one line makes is laid alike: wrappers give a kernel the strides of one for all of them.
        gap, span, strides = VECTOR * (list(self.axes).index(place) + 1), 1, list[int]()
        for axis, size in reversed([*enumerate(tensor.shape)]):
            is_padded = axis in axes and axis < tensor.dim() - 1
            strides.insert(0, span + (gap if is_padded else 0))
            span = strides[0] * max(size, 1)
        return tuple(strides)

    @contextlib.contextmanager
    def asked_for(self) -> Iterator[None]:
        import torch

        plain = torch.Tensor.stride

        def stride(tensor: Tensor, *axis: Any, **named: Any) -> Any:
            if not self._is_laid and is_users(sys._getframe(1).f_code.co_filename):
                self._note(tensor, *axis, *named.values())
            return plain(tensor, *axis, **named)

        with replaced(torch.Tensor, "stride", stride):
            yield

    def _note(self, tensor: Tensor, *axis: int) -> None:
        place, made = self.made.get(home_of(tensor), ("", tensor))
        axes, rank = self.axes.get(place, set()), tensor.dim()
        if tensor.shape != made.shape:
            self.axes[place] = None
        elif place and axes is not None:
            axes.update(at % rank for at in axis or range(rank) if -rank <= at < rank)
            self.axes[place] = axes


def _is_plain(tensor: Tensor) -> bool:
    import torch

    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return False
    is_whole = not tensor.storage_offset() and tensor.device.type in ("cpu", "cuda")
    is_small = 0 < tensor.untyped_storage().nbytes() < LARGEST
    return is_whole and is_small and tensor.is_floating_point()


def calling_line() -> SourceLine:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
    return SourceLine(file, line, linecache.getline(file, line).strip())


def factory_mode(
    made: Callable[[Tensor, bool], Tensor], wrote: Callable[[Tensor], None], *, copies: bool
) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    without = {aten.empty_strided, aten.new_empty_strided}
    having = {aten.clone, aten._to_copy} if copies else set()
    for kind in ("empty", "zeros", "ones", "full"):
        made_by = without if kind == "empty" else having
        made_by |= {getattr(aten, name) for name in (kind, f"{kind}_like", f"new_{kind}")}

    class Mode(TorchDispatchMode):
        # Without these torch refuses flex_attention and its like, which go through torch.compile even uncompiled.
        # It must not trace what follows; where nobody compiles, hiding that would import all of it.
        supports_higher_order_operators = True
        ignore_compile_internals = classmethod(lambda cls: True)
        _should_skip_dynamo = classmethod(lambda cls: "torch._dynamo" in sys.modules)

        def __torch_dispatch__(
            self, func: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            packet = getattr(func, "overloadpacket", None)
            if packet in without or packet in having:
                return made(result, packet in having)
            if torch.Tag.inplace_view not in getattr(func, "tags", ()):
                for tensor in _written(func, args, kwargs or {}):
                    wrote(tensor)
            return result

    return Mode()


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    import torch

    # Higher-order operators lack one: they write into none of theirs.
    schema = getattr(func, "_schema", None)
    for at, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            values = value if isinstance(value, (list, tuple)) else (value,)
            yield from (tensor for tensor in values if isinstance(tensor, torch.Tensor))


# --- inputs that are changed

# The kernel that changed an input first, "" where Python did; and its line.
Writer = tuple[str, SourceLine | None]


class InputsBefore:
    def __init__(self, inputs: Inputs, allowed: Collection[str]) -> None:
        # A backward may write into its results, and into delta, which no other step of a program reads.
        own = {*OUTPUTS, "delta", *allowed}
        self._given = dict(inputs.tensors)
        for name in own:
            self._given.pop(name, None)
        # The same memory, since a target may turn its tensor in place.
        self._memory = {name: tensor.detach() for name, tensor in self._given.items()}
        self._values = inputs.values
        self.writers: dict[str, Writer] = {}

    def changes(self, axes: Callable[[str], str]) -> list[MemoryFinding]:
        """In any bit. `axes`: of an input; "" where it has none."""
        found = list[MemoryFinding]()
        for name, now in self._memory.items():
            differ = self._differing(name)
            if bool(differ.any()):  # a sum would take eight bytes an element
                found.append(_overwritten(name, differ, self._values[name], now, axes(name)))
            before, after = _view(now), _view(self._given[name])
            if before != after:
                words = f"{name}, an input, is another view after the run: {after}, not {before}"
                found.append(MemoryFinding(CHANGED, name, words, access="store"))
        return found

    def restore(self) -> None:
        for name, tensor in self._memory.items():
            write(tensor, self._values[name])
            self._given[name].data = tensor

    def operations(self) -> Any:
        def wrote(tensor: Tensor) -> None:
            at = calling_line()
            self.note("", at if at.file else None, home_of(tensor))

        return factory_mode(lambda tensor, has_values: tensor, wrote, copies=False)

    def note(self, kernel: str, line: SourceLine | None = None, home: int | None = None) -> None:
        for name, tensor in self._memory.items():
            if home in (None, home_of(tensor)) and bool(self._differing(name).any()):
                self.writers.setdefault(name, (kernel, line))

    def _differing(self, name: str) -> Tensor:
        return ~same_bits(self._memory[name], self._values[name])


def _view(tensor: Tensor) -> str:
    return f"shape {list(tensor.shape)} with strides {list(tensor.stride())}"


def _overwritten(
    name: str, differ: Tensor, before: Tensor, now: Tensor, axes: str
) -> MemoryFinding:
    index, count = tuple(differ.nonzero()[0].tolist()), int(differ.sum())
    was, became = _number(before[index]), _number(now[index])
    padded = (index if axes[:1] in ("b", "1") else (0, *index)) + (0,) * 4
    letters = slots(axes) if axes else ("",) * 4
    place = tuple(at if letter else None for at, letter in zip(padded, letters, strict=False))
    words = f"{name}, an input, is overwritten: {name}{list(index)} was {was} and is {became}; "
    words += f"{count:,} of {now.numel():,} elements differ"
    found = MemoryFinding(CHANGED, name, words, access="store", lanes=count, place=place)
    return replace(found, actual=became, expected=was)


def _number(element: Tensor) -> str:
    return f"{element.item():.6g}" if element.is_floating_point() else str(element.item())


def written_by(change: MemoryFinding, kernel: str, line: SourceLine | None) -> MemoryFinding:
    parts = [kernel] if kernel else []
    if line is not None:
        parts += [f"line {line.line}" if kernel else line.place, f"`{line.code}`"]
        change = replace(change, file=line.file, line=line.line, code=line.code)
    by = f"is overwritten{' by ' if parts else ''}{', '.join(parts)}"
    sentence = change.sentence.replace("is overwritten", by, 1)
    return replace(change, sentence=sentence, kernel=kernel)


def shared(
    result: Mapping[str, Any], target: Target, case: Case, inputs: Inputs
) -> Iterator[MemoryFinding]:
    """Of gradients with inputs and one another; autograd's are cloned."""
    given, allowed = inputs.tensors, {*OUTPUTS, *case.inplace}
    allowed |= set() if target.is_backward else {"do"}
    gradients: dict[str, Tensor] = {}
    for name, tensor in (*given.items(), *result.items()):
        if name.lower() in OUTPUTS:
            gradients[title(name)] = tensor
    others = dict(given)
    for name in allowed:
        others.pop(name, None)
    pairs = list(itertools.product(gradients.items(), others.items()))
    pairs += itertools.combinations(gradients.items(), 2) if target.is_backward else []
    for (name, tensor), (other, memory) in pairs:
        if count := _elements_of_both(tensor, memory):
            words = f"{name} lies in the memory of {other}: {count:,} of its elements are also its own"
            yield MemoryFinding(SHARED, name, words)


def _elements_of_both(tensor: Tensor, other: Tensor) -> int:
    import torch

    if tensor.device != other.device or home_of(tensor) != home_of(other):
        return 0
    taken = mapped(max(tensor.untyped_storage().nbytes(), 1), torch.bool)
    parts = []
    for each in (other, tensor):  # [*shape, bytes of an element] the bytes that it covers
        size = each.element_size()
        sizes, strides = [*each.shape, size], [step * size for step in each.stride()]
        parts.append(taken.as_strided(sizes, [*strides, 1], each.storage_offset() * size))
    parts[0].fill_(True)
    return int(parts[1].any(-1).sum())
