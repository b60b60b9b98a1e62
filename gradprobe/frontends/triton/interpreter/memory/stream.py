"""Stream: the one patch of Triton's interpreter that watching goes through, and what it tells those that look on.

They are told of launches, of each access of memory before and after it is made, and of the operations that they ask
for. What nobody asks for is not patched.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter as shipped

from .....inputs.memory import Array
from .....model.failures import fault_words
from .....processes.attributes import replaced
from .....processes.ended import is_users
from .....source.text import SourceLine
from ...launches import tensors_in
from ..plans import InterpreterNotKnown
from .views import View, argument_view, view_of

Handle: Any = shipped.TensorHandle
Method = Callable[..., Any]
Program = tuple[int, int, int]
CodeLine = tuple[CodeType, int]
"""A line that is executing."""
Line = CodeLine | SourceLine
# Methods of the builder whose result holds what its operands hold, moved about but not changed.
_MOVES = "splat unsplat broadcast expand_dims reshape trans select cat join split gather"
REARRANGING = tuple(f"create_{name}" for name in _MOVES.split())
# Those whose result holds, in place, pointers that come from its operands.
IN_PLACE = ("create_addptr", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int")
# What makes the pointers of blocks. Block pointers are gone from Triton 3.8 on.
OF_BLOCKS = ("BlockPointerHandle.materialize_pointers", "TensorDescHandle.materialize_pointers")
# By the builder's method: the kind of access, and where its pointers, its value and its mask are among the arguments.
_ACCESSES: dict[str, tuple[str, int, int | None, int | None]] = {
    "create_masked_load": ("load", 0, None, 1),
    "create_masked_store": ("store", 0, 1, 2),
    "create_atomic_rmw": ("atomic", 1, 2, 3),
    "create_atomic_cas": ("atomic", 0, 2, None),
}
# Of pointers, in the `attr` of their handle: the number of the argument of the launch that all of them point into.
# Where pointers into several arguments become one tile it is lost, and addresses are looked up instead.
_ORIGIN = "gradprobe origin"


@dataclass(slots=True)
class Operation:
    """What a method of the interpreter did."""

    of: Any
    """What it is a method of: the builder, a block, a reduction."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    method: Method

    @property
    def results(self) -> Sequence[Any]:
        return self.result if isinstance(self.result, (tuple, list)) else (self.result,)

    def again(self, args: Sequence[Any]) -> Sequence[Any]:
        """The results that it gives for other arguments."""
        result = self.method(self.of, *args, **self.kwargs)
        return result if isinstance(result, (tuple, list)) else (result,)


Note = Callable[[Operation], object]


@dataclass(eq=False)
class Access:
    """One load, store or atomic of many lanes."""

    kind: str
    """"load", "store" or "atomic"."""
    launch: InterpretedLaunch
    program: Program
    pointers: Any
    on: Array
    """bool, the lanes that are not masked."""
    width: int
    """In bytes, of a lane."""
    value: Any
    """What a store or an atomic is given; None of a load, and of an exchange that compares."""
    is_exchange: bool
    """Whether it is an atomic that locks are made of."""
    lines: tuple[CodeLine, ...]
    instruction: int
    """Where it is made: from `executing`."""

    @functools.cached_property
    def parts(self) -> list[tuple[View, Array, Array]]:
        """(view, flat numbers of the lanes, addresses) for each tensor that is known of those that are accessed."""
        data = self.pointers.data
        on = self.on if self.on.shape == data.shape else np.broadcast_to(self.on, data.shape)
        lanes = on.reshape(-1).nonzero()[0]
        addresses = data.reshape(-1)[lanes]
        origin = self.pointers.attr.get(_ORIGIN)
        if origin is not None:
            return [(self.launch.views[origin], lanes, addresses)]
        found = self.launch.by_view(addresses)
        return [(view, lanes[chosen], addresses[chosen]) for view, chosen in found]


