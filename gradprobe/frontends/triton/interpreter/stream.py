"""The one patch of Triton's interpreter for watching."""

import contextlib
import functools
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array
from ....model.failures import fault_words
from ....processes.ended import is_users
from ....source.syntax import SourceLine
from ... import replaced
from .plans import Handle, InterpreterNotKnown, Method, wrapped
from .views import ORIGIN, Access, InterpretedLaunch, Site, view_of

# Methods of the builder whose result holds what its operands hold, moved about but not changed.
MOVES = "splat unsplat broadcast expand_dims reshape trans select cat join split gather"
# Those that make pointers of pointers, and what makes the pointers of blocks. Triton 3.8 has no block pointers.
POINTING = "addptr bitcast int_to_ptr ptr_to_int"
OF_BLOCKS = ("BlockPointerHandle.materialize_pointers", "TensorDescHandle.materialize_pointers")


# The kind of an access, and where its pointers and its mask are among the builder's arguments.
AccessForm = tuple[str, int, int | None]
_ACCESSES: dict[str, AccessForm] = {
    "masked_load": ("load", 0, 1),
    "masked_store": ("store", 0, 2),
    "atomic_rmw": ("atomic", 1, 3),
    "atomic_cas": ("atomic", 0, None),
}


@dataclass(slots=True)
class Operation:
    launch: InterpretedLaunch
    of: Any
    method: Method
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Sequence[Any]

    def again(self, args: Sequence[Any]) -> Sequence[Any]:
        return _several(self.method(self.of, *args, **self.kwargs))

    def site(self, name: str) -> Site:
        return executing(self.launch, name)


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


Note = Callable[[Operation], object]


class Watcher:
    """Looks on. A fault of it stops no kernel."""

    def notes(self) -> Iterable[tuple[str, Note]]:
        """What is called after operations of the builder, or of "Class.name"."""
        return ()

    def begun(self, launch: InterpretedLaunch, arguments: Iterable[Any]) -> None:
        """A launch is to run."""

    def before(self, access: Access) -> Array | None:
        """The lanes that may be made, flat; None for all that are not masked."""
        return None

    def after(self, access: Access, result: Any) -> None:
        """An access was made."""


def attempted(errors: dict[str, None], action: Callable[..., Any], *args: Any) -> Any:
    try:
        return action(*args)
    except Exception as error:
        errors[fault_words(error)] = None
        return None


