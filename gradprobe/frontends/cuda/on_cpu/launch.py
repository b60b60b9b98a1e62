"""Runs a kernel on this CPU, and says what its threads did wrong, with the lines of the source."""

from __future__ import annotations

import ctypes
import linecache
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....model.failures import KernelStopped, TargetFailure
from ....model.memory_finding import BARRIER, MISALIGNED, OUTSIDE, RACE, SHUFFLE, UNWRITTEN
from ....model.number import listed, plural, spans
from ....processes.child import add_to_stack
from ....source.text import SourceLine
from ..kernel import KernelEntry, Sizes
from ..watch import KINDS, MOST_RECORDS, RECORD, CudaFinding, CudaSite, Recorded, Watch, add_findings
from .build import HERE, MOST_SHARED, WRAPPER
from .library import CRegion, Library, Named, Regions, fields

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = SourceLine("", 0, "")


def lines_of(library: Path, addresses: Sequence[int]) -> dict[int, tuple[SourceLine, ...]]:
    """The lines of return addresses, by addr2line: each the innermost, then those of the functions it is inlined in."""
    new = [address for address in dict.fromkeys(addresses) if (library, address) not in _LINES]
    # A return address is the address of the instruction after the call.
    words = ["addr2line", "--addresses", "--inlines", "--exe", str(library), *(hex(address - 1) for address in new)]
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout if new else ""
    except (OSError, subprocess.CalledProcessError):
        told = ""
    for part in re.split("^0x", told, flags=re.MULTILINE)[1:]:
        address, *places = part.splitlines()
        _LINES[library, int(address, 16) + 1] = tuple(_lines_among(places))
    return {address: _LINES.get((library, address), ()) for address in addresses}


_LINES: dict[tuple[Path, int], tuple[SourceLine, ...]] = {}


def _lines_among(places: Sequence[str]) -> Iterator[SourceLine]:
    for place in places:
        file, _, number = place.partition(" (")[0].rpartition(":")
        is_own = Path(file).name == WRAPPER or Path(file).resolve().is_relative_to(HERE)
        if file and number.isdigit() and not is_own:
            linecache.checkcache(file)  # it may have changed since another library was compiled from it
            yield SourceLine(file, int(number), linecache.getline(file, int(number)).strip())


_MOST_FINDINGS = 64
_NONE = (1 << 64) - 1
_HOW = ("read", "write", "atomic")
_ENDED = 3
_Triple = ctypes.c_uint32 * 3


class _CSite(ctypes.Structure):
    _fields_ = (("pc", ctypes.c_uint64), ("thread", _Triple), ("block", _Triple), ("access", ctypes.c_int32))


class _CFinding(ctypes.Structure):
    _fields_ = (
        *fields(ctypes.c_int32, "kind", "region", "array", "bytes"),
        *fields(ctypes.c_int64, "offset"),
        *fields(_CSite, "now", "before"),
        *fields(ctypes.c_int64, "count"),
    )


class _CLaunch(ctypes.Structure):
    """gp_launch of the runtime."""

    _fields_ = (
        *fields(ctypes.c_void_p, "kernel", "arguments"),
        *fields(_Triple, "grid", "block"),
        *fields(ctypes.c_uint64, "shared_bytes", "seed"),
        *fields(ctypes.c_void_p, "regions"),
        *fields(ctypes.c_int32, "n_regions"),
        *fields(ctypes.c_uint64, "library"),
        *fields(ctypes.c_void_p, "findings"),
        *fields(ctypes.c_int32, "max_findings", "n_findings", "is_last_fatal"),
        *fields(ctypes.c_void_p, "records"),
        *fields(ctypes.c_int64, "max_records", "n_records"),
        *fields(ctypes.c_void_p, "copies"),
        *fields(ctypes.c_int64, "n_copies"),
        *fields(ctypes.c_int32, "is_apart", "together", "one_of", "signal"),
        ("stopped", _CSite),
        ("calls", ctypes.c_uint64 * 8),
        ("message", ctypes.c_char * 512),
    )