class InterpretedLaunch:
    """One launch of a kernel, with the tensors that it is given."""

    def __init__(self, number: int, function: Any, known: Sequence[View]) -> None:
        self.number = number
        self.kernel: str = getattr(function, "__name__", str(function))
        self.code: CodeType | None = getattr(function, "__code__", None)
        self.views: list[View] = []
        """By the number that is the origin of their pointers."""
        self.around = tuple(known)
        """All tensors that an address may belong to, the caller's before the arguments."""
        self.origins: dict[int, int] = {}
        """The origin of the pointers made from an argument, by the argument's id."""

    def learn(self, given: Mapping[str, Any], on_host: Mapping[str, Any]) -> None:
        """Takes the arguments by parameter name, as torch has them and as the interpreter gives them to the kernel."""
        moves: dict[int, int] = {}
        arguments = []
        for parameter, argument in given.items():
            copies = tensors_in(on_host[parameter], parameter)
            for (name, tensor, _), (_, copy, handed) in zip(tensors_in(argument, parameter), copies, strict=True):
                home = tensor.untyped_storage().data_ptr()
                moves[home] = copy.untyped_storage().data_ptr() - home
                arguments.append((name, copy, handed, home))
        known = [view.moved(moves.get(view.home, 0)) for view in self.around]
        for name, copy, handed, home in arguments:
            self.origins[id(handed)] = len(self.views)
            self.views.append(argument_view(copy, name, known, home))
        self.around = (*known, *self.views)

    def by_view(self, addresses: Array) -> Iterator[tuple[View, Array]]:
        """(view, index of its addresses) of addresses of unknown origin.

        It is the view that has the address as an element, else one of its storage.
        """
        left = np.ones(len(addresses), bool)
        for owns in (View.hold, View.in_storage):
            for view in (*self.views, *self.around):
                chosen = np.flatnonzero(left & owns(view, addresses, 1))
                if chosen.size:
                    left[chosen] = False
                    yield view, chosen


class Watcher:
    """Looks on. What it does not override it is not told; a fault of it stops no kernel."""

    def __init__(self) -> None:
        self.errors: dict[str, None] = {}

    def notes(self) -> Iterable[tuple[str, Note]]:
        """What is to be called after operations, each with the name of its method."""
        return ()

    def begun(self, launch: InterpretedLaunch, arguments: Iterable[Any]) -> None:
        """Told of a launch before it runs."""

    def before(self, access: Access) -> Array | None:
        """The lanes of an access that may be made, flat; None for all that are not masked."""
        return None

    def after(self, access: Access, result: Any) -> None:
        """Told of an access that was made."""


def attempted(errors: dict[str, None], action: Callable[..., Any], *args: Any) -> Any:
    """What an action gives; None where it fails, which is noted."""
    try:
        return action(*args)
    except Exception as error:
        errors[fault_words(error)] = None
        return None


