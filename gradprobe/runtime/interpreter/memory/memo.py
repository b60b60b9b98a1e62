"""Memo: what launches did in earlier checks of a watched file, for those that would do the same again.

A launch is the same where its kernel's code is, with all that the code reaches; the arguments; the grid; what the
elements of every tensor among the arguments hold, and how they lie; and the language. Kept is what left nothing to
tell: each access met elements of an argument, none that nothing had written, and no two programs met.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import math
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import MAPPED, Array, Elements, Unwritten
from ....model.mechanisms import is_on, note
from .findings import CodeLine, Program
from .kernel_code import Digest, Language, Unknown
from .views import NO_ORIGIN, Origins, View
from .watched_launch import LastWriters, Launch, bits_at

if TYPE_CHECKING:
    from .stream import Stream

# Bytes of all tensors of a launch that are looked at; bytes and number of all that is kept.
_MOST_SEEN, _MOST_KEPT, _MOST_LAUNCHES = 1 << 28, 1 << 29, 1 << 10
# An address counts by what it leaves when it is divided by this: no access is wider.
_WIDEST = 64
_SIZES = (1, 2, 4, 8)
_KEPT: list[tuple[Path, Language]] = []
"""The folder, and the language of all launches there."""


def keep_in(folder: str) -> None:
    """From now on this process and its forks keep launches in a folder, and take over those that are there.

    To be called before there is any target.
    """
    _KEPT[:] = [(Path(folder), Language())] if is_on("memo") else []


def may_recall() -> bool:
    """Whether launches are kept, and the language is what it was then. To be asked where nobody looks on."""
    return bool(_KEPT) and _KEPT[0][1].is_same()


@dataclass(frozen=True)
class Stored:
    """What a launch left in one storage."""

    number: int
    """Of the storage, in the order of the launch's."""
    width: int
    """Of a unit, in bytes."""
    marks: Array
    """Packed bits: a 1 for each unit of the storage where it stored."""
    bits: Array
    """[N] of those units, in order."""
    lines: tuple[tuple[int, int], ...]
    """Where the storage had unwritten elements: the lines that stored there last, each as the number of its code, and
    how far it stands below that code's first line."""


@contextlib.contextmanager
def recalling(executor: Any, stream: Stream, writers: LastWriters, errors: Mapping[str, None]) -> Iterator[None]:
    """Has a launch do at once what it did in an earlier check; one that was run without new errors is kept."""
    plain, before = executor.fn, len(errors)
    executor.fn = recalled = _Recalled(plain, stream, writers)
    try:
        yield
    finally:
        executor.fn = plain
        if recalled.launch is not None and recalled.left == 0 and len(errors) == before:
            recalled.launch.keep(writers)


class _Recalled:
    """The kernel of one launch, which the interpreter calls for each program: none is run that an earlier check ran."""

    def __init__(self, function: Any, stream: Stream, writers: LastWriters) -> None:
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.__globals__, self.__code__ = function.__globals__, function.__code__
        self._function, self._stream, self._writers = function, stream, writers
        self.launch: KeyedLaunch | None = None
        """None where it was recalled, or it cannot be said whether it is the same."""
        self.left: int | None = None
        """How many programs are to be run; None before the first is called."""

    def __call__(self, **arguments: Any) -> None:
        """Runs the next program of the grid."""
        if self.left is None:
            grid: Program = tuple(map(int, shipped.interpreter_builder.grid_dim))  # type: ignore[assignment]
            self.left = math.prod(grid)
            with contextlib.suppress(Unknown):
                self.launch = KeyedLaunch(self._function, arguments, grid, self._stream, self._writers)
                if self.launch.recalled(self._writers):
                    self.launch, self.left = None, 0
        if self.left:
            self._function(**arguments)
            self.left -= 1