def run(
    entry: KernelEntry,
    library: Library,
    code: tuple[int, int],
    grid: Sizes,
    block: Sizes,
    shared_bytes: int,
    given: Sequence[tuple[str, Tensor]],
    watch: Watch,
) -> None:
    """Runs every thread of every block, and tells the watch what they did wrong.

    Args:
        code: the address of a function that takes the addresses of its arguments, and the address of these.
        given: the tensors that it may touch, by name.

    Raises:
        TargetFailure: there is not so much shared memory.
        KernelStopped: the kernel could not run to its end.
    """
    if not 0 <= shared_bytes <= MOST_SHARED:
        raise TargetFailure(f"kernel {entry.name}: {shared_bytes:,} bytes of shared memory; 0 to {MOST_SHARED:,} fit")
    regions, given = Regions(), [(_called(name, each, watch), each) for name, each in given]
    regions.add_tensors(given, watch.unwritten)
    regions.add_arrays(library, entry, shared_bytes)
    c_regions = (CRegion * len(regions.all))(*regions.all)
    findings = (_CFinding * _MOST_FINDINGS)()
    recording = watch.recording
    if recording is not None:
        recording.before(dict(given))
    records, copies = (np.empty(MOST_RECORDS if recording is not None else 0, RECORD) for _ in range(2))
    described = _CLaunch(
        *code, _Triple(*grid), _Triple(*block), shared_bytes, watch.seed,
        ctypes.addressof(c_regions), len(regions.all), library.base,
        findings=ctypes.addressof(findings), max_findings=_MOST_FINDINGS,
        records=records.ctypes.data if recording is not None else None, max_records=len(records),
        copies=copies.ctypes.data,
    )  # fmt: skip
    is_stopped = library.loaded.gp_run(ctypes.byref(described))
    if recording is not None and described.n_records <= len(records):
        is_apart = bool(described.is_apart) and described.n_copies <= len(copies)
        launch = Recorded(
            entry=entry,
            lines=partial(lines_of, library.file),
            tensors=[(named.name, named.tensor) for named in regions.arrays if named.tensor is not None],
            records=records[: described.n_records].copy(),
            bases=[region.base for region in regions.all],
            together=described.together,
            one_of=described.one_of,
            copies=copies[: described.n_copies].copy() if is_apart else None,
        )
        recording.launches.append(launch)
    seen = [_finding(entry.name, library, regions, found) for found in findings[: described.n_findings]]
    fatal = seen.pop() if described.is_last_fatal else None
    add_findings(watch, seen)
    if is_stopped:
        words = fatal.sentence if fatal else f"{entry.name}: {described.message.decode(errors='replace')}"
        words = _of_signal(entry, library, described) if described.signal else words
        raise KernelStopped(f"a kernel could not run to its end: {words}")


_SIGNALS = {
    signal.SIGFPE: "divides an integer by 0, which a GPU leaves undefined,",
    signal.SIGILL: "reaches the end without a return value, or a trap,",
    signal.SIGABRT: "aborts",
    signal.SIGUSR1: "has not ended",
}


def _of_signal(entry: KernelEntry, library: Library, launch: _CLaunch) -> str:
    """What a thread did that a CPU ends a program for, and where; its line is where this process says that it is."""
    lines = [line for at in launch.calls if at for line in lines_of(library.file, (at,))[at] if line.line]
    site = replace(_site(library, launch.stopped, RACE), line=next(iter(lines), UNKNOWN))
    does = _SIGNALS.get(signal.Signals(launch.signal), "accesses memory that is not mapped")
    if launch.stopped.access and launch.signal == signal.SIGSEGV:
        does = "needs more than the 512 KiB of local memory that a GPU has for a thread"
    if lines:
        add_to_stack(lines[0].file, lines[0].line, entry.plain_name)
    return f"{entry.name}: {site.who} {does}" + (f" at {site.place}" if lines else "")


