"""Stream: the one patch of Triton's interpreter that watching goes through, and what it tells those that look on.

They are told of launches, of each access of memory before and after it is made, and of the operations that they ask
for. What nobody asks for is not patched.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
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
from .....source.text import SourceLine
from ...launches import tensors_in
from ..bfloat16 import InterpreterNotKnown
from ..operations import IN_PLACE, OF_BLOCKS, REARRANGING, Handle, Method, Note, Operation, noting
from .views import View, argument_view, view_of

if TYPE_CHECKING:
    from torch import Tensor

Program = tuple[int, int, int]
CodeLine = tuple[CodeType, int]
"""A line that is executing."""
Line = CodeLine | SourceLine
NO_ORIGIN = -1
# By the builder's method: the kind of access, and where its pointers, its value and its mask are among the arguments.
_ACCESSES: dict[str, tuple[str, int, int | None, int | None]] = {
    "create_masked_load": ("load", 0, None, 1),
    "create_masked_store": ("store", 0, 1, 2),
    "create_atomic_rmw": ("atomic", 1, 2, 3),
    "create_atomic_cas": ("atomic", 0, 2, None),
}


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


class Launch:
    """One launch of a kernel: the tensors that it was given."""

    def __init__(self, number: int, function: Any, known: Sequence[View]) -> None:
        self.number = number
        self.kernel: str = getattr(function, "__name__", str(function))
        self.code: CodeType | None = getattr(function, "__code__", None)
        self.views: list[View] = []
        """By the number that is the origin of their pointers."""
        self.around = self._known = tuple(known)
        """All tensors that an address may belong to, the caller's before the arguments."""
        self.origins: dict[int, int] = {}
        """The origin of the pointers made from an argument, by the argument's id."""

    def learn(self, given: Mapping[str, Any], on_host: Mapping[str, Any]) -> None:
        """Takes the arguments by parameter name, as torch has them and as the interpreter gives them to the kernel."""
        moves: dict[int, int] = {}
        arguments = []
        for parameter in given:
            both = zip(tensors_in(given[parameter], parameter), tensors_in(on_host[parameter], parameter), strict=True)
            for (name, tensor, _), (_, copy, handed) in both:
                home = tensor.untyped_storage().data_ptr()
                moves[home] = copy.untyped_storage().data_ptr() - home
                arguments.append((name, copy, handed, home))
        known = [view.moved(moves.get(view.home, 0)) for view in self._known]
        for name, copy, handed, home in arguments:
            self.origins[id(handed)] = len(self.views)
            self.views.append(argument_view(copy, name, known, home))
        self.around = (*known, *self.views)

    def by_view(self, origin: int, addresses: Array) -> Iterator[tuple[View | None, Any]]:
        """(view, index of its addresses) for all addresses; the view is None where no known storage holds them.

        Of pointers of lost origin it is the view that has the address as an element, else one of its storage.
        """
        if origin != NO_ORIGIN:
            yield self.views[origin], slice(None)
            return
        left = np.ones(len(addresses), bool)
        for owns in (View.hold, View.in_storage):
            for view in (*self.views, *self.around):
                chosen = np.flatnonzero(left & owns(view, addresses, 1))
                if chosen.size:
                    left[chosen] = False
                    yield view, chosen
        if left.any():
            yield None, np.flatnonzero(left)


# A number for each argument, kept in the `attr` of handles: that of all pointers of a handle. Where pointers into
# several arguments become one tile it is lost, and addresses are looked up instead.
_ORIGIN = "gradprobe origin"


def _origin_of(handle: Any) -> int:
    return handle.attr.get(_ORIGIN, NO_ORIGIN)  # type: ignore[no-any-return]


def _handed_on(step: Operation) -> None:
    """The result points into the argument that the first operand points into."""
    if (origin := _origin_of(step.args[0])) != NO_ORIGIN:
        step.result.attr[_ORIGIN] = origin


def _of_block(step: Operation) -> None:
    """The pointers of a block point into the argument of its base."""
    pointers, _ = step.result
    pointers.attr[_ORIGIN] = _origin_of(step.of.base)


