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
Patch = Callable[[Method], Method]
Program = tuple[int, int, int]
CodeLine = tuple[CodeType, int]
"""A line that is executing."""
Line = CodeLine | SourceLine
# Methods of the builder whose result holds what its operands hold, moved about but not changed.
MOVES = "splat unsplat broadcast expand_dims reshape trans select cat join split gather"
# Those that make pointers of pointers, and what makes the pointers of blocks. Triton 3.8 has no block pointers.
_POINTING = "addptr bitcast int_to_ptr ptr_to_int"
_OF_BLOCKS = ("BlockPointerHandle.materialize_pointers", "TensorDescHandle.materialize_pointers")
# By the builder's method: the kind of access, and where its pointers and its mask are among the arguments.
_ACCESSES: dict[str, tuple[str, int, int | None]] = {
    "masked_load": ("load", 0, 1),
    "masked_store": ("store", 0, 2),
    "atomic_rmw": ("atomic", 1, 3),
    "atomic_cas": ("atomic", 0, None),
}
# What the `attr` of handles keeps. Of pointers: the id of the argument of the launch that all of them point into.
# Where pointers into several arguments become one tile it is lost, and addresses are looked up instead.
_ORIGIN = "gradprobe origin"
# The numbers of the lines that addresses were made by, where somebody gives them.
LINES = "gradprobe lines"
NO_LINES = frozenset[int]()


@dataclass(slots=True)
class Operation:
    """What a method of the builder, a block or a reduction did."""

    of: Any
    method: Method
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Sequence[Any]

    def again(self, args: Sequence[Any]) -> Sequence[Any]:
        """The results that it gives for other arguments."""
        return _several(self.method(self.of, *args, **self.kwargs))


def _several(result: Any) -> Sequence[Any]:
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
        data, on = self.pointers.data, self.on
        on = on if on.shape == data.shape else np.broadcast_to(on, data.shape)
        lanes = on.reshape(-1).nonzero()[0]
        addresses = data.reshape(-1)[lanes]
        view = self.launch.views.get(self.pointers.attr.get(_ORIGIN))
        if view is not None:
            return [(view, lanes, addresses)]
        return [(view, lanes[some], addresses[some]) for view, some in self.launch.by_view(addresses)]


class InterpretedLaunch:
    """One launch of a kernel, with the tensors that it is given."""

    def __init__(self, number: int, function: Any, known: Sequence[View]) -> None:
        self.number = number
        self.kernel: str = getattr(function, "__name__", str(function))
        self.code: CodeType | None = getattr(function, "__code__", None)
        self.views: dict[int, View] = {}
        """By the id of an argument."""
        self._known = known
        """The caller's tensors."""

    def learn(self, given: Mapping[str, Any], on_host: Mapping[str, Any]) -> None:
        """Takes the arguments by parameter name, as torch has them and as the interpreter gives them to the kernel."""
        moves, arguments = dict[int, int](), []
        for parameter, argument in given.items():
            copies = tensors_in(on_host[parameter], parameter)
            for (name, tensor, _), (_, copy, handed) in zip(tensors_in(argument, parameter), copies, strict=True):
                home = tensor.untyped_storage().data_ptr()
                moves[home] = copy.untyped_storage().data_ptr() - home
                arguments.append((copy, name, home, handed))
        self._known = [view.moved(moves.get(view.home, 0)) for view in self._known]
        for copy, name, home, handed in arguments:
            self.views[id(handed)] = argument_view(copy, name, self._known, home)

    def by_view(self, addresses: Array) -> Iterator[tuple[View, Array]]:
        """(view, index of its addresses) of addresses of unknown origin.

        It is the view that has the address as an element, else one of its storage.
        """
        left = np.ones(len(addresses), bool)
        for owns in (View.hold, View.in_storage):
            for view in (*self.views.values(), *self._known):
                some = np.flatnonzero(left & owns(view, addresses, 1))
                if some.size:
                    left[some] = False
                    yield view, some


