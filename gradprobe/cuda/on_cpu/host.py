"""Calls functions of the host in a library: what they launch, allocate, fill and copy goes to Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..source import Unit
from .library import Library, library_of

_Sizes = ctypes.c_uint32 * 3


class CLaunch(ctypes.Structure):
    """gp_host_launch of the header."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("grid", _Sizes),
        ("block", _Sizes),
        ("shared_bytes", ctypes.c_uint64),
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    )


_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(CLaunch))
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_FAILED = 719  # cudaErrorLaunchFailure


class _CPython(ctypes.Structure):
    """gp_host of the header."""

    _fields_ = (("launch", _LAUNCH), ("allocate", _ALLOCATE), ("fill", _FILL), ("copy", _COPY))


@dataclass(frozen=True)
class Python:
    """What runs the work of host functions. Each may raise, which ends the call."""

    launch: Callable[[Library, CLaunch], None]
    allocate: Callable[[int], int]
    """Takes bytes, gives an address."""
    fill: Callable[[int, int, int], None]
    """Takes an address, a value and bytes."""
    copy: Callable[[int, int, int], None]
    """Takes where to, where from, and bytes."""


def call_host(unit: Unit, function: str, values: Sequence[Any], python: Python) -> int:
    """Calls a function of the host with C values; its cudaError_t, 0 where it gives none.

    Raises:
        Whatever what it launches raises: it goes on behind that, but nothing is launched any more.
    """
    library = library_of(unit, ())
    raised: list[BaseException] = []

    def guarded(act: Callable[..., Any]) -> Callable[..., int]:
        def acts(*given: Any) -> int:
            if raised:
                return _FAILED
            try:
                act(*given)
            except BaseException as error:  # C++ can let nothing through
                raised.append(error)
                return _FAILED
            return 0

        return acts

    def allocate(out: Any, size: int) -> None:
        out[0] = python.allocate(size)

    described = _CPython(
        _LAUNCH(guarded(lambda launch: python.launch(library, launch.contents))),
        _ALLOCATE(guarded(allocate)),
        _FILL(guarded(lambda to, value, size: python.fill(to or 0, value, size))),
        _COPY(guarded(lambda to, source, size: python.copy(to or 0, source or 0, size))),
    )
    library.set_python(described)
    addresses = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
    code: int = library.host(function)(addresses)
    if raised:
        raise raised[0]
    return code
