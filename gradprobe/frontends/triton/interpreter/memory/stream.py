"""Stream: the one patch of Triton's interpreter that watching goes through, and what it tells those that look on.

They are told of launches, of each access of memory before and after it is made, and of the operations that they ask
for. What nobody asks for is not patched.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as shipped

from .....inputs.memory import Array
from .....model.failures import fault_words
from .....processes.attributes import replaced
from .....processes.ended import is_users
from ..bfloat16 import InterpreterNotKnown
from ..operations import IN_PLACE, OF_BLOCKS, REARRANGING, Handle, Method, Note, noting
from .findings import CodeLine, Program
from .views import Origins, View, view_of
from .watched_launch import Launch

if TYPE_CHECKING:
    from torch import Tensor


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


@dataclass(eq=False)
class Access:
    """One load, store or atomic of many lanes."""

    kind: str
    """"load", "store" or "atomic"."""
    launch: Launch
    program: Program
    pointers: Any
    origin: int
    """Which argument of the launch these point into."""
    on: Array
    """bool, the lanes that are not masked."""
    lines: tuple[CodeLine, ...]
    instruction: int
    """Where it is made: from `executing`."""
    width: int
    """In bytes, of a lane."""
    value: Any = None
    """What a store or an atomic is given, but for an exchange that compares."""
    is_exchange: bool = False
    """Whether it is an atomic that locks are made of."""

    @property
    def is_store(self) -> bool:
        """Whether it is a plain one, whose value is what it leaves."""
        return self.kind == "store"

    @functools.cached_property
    def parts(self) -> list[tuple[View | None, Array, Array]]:
        """(view, flat numbers of the lanes, addresses) for each tensor that is accessed; None for one not known."""
        shape = self.pointers.data.shape
        lanes = (self.on if self.on.shape == shape else np.broadcast_to(self.on, shape)).reshape(-1).nonzero()[0]
        addresses = self.pointers.data.reshape(-1)[lanes]
        found = self.launch.by_view(self.origin, addresses)
        return [(view, lanes[some], addresses[some]) for view, some in found]


class Watcher:
    """Looks on. What it does not override it is not told; a fault of it stops no kernel."""

    def __init__(self) -> None:
        self.errors: dict[str, None] = {}

    def notes(self) -> Iterable[tuple[str, Note]]:
        """What is to be called after operations, each with the name of its method."""
        return ()

    def begun(self, launch: Launch, arguments: Sequence[Any]) -> None:
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
        self._known = tuple(view_of(tensor, name) for name, tensor in tensors.items())
        self._watchers = watchers
        # What goes wrong in following pointers is told by the first.
        self._errors = watchers[0].errors
        self.origins = Origins()
        self.launch: Launch | None = None
        """The one that runs."""
        self._launches = 0
        self._is_open = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Raises InterpreterNotKnown: this release of Triton lacks something that has to be patched."""
        patches = self._patches()
        missing = [
            f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _ in patches if not hasattr(owner, name)
        ]
        if missing:
            raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {', '.join(missing)}")
        with contextlib.ExitStack() as stack:
            # Whoever patched over it meanwhile may hold on to a patch.
            stack.callback(setattr, self, "_is_open", False)
            for owner, name, wrapper in patches:
                stack.enter_context(replaced(owner, name, wrapper(getattr(owner, name))))
            stack.enter_context(noting(self._notes()))
            self._is_open = True
            yield

    def _patches(self) -> list[tuple[Any, str, Callable[[Method], Method]]]:
        builder = shipped.InterpreterBuilder
        return [
            (shipped.GridExecutor, "__call__", self._launching),
            (shipped.GridExecutor, "_init_args_hst", self._learning),
            (shipped, "_implicit_cvt", self._marking),
            (builder, "create_masked_load", partial(self._accessing, "load")),
            (builder, "create_masked_store", partial(self._accessing, "store")),
            (builder, "create_atomic_rmw", partial(self._accessing, "atomic")),
            (builder, "create_atomic_cas", self._comparing),
        ]

    def _notes(self) -> defaultdict[str, list[Note]]:
        notes: defaultdict[str, list[Note]] = defaultdict(list)
        notes |= {name: [self.origins.moved] for name in REARRANGING}
        notes |= {name: [self.origins.handed_on] for name in IN_PLACE}
        notes |= {name: [self.origins.of_block] for name in OF_BLOCKS}
        for watcher in self._watchers:
            for name, note in watcher.notes():
                notes[name].append(partial(attempted, watcher.errors, note))
        return notes

    def _launching(self, method: Method) -> Method:
        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_open:
                return method(executor, *args, **kwargs)
            self._launches += 1
            self.launch = Launch(self._launches, executor.fn, self._known)
            for watcher in self._watchers:
                attempted(watcher.errors, watcher.begun, self.launch, (*args, *kwargs.values()))
            try:
                return method(executor, *args, **kwargs)
            finally:
                self.launch = None

        return launch

    def _learning(self, method: Method) -> Method:
        def init_args(executor: Any, args: Any, kwargs: Any) -> Any:
            host_args, host_kwargs = method(executor, args, kwargs)
            if self.launch is not None:
                arguments = dict(zip(executor.arg_names, host_args, strict=False)) | host_kwargs
                attempted(self._errors, self.launch.learn, arguments)
            return host_args, host_kwargs

        return init_args

    def _marking(self, method: Method) -> Method:
        def implicit_cvt(argument: Any) -> Any:
            made = method(argument)
            if self.launch is not None and id(argument) in self.launch.origins:
                self.origins.set(made.handle, self.launch.origins[id(argument)])
            return made

        return implicit_cvt

    def _accessing(self, kind: str, method: Method) -> Method:
        # Where among the arguments the pointers stand; behind them a value, but for a load, and the mask.
        at, has_value = int(kind == "atomic"), kind != "load"

        def access(builder: Any, *args: Any, **kwargs: Any) -> Any:
            pointers, value, mask = args[at], args[at + 1] if has_value else None, args[at + 1 + has_value]
            dtype = value.data.dtype if value is not None else shipped._get_np_dtype(pointers.get_element_ty())
            is_exchange = kind == "atomic" and getattr(args[0], "name", "") == "XCHG"

            def perform(keep: Array | None) -> Any:
                narrowed = mask if keep is None else Handle(keep.reshape(pointers.data.shape), tl.int1)
                return method(builder, *args[: at + 1 + has_value], narrowed, *args[at + 2 + has_value :], **kwargs)

            return self._accessed(perform, kind, builder, pointers, mask, int(dtype.itemsize), value, is_exchange)

        return access

    def _comparing(self, method: Method) -> Method:
        def compare_and_swap(builder: Any, pointers: Any, expected: Any, value: Any, *args: Any) -> Any:
            def perform(keep: Array | None) -> Any:
                if keep is None:
                    return method(builder, pointers, expected, value, *args)
                # Where one lane is to be left out none is made: locks are numbers, and no tiles.
                return Handle(np.zeros_like(expected.data), expected.dtype.scalar)

            on, width = np.ones(pointers.data.shape, bool), value.data.dtype.itemsize
            return self._accessed(perform, "atomic", builder, pointers, on, width, None, True)

        return compare_and_swap

    def _accessed(
        self,
        perform: Callable[[Array | None], Any],
        kind: str,
        builder: Any,
        pointers: Any,
        mask: Any,
        *about: Any,
    ) -> Any:
        """Makes an access, of the lanes alone that watchers leave of it."""
        access = attempted(self._errors, self._access, kind, builder, pointers, mask, *about)
        if access is None:
            return perform(None)
        left = [attempted(watcher.errors, watcher.before, access) for watcher in self._watchers]
        result = perform(next((lanes for lanes in left if lanes is not None), None))
        for watcher in self._watchers:
            attempted(watcher.errors, watcher.after, access, result)
        return result

    def _access(self, kind: str, builder: Any, pointers: Any, mask: Any, *about: Any) -> Access | None:
        """What is known of an access; None outside launches."""
        if self.launch is None:
            return None
        # A block's mask comes as an array, all others as handles.
        on, origin = mask.data if isinstance(mask, Handle) else mask, self.origins.of(pointers)
        at = executing(self.launch.code)
        return Access(kind, self.launch, builder.grid_idx, pointers, origin, on, *at, *about)