class KeyedLaunch:
    """One launch, told by its key."""

    def __init__(
        self, function: FunctionType, arguments: Mapping[str, Any], grid: Program, stream: Stream, writers: LastWriters
    ) -> None:
        """Raises Unknown: it cannot be said whether a launch is the same."""
        assert stream.launch is not None
        self._launch, digest = stream.launch, Digest()
        digest.value(function)
        digest.add(self._launch.kernel, grid)
        for name, value in arguments.items():
            digest.add(name)
            _tell_argument(digest, value, stream.origins)
        _tell_memory(digest, self._launch, writers.unwritten)
        self._key, self._codes, self._storages = digest.hex, digest.codes, _storages(self._launch)

    def recalled(self, writers: LastWriters) -> bool:
        """Does what the launch did before; returns whether that was kept."""
        stored, lows = _read(self._key), list(self._storages)
        if stored is None:
            return False
        note("memo", spoke=True)
        for one in stored:
            low, offsets = lows[one.number], np.flatnonzero(np.unpackbits(one.marks)) * one.width
            shipped._interpreter.store(_addresses(low, offsets), one.bits, np.ones(len(one.bits), bool))
            writers.stored(self._launch, low, offsets, one.width, tuple(self._line(*each) for each in one.lines))
        return True

    def keep(self, writers: LastWriters) -> None:
        """Called once the launch has run, where nothing went wrong."""
        if not self._launch.is_plain:
            return
        numbers, last = {low: number for number, low in enumerate(self._storages)}, writers.lines_of(self._launch)
        stored = []
        with contextlib.suppress(Unknown):
            for low, unit, units in self._launch.stores.units():
                marks = np.zeros(-(-self._storages[low] // unit), bool)
                marks[units] = True
                bits, lines = bits_at(_addresses(low, units * unit), unit), map(self._relative, last.get(low, ()))
                stored.append(Stored(numbers[low], unit, np.packbits(marks), bits, tuple(lines)))
            _write(self._key, stored)

    def _relative(self, line: CodeLine) -> tuple[int, int]:
        """A line as far as it stays the same where its function is moved. Raises Unknown."""
        at = [at for at, code in enumerate(self._codes) if line[0] is code]
        if len(at) != 1:
            raise Unknown(line)
        return at[0], line[1] - self._codes[at[0]].co_firstlineno

    def _line(self, at: int, below: int) -> CodeLine:
        return self._codes[at], self._codes[at].co_firstlineno + below


def _addresses(low: int, offsets: Array) -> Array:
    return offsets.astype(np.uint64) + np.uint64(low)


# What a key tells


def _storages(launch: Launch) -> dict[int, int]:
    """The size in bytes of each storage of the arguments, by its address."""
    return {view.low: view.high - view.low for view in launch.views}


def _tell_argument(digest: Digest, value: Any, origins: Origins) -> None:
    """Tells an argument as the interpreter gives it to a kernel; of a pointer, which tensor's. Raises Unknown."""
    if not isinstance(value, tl.tensor):
        digest.value(value)
        return
    data, origin = value.handle.data, origins.of(value.handle)
    if not value.dtype.is_ptr():
        digest.add(str(value.type), data.dtype.str, data.shape, data.tobytes())
    elif isinstance(origin, int) and origin != NO_ORIGIN:
        digest.add(str(value.type), origin)
    else:
        raise Unknown(value)


def _tell_memory(digest: Digest, launch: Launch, unwritten: Unwritten) -> None:
    """Tells what the elements of the arguments hold, and how they lie. Raises Unknown."""
    storages = _storages(launch)
    if sum(storages.values()) > _MOST_SEEN:
        raise Unknown(launch)
    numbers = {low: number for number, low in enumerate(storages)}
    for view in launch.views:
        # A copy of what lies on a GPU; what no number of numpy holds; gaps of which no account is kept.
        if view.home != view.low or view.elements.itemsize not in _SIZES or view.elements.span > MAPPED:
            raise Unknown(view)
        digest.add(numbers[view.low], *_place(view), *(_place(view.known) if view.known else ()))
        for part in _elements(view, unwritten):
            digest.bytes(np.ascontiguousarray(part))
    for low, size in storages.items():
        digest.add(size, low % _WIDEST, low in unwritten.places)


def _place(view: View) -> tuple[object, ...]:
    elements = view.elements
    return view.name, view.parameter, view.start - view.low, elements.shape, elements.strides, elements.itemsize


def _elements(view: View, unwritten: Unwritten) -> tuple[Array, ...]:
    """What the elements of a view hold; where some have no value, which have, and 0 in the place of the others'.

    Raises:
        Unknown: the account of those without a value is of elements of another size.
    """
    elements, size = view.elements, view.elements.itemsize
    if not elements.count:
        return ()
    room = np.ctypeslib.as_array((ctypes.c_uint8 * (elements.span * size)).from_address(view.start))
    held = _at_elements(room.view(f"u{size}"), elements)
    if not unwritten.knows(view.low):
        return (held,)
    if (marks := unwritten.by_granule(view.low, size)) is None:
        raise Unknown(view)
    has_value = _at_elements(marks[(view.start - view.low) // size :], elements) == 0
    return has_value, np.where(has_value, held, 0)


def _at_elements(values: Array, elements: Elements) -> Array:
    """Those of the values of a span that belong to elements, each once."""
    shape = [size if step else 1 for size, step in zip(elements.shape, elements.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(values, shape, [step * values.itemsize for step in elements.strides])


# The folder


def _folder() -> Path:
    return _KEPT[0][0]


def _read(key: str) -> list[Stored] | None:
    file = _folder() / key
    with contextlib.suppress(FileNotFoundError):
        stored: list[Stored] = pickle.loads(file.read_bytes())
        os.utime(file)
        return stored
    return None


def _write(key: str, stored: Sequence[Stored]) -> None:
    """Keeps what a launch left, whole or not at all, in the place of those that were longest of no use."""
    held = pickle.dumps(stored, pickle.HIGHEST_PROTOCOL)
    with contextlib.suppress(OSError):  # there is no room, the folder is gone, or another process makes room
        _make_room(len(held))
        with tempfile.NamedTemporaryFile(dir=_folder(), delete=False) as file:
            file.write(held)
        os.replace(file.name, _folder() / key)


def _make_room(size: int) -> None:
    """Raises FileNotFoundError: another process makes room just now."""
    states = {file: file.stat() for file in _folder().iterdir()}
    oldest_last = sorted(states, key=lambda file: (states[file].st_mtime, file), reverse=True)
    left = size + sum(state.st_size for state in states.values())
    while oldest_last and (left > _MOST_KEPT or len(oldest_last) >= _MOST_LAUNCHES):
        oldest = oldest_last.pop()
        oldest.unlink()
        left -= states[oldest].st_size