def _moved(step: Operation) -> None:
    """Pointers that are rearranged still point into their argument."""
    # A loop, since this runs more often than anything else here.
    for arg in step.args:
        if isinstance(arg, Handle) and _ORIGIN in arg.attr:
            origin = arg.attr[_ORIGIN]
            pointers = [each for each in step.args if isinstance(each, Handle) and each.dtype.scalar.is_ptr()]
            if all(_origin_of(each) == origin for each in pointers):
                for each in step.results:
                    each.attr[_ORIGIN] = origin
            break


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
        self.launch: Launch | None = None
        """The one that runs."""
        self._launches = 0
        self._is_open = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Raises InterpreterNotKnown: this release of Triton lacks something that has to be patched."""
        executor, builder = shipped.GridExecutor, shipped.InterpreterBuilder
        patches: list[tuple[Any, str, Callable[[Method], Method]]] = [
            (executor, "__call__", self._launching),
            (executor, "_init_args_hst", self._learning),
            (shipped, "_implicit_cvt", self._marking),
            *((builder, name, partial(self._accessing, name)) for name in _ACCESSES),
        ]
        for owner, name, _ in patches:
            if not hasattr(owner, name):
                lacking = f"{owner.__name__}.{name}"
                raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {lacking}")
        with contextlib.ExitStack() as stack:
            # Whoever patched over it meanwhile may hold on to a patch.
            stack.callback(setattr, self, "_is_open", False)
            for owner, name, wrapper in patches:
                stack.enter_context(replaced(owner, name, wrapper(getattr(owner, name))))
            stack.enter_context(noting(self._notes()))
            self._is_open = True
            yield

    def _notes(self) -> defaultdict[str, list[Note]]:
        notes: defaultdict[str, list[Note]] = defaultdict(list)
        notes |= {name: [_moved] for name in REARRANGING}
        notes |= {name: [_handed_on] for name in IN_PLACE}
        notes |= {name: [_of_block] for name in OF_BLOCKS}
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
                given = dict(zip(executor.arg_names, args, strict=False)) | kwargs
                on_host = dict(zip(executor.arg_names, host_args, strict=False)) | host_kwargs
                attempted(self._errors, self.launch.learn, given, on_host)
            return host_args, host_kwargs

        return init_args

    def _marking(self, method: Method) -> Method:
        def implicit_cvt(argument: Any) -> Any:
            made = method(argument)
            if self.launch is not None and id(argument) in self.launch.origins:
                made.handle.attr[_ORIGIN] = self.launch.origins[id(argument)]
            return made

        return implicit_cvt

    def _accessing(self, name: str, method: Method) -> Method:
        kind, at, value_at, mask_at = _ACCESSES[name]

        def access(builder: Any, *args: Any, **kwargs: Any) -> Any:
            pointers = args[at]
            given: Any = None if value_at is None else args[value_at]
            dtype = shipped._get_np_dtype(pointers.get_element_ty()) if given is None else given.data.dtype

            def perform(keep: Array | None) -> Any:
                if keep is None:
                    return method(builder, *args, **kwargs)
                if mask_at is None:
                    # Where one lane is to be left out none is made: locks are numbers, and no tiles.
                    return Handle(np.zeros_like(given.data), given.dtype.scalar)
                mask = Handle(keep.reshape(pointers.data.shape), tl.int1)
                return method(builder, *args[:mask_at], mask, *args[mask_at + 1 :], **kwargs)

            # A compare-and-swap has no mask.
            on = np.ones(pointers.data.shape, bool) if mask_at is None else args[mask_at]
            is_exchange = mask_at is None or (kind == "atomic" and getattr(args[0], "name", "") == "XCHG")
            about = kind, builder, pointers, on, dtype.itemsize, None if mask_at is None else given, is_exchange
            launch = self.launch
            access = None if launch is None else attempted(self._errors, self._access, launch, *about)
            if access is None:
                return perform(None)
            left = [attempted(watcher.errors, watcher.before, access) for watcher in self._watchers]
            result = perform(next((lanes for lanes in left if lanes is not None), None))
            for watcher in self._watchers:
                attempted(watcher.errors, watcher.after, access, result)
            return result

        return access

    def _access(self, launch: Launch, kind: str, builder: Any, pointers: Any, mask: Any, *about: Any) -> Access:
        # A block's mask comes as an array, all others as handles.
        on, origin = mask.data if isinstance(mask, Handle) else mask, _origin_of(pointers)
        return Access(kind, launch, builder.grid_idx, pointers, origin, on, *executing(launch.code), *about)