class Watcher:
    """Looks on. What it does not override it is not told; a fault of it stops no kernel."""

    def notes(self) -> Iterable[tuple[str, Note]]:
        """What is to be called after operations of the builder, or of "Class.name", each with its name."""
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

    def __init__(self, tensors: Mapping[str, Tensor], watchers: Sequence[Watcher], errors: dict[str, None]) -> None:
        """`errors` takes what goes wrong in watching."""
        self._known = [view_of(tensor, name) for name, tensor in tensors.items()]
        self._watchers = watchers
        """None once it is closed."""
        self._attempt = partial(attempted, errors)
        self._launch: InterpretedLaunch | None = None
        self._launches = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Raises InterpreterNotKnown: this release of Triton lacks something that has to be patched."""
        needed: dict[str, Patch] = {
            "GridExecutor._init_args_hst": self._beginning,
            "interpreter._implicit_cvt": self._marking,
        }
        needed |= {_path(name): partial(self._accessing, *access) for name, access in _ACCESSES.items()}
        patches = [*needed.items(), *((_path(name), _carrying) for name in f"{MOVES} {_POINTING}".split())]
        patches += [(path, _carrying_to_block) for path in _OF_BLOCKS]
        for watcher in self._watchers:
            for name, note in watcher.notes():
                patches.append((_path(name), partial(_noting, partial(self._attempt, note))))
        with contextlib.ExitStack() as stack:
            for path, patch in patches:
                of, name = path.split(".")
                owner = shipped if of == "interpreter" else getattr(shipped, of, None)
                if hasattr(owner, name):
                    stack.enter_context(replaced(owner, name, patch(getattr(owner, name))))
                elif path in needed:  # any other operation that this release lacks is left out
                    raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {path}")
            try:
                yield
            finally:  # whoever patched over it meanwhile may hold on to a patch
                self._watchers, self._launch = (), None

    def _beginning(self, method: Method) -> Method:
        def init_args(executor: Any, args: Any, kwargs: Any) -> Any:
            host_args, host_kwargs = method(executor, args, kwargs)
            if self._watchers:
                self._launches += 1
                self._launch = launch = InterpretedLaunch(self._launches, executor.fn, self._known)
                given = dict(zip(executor.arg_names, args, strict=False)) | kwargs
                on_host = dict(zip(executor.arg_names, host_args, strict=False)) | host_kwargs
                self._attempt(launch.learn, given, on_host)
                for watcher in self._watchers:
                    self._attempt(watcher.begun, launch, given.values())
            return host_args, host_kwargs

        return init_args

    def _marking(self, method: Method) -> Method:
        def implicit_cvt(argument: Any) -> Any:
            made, launch = method(argument), self._launch
            if launch is not None and id(argument) in launch.views:
                made.handle.attr[_ORIGIN] = id(argument)
            return made

        return implicit_cvt

    def _accessing(self, kind: str, pointers_at: int, mask_at: int | None, method: Method) -> Method:
        def access(builder: Any, *args: Any, **kwargs: Any) -> Any:
            launch, kept = self._launch, None
            made = self._attempt(_account, launch, kind, builder, args, pointers_at, mask_at) if launch else None
            if made is None:
                return method(builder, *args, **kwargs)
            for watcher in self._watchers:
                lanes = self._attempt(watcher.before, made)
                kept = lanes if kept is None else kept
            if kept is not None and mask_at is None:
                # Where one lane is to be left out none is made: locks are numbers, and no tiles.
                result = Handle(np.zeros_like(args[2].data), args[2].dtype.scalar)
            else:
                if kept is not None:
                    mask = Handle(kept.reshape(made.pointers.data.shape), tl.int1)
                    args = tuple(mask if at == mask_at else arg for at, arg in enumerate(args))
                result = method(builder, *args, **kwargs)
            for watcher in self._watchers:
                self._attempt(watcher.after, made, result)
            return result

        return access


def _path(name: str) -> str:
    return name if "." in name else f"InterpreterBuilder.create_{name}"


def _account(launch: InterpretedLaunch, kind: str, builder: Any, args: Any, at: int, mask_at: int | None) -> Access:
    pointers, value, is_exchange = args[at], None, mask_at is None
    width = shipped._get_np_dtype(pointers.get_element_ty()).itemsize
    if mask_at is None:  # a compare-and-swap
        on: Array = np.ones(pointers.data.shape, bool)
    else:
        # A block's mask comes as an array, all others as handles.
        on = args[mask_at].data if isinstance(args[mask_at], Handle) else args[mask_at]
        if kind != "load":
            value, is_exchange = args[mask_at - 1], getattr(args[0], "name", "") == "XCHG"
    return Access(kind, launch, builder.grid_idx, pointers, on, width, value, is_exchange, *executing(launch.code))


def _noting(note: Note, method: Method) -> Method:
    def noted(of: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(of, *args, **kwargs)
        note(Operation(of, method, args, kwargs, _several(result)))
        return result

    return noted


# --- what handles keep


def _carrying(method: Method) -> Method:
    """What is moved about points into what it pointed into, and was made by the lines that it was made by."""

    def carried(builder: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(builder, *args, **kwargs)
        for arg in args:
            if isinstance(arg, Handle) and arg.attr:  # as few have
                _carry([each for each in args if isinstance(each, Handle)], _several(result))
                break
        return result

    return carried


def _carry(handles: Sequence[Any], results: Sequence[Any]) -> None:
    lines = NO_LINES
    origins: set[int | None] = set()
    for handle in handles:
        if _ORIGIN in handle.attr or handle.dtype.scalar.is_ptr():
            origins.add(handle.attr.get(_ORIGIN))
        lines |= handle.attr.get(LINES, NO_LINES)
    _mark(results, origins.pop() if len(origins) == 1 else None, lines)


def _carrying_to_block(method: Method) -> Method:
    """The pointers of a block point into the argument of its base."""

    def carried(block: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(block, *args, **kwargs)
        lines = lines_behind(block, block.base, block.strides, *args)
        _mark(result[:1], block.base.attr.get(_ORIGIN), lines)
        return result

    return carried


def _mark(handles: Sequence[Any], origin: int | None, lines: frozenset[int]) -> None:
    for handle in handles:
        if origin is not None:
            handle.attr[_ORIGIN] = origin
        if lines:
            handle.attr[LINES] = lines


def lines_behind(*values: Any) -> frozenset[int]:
    """The lines that made some handles, blocks, or lists of them."""
    found = NO_LINES
    for value in values:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            found |= attributes(each).get(LINES, NO_LINES)
    return found


def attributes(value: Any) -> dict[str, Any]:
    """Where a handle, or the handle of a block, keeps what is noted of it; of anything else nothing is."""
    if isinstance(value, Handle):
        return value.attr  # type: ignore[no-any-return]
    return vars(value) if hasattr(type(value), "materialize_pointers") else {}


# --- lines


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
    found = []
    for line in lines:
        if isinstance(line, SourceLine):
            found.append(line)
        else:
            code, number = line
            text = linecache.getline(code.co_filename, number).strip()
            found.append(SourceLine(code.co_filename, number, text, function=code.co_name))
    return tuple(found)
