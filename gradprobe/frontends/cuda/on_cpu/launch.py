"""Runs a kernel on this CPU, and says what its threads did wrong, with the lines of the source."""

from __future__ import annotations

import ctypes
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....model.failures import KernelStopped, TargetFailure
from ....model.memory_finding import BARRIER, MISALIGNED, OUTSIDE, SHUFFLE, UNWRITTEN
from ....model.number import listed, plural, spans
from ....processes.child import add_to_stack
from ....source.text import SourceLine
from ..c_types import LaunchPlan, structure
from ..watch import KINDS, MOST_RECORDS, RECORD, CudaFinding, CudaSite, Recorded, Watch
from .build import MOST_SHARED
from .library import CRegion, Library, Named, Regions

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = SourceLine("", 0, "")
_MOST_FINDINGS = 64
_NONE = (1 << 64) - 1
_HOW = ("read", "write", "atomic")
_ENDED = 3
_Triple = ctypes.c_uint32 * 3
_I32, _I64, _U64, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p
_CSite = structure((_U64, "pc"), (_Triple, "thread block"), (_I32, "access"))
_CFinding = structure((_I32, "kind region array bytes"), (_I64, "offset"), (_CSite, "now before"), (_I64, "count"))
_CLaunch = structure(
    (_POINTER, "caller arguments"), (_Triple, "grid block"), (_U64, "shared_bytes seed"), (_POINTER, "regions"),
    (_I32, "n_regions"), (_U64, "library"), (_POINTER, "findings"), (_I32, "max_findings n_findings is_last_fatal"),
    (_POINTER, "records"), (_I64, "max_records n_records"), (_POINTER, "copies"), (_I64, "n_copies"),
    (_I32, "is_apart together one_of signal"), (_CSite, "stopped"), (_U64 * 8, "calls"),
    (ctypes.c_char * 512, "message"),
)  # fmt: skip


def run(plan: LaunchPlan, library: Library, watch: Watch) -> None:
    """Runs every thread of every block, and tells the watch what they did wrong; raises KernelStopped where it must."""
    kernel, size, regions = plan.kernel, plan.shared_bytes, Regions()
    if not 0 <= size <= MOST_SHARED:
        raise TargetFailure(f"kernel {kernel.name}: {size:,} bytes of shared memory; 0 to {MOST_SHARED:,} fit")
    given = [(_called(name, tensor, watch), tensor) for name, tensor in plan.tensors]
    regions.add_tensors(given, watch.unwritten)
    regions.add_arrays(library, kernel.source, kernel.plain_name, size)
    if watch.recording is not None:
        watch.recording.before(dict(given))
    room = MOST_RECORDS if watch.recording is not None else 0
    records, copies = np.empty(room, RECORD), np.empty(room, RECORD)
    c_regions, findings = (CRegion * len(regions.all))(*regions.all), (_CFinding * _MOST_FINDINGS)()
    launch = _CLaunch(
        plan.caller, plan.arguments, _Triple(*plan.grid), _Triple(*plan.block), size, watch.seed,
        ctypes.addressof(c_regions), len(regions.all), library.base,
        findings=ctypes.addressof(findings), max_findings=_MOST_FINDINGS,
        records=records.ctypes.data if room else None, max_records=room, copies=copies.ctypes.data,
    )  # fmt: skip
    is_stopped = library.loaded.gp_run(ctypes.byref(launch))
    if watch.recording is not None and launch.n_records <= room:
        tensors = [(named.name, named.tensor) for named in regions.arrays if named.tensor is not None]
        bases, is_apart = [region.base for region in regions.all], launch.is_apart and launch.n_copies <= room
        kept, copied = records[: launch.n_records].copy(), copies[: launch.n_copies].copy() if is_apart else None
        how = launch.together, launch.one_of, copied
        watch.recording.launches.append(Recorded(kernel, library.lines, tensors, kept, bases, *how))
    found = [_finding(kernel.name, library, regions, each) for each in findings[: launch.n_findings]]
    fatal = found.pop() if launch.is_last_fatal else None
    watch.add(found)
    if is_stopped:
        words = fatal.sentence if fatal else f"{kernel.name}: {launch.message.decode(errors='replace')}"
        words = _of_signal(plan, library, launch) if launch.signal else words
        raise KernelStopped(f"a kernel could not run to its end: {words}")


_SIGNALS = {
    signal.SIGFPE: "divides an integer by 0, which a GPU leaves undefined,",
    signal.SIGILL: "reaches the end without a return value, or a trap,",
    signal.SIGABRT: "aborts",
    signal.SIGUSR1: "has not ended",
}