def _called(parameter: str, tensor: Tensor, watch: Watch) -> str:
    """The caller's name of a tensor, or else its parameter's name without a suffix such as `_ptr`."""
    storage = tensor.untyped_storage().data_ptr()
    there = {name: known for name, known in watch.tensors.items() if known.untyped_storage().data_ptr() == storage}
    exact = [name for name, known in there.items() if known.data_ptr() == tensor.data_ptr()]
    if exact or len(there) == 1:
        return (exact or [*there])[0]
    return re.sub(r"(?i)(_ptr|ptr)$", "", parameter) or parameter


def _finding(kernel: str, library: Library, regions: Regions, found: _CFinding) -> CudaFinding:
    kind, now, before = KINDS[found.kind], found.now, found.before
    if kind == SHUFFLE:
        return _shuffle(library, kernel, found)
    named, where = _place(regions, found)
    is_alone = kind in (OUTSIDE, UNWRITTEN, MISALIGNED) or not any(before.block) and before.pc == 0
    second = None if is_alone else _site(library, before, kind)
    return CudaFinding(kind, kernel, named.name, named.is_shared, where, _site(library, now, kind), second, found.count)


_ALL_LANES = 0xFFFFFFFF


def _shuffle(library: Library, kernel: str, found: _CFinding) -> CudaFinding:
    """The lanes that their mask leaves out, or that a shuffle gives no value, and why."""
    asking, sources, getting = found.offset & _ALL_LANES, found.offset >> 32 & _ALL_LANES, found.bytes & _ALL_LANES
    mask = f"the mask 0x{found.array & _ALL_LANES:08x}"
    if not getting:
        whom = "it" if found.offset.bit_count() == 1 else "them"
        words = f"{_lanes(found.offset, 'call')} with {mask}, which leaves {whom} out"
    elif sources & ~found.array:
        words = f"{_lanes(asking, 'read')} lanes outside {mask}"
    else:
        why = "whose threads have ended" if found.before.access else "where there is no thread"
        words = f"{_lanes(getting, 'read')} {_lanes(sources)}, {why}"
    words += f" (what {_lanes(getting, 'get')} of {_lanes(sources)} is undefined)" if getting else ""
    site = replace(_site(library, found.now, SHUFFLE), how="read" if getting else "left out")
    return CudaFinding(SHUFFLE, kernel, "", False, words, site, None, found.count)


def _lanes(bits: int, do: str = "") -> str:
    """The lanes of a mask, and what they do: "lane 3 reads", "lanes 8 to 15 and 20 read"."""
    ranges = spans(lane for lane in range(32) if bits >> lane & 1)
    numbers = listed([str(first) if first == last else f"{first} to {last}" for first, last in ranges])
    is_one = bits.bit_count() == 1
    return f"lane{'' if is_one else 's'} {numbers} {do and do + 's' * is_one}".rstrip()


def _site(library: Library, site: _CSite, kind: str) -> CudaSite:
    ended = site.pc == _NONE or (kind == BARRIER and site.access == _ENDED)
    how = ("ended" if ended else "waits") if kind == BARRIER else _HOW[site.access]
    lines = () if site.pc == _NONE else lines_of(library.file, (site.pc,))[site.pc]
    return CudaSite(next(iter(lines), UNKNOWN), tuple(site.thread), tuple(site.block), how)


def _place(regions: Regions, found: _CFinding) -> tuple[Named, str]:
    """The array and the element of an access; for an access outside all arrays, the nearest one and the distance."""
    if found.region < 0:
        return Named(""), ""
    region = regions.all[found.region]
    address = region.base + found.offset
    if found.array:
        named = regions.arrays[found.array - 1]
        return named, named.index(address, found.bytes)
    named = min(regions.arrays, key=lambda each: max(each.span[0] - address, address - each.span[1] + 1, 0))
    (start, end), unit = named.span, named.element_or(found.bytes)
    if start <= address < end:
        return named, f"between its elements, {plural((address - start) // unit, 'element')} behind its first"
    far, word = (address - end, "behind its last") if address >= end else (start - address, "before its first")
    return named, f"{plural(far // unit + (address >= end), 'element')} {word}"