class Stream:
    """What kernels do, as long as it is open."""

    def __init__(self, tensors: Mapping[str, Tensor], watchers: Sequence[Watcher]) -> None:
        self._known = [view_of(tensor, name) for name, tensor in tensors.items()]
        self._watchers = watchers
        # What goes wrong in following pointers is told by the first.
        self._errors = watchers[0].errors
        self._launch: InterpretedLaunch | None = None
        """The last that began."""
        self._launches = 0
        self._is_open = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Raises InterpreterNotKnown: this release of Triton lacks something that has to be patched."""
        patches: list[tuple[Any, str, Callable[[Method], Method]]] = [
            (shipped.GridExecutor, "_init_args_hst", self._beginning),
            (shipped, "_implicit_cvt", self._marking),
        ]
        for name, of in _ACCESSES.items():
            patches.append((shipped.InterpreterBuilder, name, partial(self._accessing, *of)))
        for owner, name, _ in patches:
            if not hasattr(owner, name):
                lacking = f"{owner.__name__}.{name}"
                raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {lacking}")
        for name, notes in self._notes().items():
            of_class, _, attribute = name.rpartition(".")
            owner = getattr(shipped, of_class or "InterpreterBuilder", None)
            if hasattr(owner, attribute):  # an operation that this release lacks is left out
                patches.append((owner, attribute, partial(_noting, notes)))
        with contextlib.ExitStack() as stack:
            for owner, name, wrapper in patches:
                stack.enter_context(replaced(owner, name, wrapper(getattr(owner, name))))
            self._is_open = True
            try:
                yield
            finally:  # whoever patched over it meanwhile may hold on to a patch
                self._is_open, self._launch = False, None

    def _notes(self) -> dict[str, list[Note]]:
        notes: dict[str, list[Note]] = {name: [_follow_pointers] for name in REARRANGING}
        notes |= {name: [_follow_first] for name in IN_PLACE}
        notes |= {name: [_follow_block] for name in OF_BLOCKS}
        for watcher in self._watchers:
            for name, note in watcher.notes():
                notes.setdefault(name, []).append(partial(attempted, watcher.errors, note))
        return notes

    def _beginning(self, method: Method) -> Method:
        def init_args(executor: Any, args: Any, kwargs: Any) -> Any:
            host_args, host_kwargs = method(executor, args, kwargs)
            if self._is_open:
                self._launches += 1
                self._launch = launch = InterpretedLaunch(self._launches, executor.fn, self._known)
                given = dict(zip(executor.arg_names, args, strict=False)) | kwargs
                on_host = dict(zip(executor.arg_names, host_args, strict=False)) | host_kwargs
                attempted(self._errors, launch.learn, given, on_host)
                for watcher in self._watchers:
                    attempted(watcher.errors, watcher.begun, launch, given.values())
            return host_args, host_kwargs

        return init_args

    def _marking(self, method: Method) -> Method:
        def implicit_cvt(argument: Any) -> Any:
            made = method(argument)
            if self._launch is not None and id(argument) in self._launch.origins:
                made.handle.attr[_ORIGIN] = self._launch.origins[id(argument)]
            return made

        return implicit_cvt

    def _accessing(self, kind: str, at: int, value_at: int | None, mask_at: int | None, method: Method) -> Method:
        def event(launch: InterpretedLaunch, builder: Any, args: Any) -> Access:
            pointers, value = args[at], None
            if value_at is None:
                width = shipped._get_np_dtype(pointers.get_element_ty()).itemsize
            else:
                value = args[value_at]
                width = value.data.dtype.itemsize
            if mask_at is None:  # a compare-and-swap
                on, value, is_exchange = np.ones(pointers.data.shape, bool), None, True
            else:
                # A block's mask comes as an array, all others as handles.
                on = args[mask_at].data if isinstance(args[mask_at], Handle) else args[mask_at]
                is_exchange = kind == "atomic" and getattr(args[0], "name", "") == "XCHG"
            lines = executing(launch.code)
            return Access(kind, launch, builder.grid_idx, pointers, on, width, value, is_exchange, *lines)

        def access(builder: Any, *args: Any, **kwargs: Any) -> Any:
            launch, kept = self._launch, None
            made = attempted(self._errors, event, launch, builder, args) if launch is not None else None
            if made is None:
                return method(builder, *args, **kwargs)
            for watcher in self._watchers:
                lanes = attempted(watcher.errors, watcher.before, made)
                kept = lanes if kept is None else kept
            if kept is None:
                result = method(builder, *args, **kwargs)
            elif mask_at is None:
                # Where one lane is to be left out none is made: locks are numbers, and no tiles.
                value = args[2]
                result = Handle(np.zeros_like(value.data), value.dtype.scalar)
            else:
                mask = Handle(kept.reshape(made.pointers.data.shape), tl.int1)
                result = method(builder, *args[:mask_at], mask, *args[mask_at + 1 :], **kwargs)
            for watcher in self._watchers:
                attempted(watcher.errors, watcher.after, made, result)
            return result

        return access


def _noting(notes: Sequence[Note], method: Method) -> Method:
    def noted(of: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(of, *args, **kwargs)
        operation = Operation(of, args, kwargs, result, method)
        for note in notes:
            note(operation)
        return result

    return noted


def _follow_first(step: Operation) -> None:
    """The result points into the argument that the first operand points into."""
    attr = step.args[0].attr
    if _ORIGIN in attr:
        step.result.attr[_ORIGIN] = attr[_ORIGIN]


def _follow_pointers(step: Operation) -> None:
    """Pointers into one argument that are rearranged still point into it."""
    # A loop, since this runs more often than anything else here.
    for arg in step.args:
        if isinstance(arg, Handle) and _ORIGIN in arg.attr:
            origin = arg.attr[_ORIGIN]
            pointers = [each for each in step.args if isinstance(each, Handle) and each.dtype.scalar.is_ptr()]
            if all(each.attr.get(_ORIGIN) == origin for each in pointers):
                for each in step.results:
                    each.attr[_ORIGIN] = origin
            return


def _follow_block(step: Operation) -> None:
    """The pointers of a block point into the argument of its base."""
    pointers, _ = step.result
    pointers.attr[_ORIGIN] = step.of.base.attr.get(_ORIGIN)


def executing(kernel: CodeType | None) -> tuple[tuple[CodeLine, ...], int]:
    """The lines that are executing, that of the kernel first, and the innermost function's instruction.

    The innermost line alone where the kernel's is not found.
    """
    lines: list[CodeLine] = []
    instruction = -1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is kernel or is_users(code.co_filename):
            instruction = frame.f_lasti if not lines else instruction
            lines.append((code, frame.f_lineno))
        if code is kernel:
            return tuple(reversed(lines)), instruction
        frame = frame.f_back
    return tuple(lines[:1]), instruction


def places(lines: Sequence[Line]) -> tuple[SourceLine, ...]:
    """The same in words."""
    return tuple(line if isinstance(line, SourceLine) else _place(*line) for line in lines)


def _place(code: CodeType, line: int) -> SourceLine:
    file = code.co_filename
    return SourceLine(file, line, linecache.getline(file, line).strip(), function=code.co_name)
