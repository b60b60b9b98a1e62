"""The tensors that a target allocates itself: laid apart, in guard bands, and filled with what must not remain."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..inputs.guard_bands import Breach, Guards, guarded
from ..inputs.memory import Unwritten
from ..inputs.placement import spanned
from ..inputs.tensor_layouts import VECTOR
from ..processes.attributes import replaced
from ..processes.ended import is_users

if TYPE_CHECKING:
    from torch import Tensor


# Elements of guard band on either side; a multiple of 128 keeps the alignment of an allocation.
BAND = 1024
# Bytes from which an allocation is left as it is.
LARGEST = 1 << 28


@dataclass
class AllocationSpread:
    """What a target allocates laid apart, along the axes whose strides one run asks for, as inputs lie in `distinct`.

    Contiguous buffers of one shape have equal strides, so one that is read by another's is right by coincidence. An
    axis whose stride nobody asks for is taken for contiguous by right.
    """

    asked: dict[str, set[int] | None] = field(default_factory=dict)
    """By FILE:LINE of an allocation, the axes whose strides were asked for; None where those of a view were."""
    is_laid: bool = False
    """Whether allocations are laid apart by now."""
    _made: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    """By address. The tensor is kept so that no other has its address."""

    def lay(self) -> bool:
        """Lays what the target allocates from now on apart; whether there is anything to be laid so."""
        self.is_laid = True
        self._made.clear()
        return any(self.asked.values())

    def strides(self, place: str, tensor: Tensor) -> tuple[int, ...]:
        """The strides of what is allocated at a place: with a gap of its own along each axis that was asked for."""
        axes = self.asked.get(place) if self.is_laid else None
        if not axes or not tensor.is_contiguous():
            return tensor.stride()
        gap = VECTOR * (len(self._made) + 1)
        *outer, last = range(tensor.dim())
        strides, span = list(tensor.stride()), max(tensor.shape[last], 1)
        for axis in reversed(outer):
            strides[axis] = span + (gap if axis in axes else 0)
            span = strides[axis] * max(tensor.shape[axis], 1)
        return tuple(strides)

    def allocated(self, place: str, tensor: Tensor) -> None:
        """Notes what was allocated."""
        self._made[tensor.untyped_storage().data_ptr()] = (place, tensor)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While open, the strides are noted that the target asks for."""
        import torch

        plain = torch.Tensor.stride

        def stride(tensor: Tensor, *axis: Any, **named: Any) -> Any:
            if not self.is_laid and is_users(sys._getframe(1).f_code.co_filename):
                self._note(tensor, *axis, *named.values())
            return plain(tensor, *axis, **named)

        with replaced(torch.Tensor, "stride", stride):
            yield

    def _note(self, tensor: Tensor, *axis: int) -> None:
        place, made = self._made.get(tensor.untyped_storage().data_ptr(), ("", tensor))
        axes, rank = self.asked.get(place, set()), tensor.dim()
        if tensor.shape != made.shape:
            self.asked[place] = None
        elif place and axes is not None:
            axes.update(at % rank for at in axis or range(rank) if -rank <= at < rank)
            self.asked[place] = axes


@dataclass
class Allocations:
    """While entered, every floating-point tensor that torch allocates for the caller lies in a guard band.

    `torch.empty` and its kin give memory that is filled with one number; `torch.zeros` and its kin their values. A
    tensor that an operation returns as its result is the operation's own affair. What was allocated is kept alive until
    the next entry, so that no two share an address.
    """

    fill: str
    """What the guard bands hold, one of guards.FILLS."""
    unwritten: float
    """What memory without values holds."""
    register: Unwritten = field(default_factory=Unwritten)
    """Told of memory without values, and of what torch writes."""
    copies: bool = False
    """Whether what `contiguous`, `clone` and `to` return lies in a guard band too."""
    spread: AllocationSpread | None = None
    """Says how each tensor is laid; None leaves it as torch lays it."""
    made: list[tuple[Tensor, str, Guards]] = field(default_factory=list)
    """Each tensor, FILE:LINE of the Python code that asked for it ("" where there is none), and its guard band."""
    _mode: Any = None

    def __enter__(self) -> Allocations:
        self.made.clear()
        self._mode = factory_mode(self._allocated, self.register.written, copies=self.copies)
        self._mode.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._mode.__exit__(*raised)

    def breaches(self, names: dict[int, str]) -> list[Breach]:
        """The guard bands that were written; `names`: by address of the storage, else where it was allocated."""
        found = []
        for tensor, place, guards in self.made:
            name = names.get(tensor.untyped_storage().data_ptr(), f"the tensor allocated at {place}")
            found += [replace(breach, tensor=name) for breach in guards.breaches()]
        return found

    def _allocated(self, tensor: Tensor, has_values: bool) -> Tensor:
        if not _is_plain(tensor):
            return tensor
        file, line = asked_at()
        place = f"{Path(file).name}:{line}" if file else ""
        shape, strides = tuple(tensor.shape), tensor.stride()
        if self.spread:
            strides = self.spread.strides(place, tensor)
        own = max(tensor.untyped_storage().nbytes() // tensor.element_size(), spanned(shape, strides))
        storage = guarded(2 * BAND + own, tensor.dtype, tensor.device, self.fill, reserve=0)
        inside = storage.as_strided(shape, strides, BAND)
        inside.copy_(tensor) if has_values else inside.fill_(self.unwritten)
        if self.spread and place:
            self.spread.allocated(place, inside)
        self.made.append((inside, place, Guards({"": inside}, self.fill)))
        if not has_values:
            self.register.allocated(inside, (file, line))
        return inside


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is a dense one of numbers, of a size that can be had twice."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.storage_offset():
        return False
    if not tensor.is_floating_point() or tensor.device.type not in ("cpu", "cuda"):
        return False
    return 0 < tensor.untyped_storage().nbytes() < LARGEST


def asked_at() -> tuple[str, int]:
    """File and line of the innermost code of the user's; "" and 0 where none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def factory_mode(made: Callable[[Tensor, bool], Tensor], wrote: Callable[[Tensor], None], *, copies: bool) -> Any:
    """A mode of torch's dispatcher that hands on what factories of tensors return, and what operations write into."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    without = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}
    having = {aten.clone, aten._to_copy} if copies else set()
    for kind in ("zeros", "ones", "full"):
        having |= {getattr(aten, name) for name in (kind, f"{kind}_like", f"new_{kind}")}

    class Mode(TorchDispatchMode):
        # Without it torch refuses flex_attention and its like. What one allocates inside is its own affair.
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """torch.compile must not trace what follows; where nobody compiles, hiding it would import all of it."""
            return "torch._dynamo" in sys.modules

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Whether torch.compile, through which flex_attention goes even uncompiled, works while this is entered."""
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            packet = getattr(func, "overloadpacket", None)
            if packet in without or packet in having:
                return made(result, packet in having)
            if torch.Tag.inplace_view not in getattr(func, "tags", ()):  # which moves a tensor, and writes nothing
                for tensor in _written(func, args, kwargs or {}):
                    wrote(tensor)
            return result

    return Mode()


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes into, as its schema says."""
    import torch

    schema = getattr(func, "_schema", None)  # which higher-order operators lack: they write into none of theirs
    for at, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    yield tensor
