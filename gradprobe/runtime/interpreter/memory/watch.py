"""Memory: what is seen of the accesses that Triton's interpreter makes, by wrapping the methods that make them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array, Unwritten
from ....model.failures import fault_words
from ....source.text import SourceLine
from ....targets.surroundings import replaced
from ..bfloat16 import InterpreterNotKnown
from .accesses import Accesses
from .findings import AccessFinding, places
from .kernel_code import Language
from .launch import Launch
from .memo import Recalled, may_recall
from .views import BLOCKS, IN_PLACE, REARRANGING, Handle, Method, Origins, View, view_of

if TYPE_CHECKING:
    from torch import Tensor


class Memory:
    """What was seen of the accesses of all kernels that ran while it was open."""

    def __init__(self, tensors: Mapping[str, Tensor], unwritten: Unwritten) -> None:
        self._known = tuple(view_of(tensor, tensor, name) for name, tensor in tensors.items())
        self._origins = Origins()
        self._accesses = Accesses(self._origins, unwritten)
        self.counts = self._accesses.counts
        self._failures: dict[str, None] = {}
        self._launches = 0
        self.is_open = True
        self.language: Language | None = None
        """That in which launches may be taken over from earlier checks; None where they may not."""

    @property
    def findings(self) -> tuple[AccessFinding, ...]:
        """Accesses outside their tensor first, then races, then reads of what was never written."""
        return self._accesses.findings

    @property
    def writers(self) -> dict[str, tuple[str, SourceLine]]:
        """By the caller's input that a kernel changed: the first kernel that did, and its line."""
        return {name: (kernel, places(lines)[0]) for name, (kernel, lines) in self._accesses.writers.items() if lines}

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong in watching. The accesses concerned were executed as they were, and not judged."""
        return tuple(self._failures)

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs; "" where none does."""
        launch = self._accesses.launch
        return launch.kernel if launch else ""

    @property
    def code(self) -> CodeType | None:
        """The code of the kernel that runs."""
        launch = self._accesses.launch
        return launch.code if launch else None

    def parts(self, pointers: Any, on: Array) -> list[tuple[View, Array, Array]]:
        """For each tensor that these pointers access: its view, the flat numbers of the lanes, and their addresses."""
        launch = self._accesses.launch
        if launch is None:
            return []
        lanes = np.flatnonzero(np.broadcast_to(on, pointers.data.shape))
        addresses = pointers.data.reshape(-1)[lanes]
        found = launch.by_view(self._origins.of(pointers), addresses, lanes)
        return [(view, lanes[some], addresses[some]) for view, some in found if view is not None]

    def patches(self) -> list[tuple[Any, str, Callable[[Method], Method]]]:
        """(owner, method name, wrapper) of each method of the interpreter that is wrapped."""
        builder = shipped.InterpreterBuilder
        # Block pointers are gone from Triton 3.8 on.
        blocks = [getattr(shipped, name) for name in BLOCKS if hasattr(shipped, name)]
        return [
            (shipped.GridExecutor, "__call__", self._launching),
            (shipped.GridExecutor, "_init_args_hst", self._learning),
            (shipped, "_implicit_cvt", self._marking),
            *((builder, name, self._origins.rearranging) for name in REARRANGING),
            *((builder, name, self._origins.in_place) for name in IN_PLACE),
            *((block, "materialize_pointers", self._origins.of_base) for block in blocks),
            (builder, "create_get_program_id", self._numbering),
            (builder, "create_masked_load", self._loading),
            (builder, "create_masked_store", self._storing),
            (builder, "create_atomic_rmw", self._changing),
            (builder, "create_atomic_cas", self._comparing),
        ]

    def _launching(self, original: Method) -> Method:
        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._accesses.launch
            if self.is_open:
                self._launches += 1
                self._accesses.launch = Launch(self._launches, executor.fn, self._known)
            try:
                with self._recalled(executor) if self.is_open and self._may_recall else contextlib.nullcontext():
                    return original(executor, *args, **kwargs)
            finally:
                self._accesses.launch = before

        return launch

    @property
    def _may_recall(self) -> bool:
        return self.language is not None and self.language.is_same()

    @contextlib.contextmanager
    def _recalled(self, executor: Any) -> Iterator[None]:
        """Has a launch do at once what it did in an earlier check."""
        plain, recalled = executor.fn, Recalled(executor.fn, self._accesses, self._failures)
        executor.fn = recalled
        try:
            yield
        finally:
            recalled.close()
            executor.fn = plain

    def _learning(self, original: Method) -> Method:
        def init_args(executor: Any, args: Any, kwargs: Any) -> Any:
            host_args, host_kwargs = original(executor, args, kwargs)
            launch = self._accesses.launch
            if launch is not None:
                names = executor.arg_names
                given, on_host = dict(zip(names, args, strict=False)), dict(zip(names, host_args, strict=False))
                self._watching(lambda: launch.learn(given | kwargs, on_host | host_kwargs))
            return host_args, host_kwargs

        return init_args

    def _marking(self, original: Method) -> Method:
        def implicit_cvt(argument: Any) -> Any:
            made = original(argument)
            launch = self._accesses.launch
            if launch is not None and id(argument) in launch.origins:
                self._origins.set(made.handle, launch.origins[id(argument)])
            return made

        return implicit_cvt

    def _numbering(self, original: Method) -> Method:
        def program_id(builder: Any, axis: int) -> Any:
            launch = self._accesses.launch
            if launch is not None:
                launch.numbered(tuple(builder.grid_dim), axis)
            return original(builder, axis)

        return program_id

    def _loading(self, original: Method) -> Method:
        def load(builder: Any, pointers: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            width = int(shipped._get_np_dtype(pointers.get_element_ty()).itemsize)
            keep = self._look("load", builder, pointers, mask, width)
            return original(builder, pointers, _narrowed(mask, pointers, keep), *args, **kwargs)

        return load

    def _storing(self, original: Method) -> Method:
        def store(builder: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            keep = self._look("store", builder, pointers, mask, value.data.dtype.itemsize, value.data)
            return original(builder, pointers, value, _narrowed(mask, pointers, keep), *args, **kwargs)

        return store

    def _changing(self, original: Method) -> Method:
        def atomic(builder: Any, op: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            self._synchronise(builder, getattr(op, "name", "") == "XCHG")
            keep = self._look("atomic", builder, pointers, mask, value.data.dtype.itemsize)
            mask = _narrowed(mask, pointers, keep)
            result = original(builder, op, pointers, value, mask, *args, **kwargs)
            self._watching(self._accesses.settle)
            return result

        return atomic

    def _comparing(self, original: Method) -> Method:
        def compare_and_swap(builder: Any, pointers: Any, expected: Any, value: Any, *args: Any) -> Any:
            self._synchronise(builder, True)
            on = np.ones(pointers.data.shape, bool)
            keep = self._look("atomic", builder, pointers, on, value.data.dtype.itemsize)
            operands = (pointers, expected, value)
            if keep is None:
                result = original(builder, *operands, *args)
            else:
                result = Handle(np.zeros(expected.data.size, expected.data.dtype), expected.dtype.scalar)
                kept = [Handle(each.data.reshape(-1)[keep], each.dtype) for each in operands]
                result.data[keep] = original(builder, *kept, *args).data
                result.data = result.data.reshape(expected.data.shape)
            self._watching(self._accesses.settle)
            return result

        return compare_and_swap

    def _look(self, kind: str, builder: Any, pointers: Any, mask: Any, width: int, values: Any = None) -> Array | None:
        if self._accesses.launch is None:
            return None
        # A block's mask comes as an array, all others as handles.
        on = mask.data if isinstance(mask, Handle) else mask
        look = self._accesses.look
        return self._watching(lambda: look(kind, builder.grid_idx, pointers, on, width, values))

    def _synchronise(self, builder: Any, is_exchange: bool) -> None:
        """Notes an exchange, which locks are made of."""
        launch = self._accesses.launch
        if is_exchange and launch is not None:
            launch.stores.enter(builder.grid_idx)
            launch.stores.is_ordered = True

    def _watching(self, action: Callable[[], Any]) -> Any:
        """The action's result; None where it fails, so that a fault of the watcher does not stop the kernel."""
        try:
            return action()
        except Exception as error:
            self._failures[fault_words(error)] = None
            return None


def _narrowed(mask: Any, pointers: Any, keep: Array | None) -> Any:
    """The mask as it was, or the lanes to keep in the shape of the pointers."""
    return mask if keep is None else Handle(keep.reshape(pointers.data.shape), tl.int1)


@contextlib.contextmanager
def watched_memory(
    tensors: Mapping[str, Tensor], unwritten: Unwritten | None = None, *, recalls: bool = False
) -> Iterator[Memory]:
    """While open, every access of a kernel in Triton's interpreter is judged; results stay what they were.

    An access that leaves the storage of its tensor is not executed: a load gives the mask's `other`, or 0, and a store
    or an atomic does nothing. Everything else happens as without the watcher. A tensor's elements are those of the
    view that was passed; an address of unknown origin belongs to the storage that holds it. Views of over 2^24
    elements with gaps in between count as if they had none.

    Args:
        tensors: those that the caller knows by name. Others are named after the kernel's parameter, without "ptr".
        unwritten: which memory has no value as yet; without it, no read is reported as one of unwritten memory.
        recalls: whether launches are taken over from earlier checks, where these are kept.

    Raises:
        InterpreterNotKnown: this release of Triton lacks something that has to be watched.
    """
    memory = Memory(tensors, Unwritten() if unwritten is None else unwritten)
    patches = memory.patches()
    missing = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _ in patches if not hasattr(owner, name)]
    if missing:
        raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {', '.join(missing)}")
    is_plain = recalls and may_recall()
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, memory, "is_open", False)
        for owner, name, watching in patches:
            stack.enter_context(replaced(owner, name, watching(getattr(owner, name))))
        memory.language = Language() if is_plain else None
        yield memory
