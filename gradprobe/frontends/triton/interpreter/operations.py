"""Operations: what the methods of Triton's interpreter do, one by one, for who asks to be called after each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array
from ....processes.attributes import replaced

Handle: Any = shipped.TensorHandle
Method = Callable[..., Any]
# Methods of the builder whose result holds what its operands hold, moved about but not changed.
_MOVES = "splat unsplat broadcast expand_dims reshape trans select cat join split gather"
REARRANGING = tuple(f"create_{name}" for name in _MOVES.split())
# Those whose result holds, in place, pointers that come from its first operand.
IN_PLACE = ("create_addptr", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int")
# What makes the pointers of blocks. Block pointers are gone from Triton 3.8 on.
OF_BLOCKS = ("BlockPointerHandle.materialize_pointers", "TensorDescHandle.materialize_pointers")


@dataclass(slots=True)
class Operation:
    """What a method of the interpreter did."""

    of: Any
    """What it is a method of: the builder, a block, a reduction."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    method: Method
    """As it was, for other arguments."""

    @property
    def results(self) -> Sequence[Any]:
        return _each(self.result)

    def moving(self, numbers: Callable[[Any], Array | None]) -> list[Array]:
        """What it makes of whole numbers in the place of what some of its arguments hold, for each of its results.

        Args:
            numbers: gives those that stand for an argument, in its shape; None where it is to stay.
        """
        args = []
        for arg in self.args:
            values = numbers(arg)
            kind = tl.int64 if values is not None and values.dtype.itemsize == 8 else tl.int32
            args.append(arg if values is None else Handle(values, kind))
        return [each.data for each in _each(self.method(self.of, *args, **self.kwargs))]


def _each(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


Note = Callable[[Operation], object]


@contextlib.contextmanager
def noting(notes: Mapping[str, Sequence[Note]]) -> Iterator[None]:
    """While open, these are called after each operation. A method that this release of Triton lacks is left out."""
    with contextlib.ExitStack() as stack:
        for name, each in notes.items():
            of, _, attribute = name.rpartition(".")
            owner = getattr(shipped, of or "InterpreterBuilder", None)
            if hasattr(owner, attribute):
                stack.enter_context(replaced(owner, attribute, _noted(getattr(owner, attribute), each)))
        yield


def _noted(method: Method, notes: Sequence[Note]) -> Method:
    def noted(of: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(of, *args, **kwargs)
        operation = Operation(of, args, kwargs, result, method)
        for note in notes:
            note(operation)
        return result

    return noted
