"""KernelCall: a launch as a compiler sees it, by the types of its arguments and the values of its constants."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Pointed:
    """Stands for a tensor that a kernel gets a pointer to."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        """An address that is aligned; on whether a tensor's is, no error depends."""
        return 16

    def __repr__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel, without its tensors."""

    kernel: Any
    given: Mapping[str, Any]
    """Its arguments and options by name."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is compiled by: launches of one key compile alike."""
        constants = self.constants
        kinds = {name: repr(one) if name in constants else _kind(one) for name, one in self.given.items()}
        return id(self.kernel), *sorted(kinds.items())

    @property
    def constants(self) -> dict[str, Any]:
        """The values of its constants, those that are its parameters' defaults left out."""
        return {name: value for name, value in self.given.items() if name in constants_of(self.kernel.fn)}


class Calls:
    """The launches of a run, one of each way in which a kernel would be compiled, and the latest that raised."""

    def __init__(self) -> None:
        self.by_key: dict[Any, KernelCall] = {}
        self.failed: KernelCall | None = None

    @contextlib.contextmanager
    def noting(self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Notes a launch that is made while it is open."""
        called: dict[Any, KernelCall] = {}
        with contextlib.suppress(Exception):  # of arguments of the user's own making
            call = described_call(kernel, args, kwargs)
            called[call.key] = call
        try:
            yield
        except Exception:
            self.failed = next(iter(called.values()), None)
            raise
        if not kwargs.get("warmup"):
            self.by_key = called | self.by_key


def described_call(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    """A launch as `kernel.run` is given it."""
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    named = {name: _described(one) for name, one in given.items() if name not in ("grid", "warmup")}
    return KernelCall(kernel, named)


@functools.cache
def constants_of(function: Any) -> frozenset[str]:
    """The parameters of a kernel's function that are constants of the compiled code."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(one.name for one in parameters if "constexpr" in str(one.annotation))


def _described(argument: Any) -> Any:
    if isinstance(argument, tuple):
        parts = [_described(one) for one in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    if hasattr(argument, "data_ptr"):
        return Pointed(argument.dtype)
    if hasattr(argument, "block_shape") and hasattr(argument, "base"):
        descriptor = copy.copy(argument)
        descriptor.base = Pointed(argument.base.dtype)
        return descriptor
    return argument


def _kind(argument: Any) -> Any:
    """What of an argument that is no constant decides how it is compiled."""
    if type(argument) is int:
        return "int", argument == 1, argument.bit_length() > 31  # 1 is taken for a constant
    if isinstance(argument, (bool, float)):
        return type(argument).__name__
    return tuple(map(_kind, argument)) if isinstance(argument, tuple) else repr(argument)