class Stream:
    def __init__(
        self, tensors: Mapping[str, Tensor], watchers: Sequence[Watcher], errors: dict[str, None]
    ) -> None:
        self._known = [view_of(tensor, name) for name, tensor in tensors.items()]
        self._watchers = watchers
        self._attempt = partial(attempted, errors)
        self._launch: InterpretedLaunch | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Raises InterpreterNotKnown."""
        _line.cache_clear()
        with contextlib.ExitStack() as stack:
            for path, patch, is_needed in self._patches():
                with contextlib.suppress(*() if is_needed else (InterpreterNotKnown,)):
                    stack.enter_context(replaced(*wrapped(path, patch)))
            try:
                yield
            finally:  # whoever patched over it meanwhile may hold on to a patch
                self._watchers, self._launch = (), None

    def _patches(self) -> Iterator[tuple[str, Method, bool]]:
        for name in f"{MOVES} {POINTING}".split():
            yield _path(name), _carry, False
        notes = defaultdict[str, list[Note]](
            list, {path: [_carry_to_block] for path in OF_BLOCKS}
        )
        for watcher in self._watchers:
            for name, note in watcher.notes():
                notes[name].append(note)
        for name, told in notes.items():
            yield _path(name), partial(self._note, told), False
        for name, form in _ACCESSES.items():
            yield _path(name), partial(self._access, form), True
        yield "GridExecutor._init_args_hst", self._begin, True
        yield "_implicit_cvt", self._mark_argument, True

    def _begin(self, method: Method, executor: Any, args: Any, kwargs: Any) -> Any:
        host_args, host_kwargs = method(executor, args, kwargs)
        if self._watchers:
            self._launch = launch = InterpretedLaunch(executor.fn, self._known)
            given = dict(zip(executor.arg_names, host_args, strict=False)) | host_kwargs
            self._attempt(launch.learn, given)
            for watcher in self._watchers:
                self._attempt(watcher.begun, launch, (*args, *kwargs.values()))
        return host_args, host_kwargs

    def _mark_argument(self, method: Method, argument: Any) -> Any:
        made, launch = method(argument), self._launch
        if launch is not None and id(argument) in launch.views:
            made.handle.attr[ORIGIN] = id(argument)
        return made

    def _note(
        self, notes: Sequence[Note], method: Method, of: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = method(of, *args, **kwargs)
        if self._launch is not None:
            operation = Operation(self._launch, of, method, args, kwargs, _several(result))
            for note in notes:
                self._attempt(note, operation)
        return result

    def _access(
        self, form: AccessForm, method: Method, builder: Any, *args: Any, **kwargs: Any
    ) -> Any:
        made, kept, mask_at = None, None, form[2]
        if self._launch is not None:
            made = self._attempt(_account, self._launch, form, builder, args)
        if made is None:
            return method(builder, *args, **kwargs)
        for watcher in self._watchers:
            lanes = self._attempt(watcher.before, made)
            kept = lanes if kept is None else kept
        if kept is None:
            result = method(builder, *args, **kwargs)
        elif mask_at is None:
            # Where one lane is to be left out none is made: locks are numbers, and no tiles.
            result = Handle(np.zeros_like(args[2].data), args[2].dtype.scalar)
        else:
            mask = Handle(kept.reshape(made.pointers.data.shape), tl.int1)
            result = method(builder, *args[:mask_at], mask, *args[mask_at + 1 :], **kwargs)
        for watcher in self._watchers:
            self._attempt(watcher.after, made, result)
        return result


def _path(name: str) -> str:
    return name if "." in name else f"InterpreterBuilder.create_{name}"


def _account(launch: InterpretedLaunch, form: AccessForm, builder: Any, args: Any) -> Access:
    kind, at, mask_at = form
    about = executing(launch, kind), launch, builder.grid_idx, args[at]
    width = shipped._get_np_dtype(args[at].get_element_ty()).itemsize
    if mask_at is None:
        return Access(*about, np.True_, width, None, True)
    # A block's mask comes as an array, all others as handles.
    on = args[mask_at].data if isinstance(args[mask_at], Handle) else args[mask_at]
    value = None if kind == "load" else args[mask_at - 1]
    return Access(*about, on, width, value, getattr(args[0], "name", "") == "XCHG")


# --- where pointers point into


def _carry(method: Method, builder: Any, *args: Any, **kwargs: Any) -> Any:
    result = method(builder, *args, **kwargs)
    for arg in args:
        if isinstance(arg, Handle) and ORIGIN in arg.attr:
            pointers = [x for x in args if isinstance(x, Handle) and x.dtype.scalar.is_ptr()]
            if all(x.attr.get(ORIGIN) == arg.attr[ORIGIN] for x in pointers):
                for handle in _several(result):
                    handle.attr[ORIGIN] = arg.attr[ORIGIN]
            break
    return result


def _carry_to_block(step: Operation) -> None:
    if ORIGIN in step.of.base.attr:
        step.results[0].attr[ORIGIN] = step.of.base.attr[ORIGIN]


# --- lines


def executing(launch: InterpretedLaunch, operation: str) -> Site:
    """The innermost line alone where the kernel's is not found."""
    lines, instruction = list[SourceLine](), -1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is launch.code or is_users(code.co_filename):
            instruction = instruction if lines else frame.f_lasti
            lines.append(_line(code.co_filename, frame.f_lineno, code.co_name))
        if code is launch.code:
            return Site(launch.kernel, tuple(lines[::-1]), operation, instruction)
        frame = frame.f_back
    return Site(launch.kernel, tuple(lines[:1]), operation, instruction)


@functools.cache
def _line(file: str, number: int, function: str) -> SourceLine:
    return SourceLine(file, number, linecache.getline(file, number).strip(), function=function)