def _of_signal(plan: LaunchPlan, library: Library, launch: Any) -> str:
    """What a thread did that a CPU ends a program for, and where; its line is where this process says that it is."""
    calls = [address for address in launch.calls if address]
    lines = [line for around in library.lines(calls).values() for line in around if line.line]
    site = replace(_site(library, launch.stopped), line=lines[0] if lines else UNKNOWN)
    does = _SIGNALS.get(signal.Signals(launch.signal), "accesses memory that is not mapped")
    if launch.stopped.access and launch.signal == signal.SIGSEGV:
        does = "needs more than the 512 KiB of local memory that a GPU has for a thread"
    if lines:
        add_to_stack(lines[0].file, lines[0].line, plan.kernel.plain_name)
        does += f" at {site.place}"
    return f"{plan.kernel.name}: {site.who} {does}"


def _called(parameter: str, tensor: Tensor, watch: Watch) -> str:
    """The caller's name of a tensor, or else its parameter's name without a suffix such as `_ptr`."""
    storage = tensor.untyped_storage().data_ptr()
    there = {name: known for name, known in watch.tensors.items() if known.untyped_storage().data_ptr() == storage}
    exact = [name for name, known in there.items() if known.data_ptr() == tensor.data_ptr()]
    if exact or len(there) == 1:
        return (exact or [*there])[0]
    return re.sub(r"(?i)(_ptr|ptr)$", "", parameter) or parameter


def _finding(kernel: str, library: Library, regions: Regions, found: Any) -> CudaFinding:
    kind, before = KINDS[found.kind], found.before
    if kind == SHUFFLE:
        return _shuffle(library, kernel, found)
    named, where = _place(regions, found)
    is_alone = kind in (OUTSIDE, UNWRITTEN, MISALIGNED) or not any(before.block) and before.pc == 0
    first, second = _site(library, found.now, kind), None if is_alone else _site(library, before, kind)
    return CudaFinding(kind, kernel, named.name, named.is_shared, where, first, second, found.count)


_ALL_LANES = 0xFFFFFFFF


def _shuffle(library: Library, kernel: str, found: Any) -> CudaFinding:
    """The lanes that their mask leaves out, or that a shuffle gives no value, and why."""
    asking, sources, getting = found.offset & _ALL_LANES, found.offset >> 32 & _ALL_LANES, found.bytes & _ALL_LANES
    mask = f"the mask 0x{found.array & _ALL_LANES:08x}"
    if not getting:
        words = f"{_lanes(asking, 'call')} with {mask}, which leaves out who calls"
    elif sources & ~found.array:
        words = f"{_lanes(asking, 'read')} lanes outside {mask}"
    else:
        words = f"{_lanes(getting, 'read')} {_lanes(sources)}, where no thread runs"
    site = replace(_site(library, found.now), how="read" if getting else "left out")
    return CudaFinding(SHUFFLE, kernel, "", False, words, site, None, found.count)


def _lanes(bits: int, do: str = "") -> str:
    """The lanes of a mask, and what they do: "lane 3 reads", "lanes 8 to 15 and 20 read"."""
    ranges = spans(lane for lane in range(32) if bits >> lane & 1)
    numbers = listed([str(first) if first == last else f"{first} to {last}" for first, last in ranges])
    is_one = bits.bit_count() == 1
    return f"lane{'' if is_one else 's'} {numbers} {do and do + 's' * is_one}".rstrip()


def _site(library: Library, site: Any, kind: str = "") -> CudaSite:
    is_known = site.pc != _NONE
    how = _HOW[site.access] if site.access < len(_HOW) else ""
    if kind == BARRIER:
        how = "waits" if is_known and site.access != _ENDED else "ended"
    lines = library.lines([site.pc])[site.pc] if is_known else ()
    return CudaSite(lines[0] if lines else UNKNOWN, tuple(site.thread), tuple(site.block), how)


def _place(regions: Regions, found: Any) -> tuple[Named, str]:
    """The array and the element of an access; for an access outside all arrays, the nearest one and the distance."""
    if found.region < 0:
        return Named(""), ""
    address = regions.all[found.region].base + found.offset
    if found.array:
        named = regions.arrays[found.array - 1]
        return named, named.index(address, found.bytes)
    named = min(regions.arrays, key=lambda each: max(each.start - address, address - each.end + 1, 0))
    unit = named.element or max(1, found.bytes)
    if named.start <= address < named.end:
        return named, f"between its elements, {plural((address - named.start) // unit, 'element')} behind its first"
    if address >= named.end:
        return named, f"{plural((address - named.end) // unit + 1, 'element')} behind its last"
    return named, f"{plural((named.start - address) // unit, 'element')} before its first"
