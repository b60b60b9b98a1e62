"""Runs a kernel on this CPU, and says what its threads did wrong, with the lines of the source."""

from __future__ import annotations

import ctypes
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....inputs.memory import Array, Unwritten, elements_of, entries_of
from ....model.failures import KernelStopped, TargetFailure
from ....model.memory_finding import BARRIER, MISALIGNED, OUTSIDE, SHUFFLE, UNWRITTEN
from ....model.number import listed, plural, spans
from ....processes.child import add_to_stack
from ....source.text import SourceLine
from ..c_types import LaunchPlan, kind_and_bytes, structure
from ..source import KernelEntry
from ..watch import KINDS, MOST_RECORDS, RECORD, CudaFinding, CudaSite, Recorded, Watch
from .library import MOST_SHARED, Library, Named

if TYPE_CHECKING:
    from torch import Tensor

_UNKNOWN = SourceLine("", 0, "")
_MOST_FINDINGS = 64
_NONE, _ALL_LANES = (1 << 64) - 1, 0xFFFFFFFF
_HOW = ("read", "write", "atomic")
_ENDED = 3
_SIGNALS = {
    signal.SIGFPE: "divides an integer by 0, which a GPU leaves undefined,",
    signal.SIGILL: "reaches the end without a return value, or a trap,",
    signal.SIGABRT: "aborts",
    signal.SIGUSR1: "has not ended",
}
_Triple = ctypes.c_uint32 * 3
_I32, _I64, _U64, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p
_CRegion = structure((_U64, "base bytes"), (_POINTER, "owners unwritten"), (_I32, "granule first is_shared"))
_CSite = structure((_U64, "pc"), (_Triple, "thread block"), (_I32, "access"))
_CFinding = structure((_I32, "kind region array bytes"), (_I64, "offset"), (_CSite, "now before"), (_I64, "count"))
_CLaunch = structure(
    (_POINTER, "caller arguments"), (_Triple, "grid block"), (_U64, "shared_bytes seed"), (_POINTER, "regions"),
    (_I32, "n_regions"), (_U64, "library"), (_POINTER, "findings"), (_I32, "max_findings n_findings is_last_fatal"),
    (_POINTER, "records"), (_I64, "max_records n_records"), (_POINTER, "copies"), (_I64, "n_copies"),
    (_I32, "is_apart together one_of signal"), (_CSite, "stopped"), (_U64 * 8, "calls"),
    (ctypes.c_char * 512, "message"),
)  # fmt: skip


def run(launch: LaunchPlan, library: Library, watch: Watch) -> None:
    """Runs every thread of every block, and tells the watch what they did wrong; raises KernelStopped where it must."""
    kernel, size, regions = launch.kernel, launch.shared_bytes, Regions()
    if not 0 <= size <= MOST_SHARED:
        raise TargetFailure(f"kernel {kernel.name}: {size:,} bytes of shared memory; 0 to {MOST_SHARED:,} fit")
    given = [(_called(name, tensor, watch), tensor) for name, tensor in launch.tensors]
    regions.add_tensors(given, watch.unwritten)
    regions.add_arrays(library, kernel, size)
    recording = watch.recording
    if recording is not None:
        recording.before(dict(given))
    room = MOST_RECORDS if recording is not None else 0
    records, copies = np.empty(room, RECORD), np.empty(room, RECORD)
    c_regions, findings = (_CRegion * len(regions.all))(*regions.all), (_CFinding * _MOST_FINDINGS)()
    ran = _CLaunch(
        launch.caller, launch.arguments, _Triple(*launch.grid), _Triple(*launch.block), size, watch.seed,
        ctypes.addressof(c_regions), len(regions.all), library.base,
        findings=ctypes.addressof(findings), max_findings=_MOST_FINDINGS,
        records=records.ctypes.data if room else None, max_records=room, copies=copies.ctypes.data,
    )  # fmt: skip
    is_stopped = library.loaded.gp_run(ctypes.byref(ran))
    if recording is not None and ran.n_records <= room:
        is_apart = ran.is_apart and ran.n_copies <= room
        copied = copies[: ran.n_copies].copy() if is_apart else None
        kept, bases = records[: ran.n_records].copy(), [region.base for region in regions.all]
        tensors = [(array.name, array.tensor) for array in regions.arrays if array.tensor is not None]
        recorded = Recorded(kernel, library.lines, tensors, kept, bases, ran.together, ran.one_of, copied)
        recording.launches.append(recorded)
    tell = _Findings(kernel, library, regions)
    found = [tell.finding(each) for each in findings[: ran.n_findings]]
    fatal = found.pop() if ran.is_last_fatal else None
    watch.add(found)
    if is_stopped:
        words = f"{kernel.name}: {ran.message.decode(errors='replace')}"
        if ran.signal:
            words = tell.signal(ran)
        elif fatal is not None:
            words = fatal.sentence
        raise KernelStopped(f"a kernel could not run to its end: {words}")


def _called(parameter: str, tensor: Tensor, watch: Watch) -> str:
    """The caller's name of a tensor, or else its parameter's name without a suffix such as `_ptr`."""
    home = tensor.untyped_storage().data_ptr()
    there = {name: other for name, other in watch.tensors.items() if other.untyped_storage().data_ptr() == home}
    for name, other in there.items():
        if len(there) == 1 or other.data_ptr() == tensor.data_ptr():
            return name
    return re.sub(r"(?i)(_ptr|ptr)$", "", parameter) or parameter


# --- What it may touch


@dataclass
class Regions:
    """The regions of one launch, and the arrays in them by number, from 1."""

    all: list[Any] = field(default_factory=list)
    arrays: list[Named] = field(default_factory=list)
    _kept: list[Array | None] = field(default_factory=list)

    def add_tensors(self, tensors: Sequence[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        """Adds the storages of tensors; a map names the owner of each granule that not all are one tensor's."""
        storages: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in tensors:
            if tensor.numel():
                storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
        for base, named in storages.items():
            first, views = len(self.arrays) + 1, [tensor for _, tensor in named]
            for name, tensor in named:
                unit = tensor.element_size()
                size = elements_of(tensor).span * unit
                self.arrays.append(Named(name, False, tensor, tensor.data_ptr(), size, unit))
            size, granule = views[0].untyped_storage().nbytes(), min(view.element_size() for view in views)
            owners, marks = None, unwritten.by_granule(base, granule)
            if len(views) > 1 or not views[0].is_contiguous() or size != views[0].numel() * views[0].element_size():
                owners = _owners(views, first, size, granule)
            addresses = [None if each is None else each.ctypes.data for each in (owners, marks)]
            self.all.append(_CRegion(base, size // granule * granule, *addresses, granule, first, 0))
            self._kept += [owners, marks]

    def add_arrays(self, library: Library, kernel: KernelEntry, dynamic_bytes: int) -> None:
        """Adds the arrays of the source; `extern __shared__` ones lie in the dynamic shared memory of the launch."""
        source, loaded = kernel.source, library.loaded
        shared_base = loaded.gp_shared_base()  # which each thread of this process has for itself
        for array in library.arrays:
            base, name, size = library.base, array.name, array.bytes
            if array.is_shared:
                base = shared_base
                # All dynamic ones are one, and no other is so large; findings call it as the kernel does.
                if name and size == MOST_SHARED:
                    name, size = source.dynamic_array_of(kernel.plain_name), dynamic_bytes
            base, number = base + array.start, 0
            if array.name:
                number = len(self.arrays) + 1
                element = kind_and_bytes(source, source.shared_types.get(name, "void"))[1]
                self.arrays.append(Named(name, array.is_shared, None, base, size, element))
            if size:
                self._add(base, size, source.granule, number, is_shared=array.is_shared)
        # The rest of the shared memory. An access there is a fault, and does no harm.
        self._add(shared_base, loaded.gp_shared_bytes(), source.granule, -1)
        # Constants, and the compiler's own data. They are no array, and may be read.
        self._add(library.base, loaded.gp_library_bytes(), 1, 0)

    def _add(self, base: int, size: int, granule: int, number: int, *, is_shared: bool = False) -> None:
        self.all.append(_CRegion(base, size, None, None, granule, number, is_shared))


def _owners(views: Sequence[Tensor], first: int, size: int, granule: int) -> Array:
    """By granule of a storage, the number of the tensor that owns it; 0 of what lies between elements."""
    owners = np.zeros(size // granule, np.uint8)
    for number, tensor in enumerate(views, first):
        parts = tensor.element_size() // granule
        by_element = owners[: len(owners) // parts * parts].reshape(-1, parts)
        for part in range(parts):
            entries_of(tensor, by_element[:, part])[...] = number
    return owners


# --- What it did wrong


@dataclass(frozen=True)
class _Findings:
    """The findings of one launch, in names and lines of its source."""

    kernel: KernelEntry
    library: Library
    regions: Regions

    def finding(self, found: Any) -> CudaFinding:
        kind, before = KINDS[found.kind], found.before
        if kind == SHUFFLE:
            return self._shuffle(found)
        named, where = self._place(found)
        first, second = self._site(found.now, kind), None
        is_of_two = any(before.block) or before.pc != 0
        if kind not in (OUTSIDE, UNWRITTEN, MISALIGNED) and is_of_two:
            second = self._site(before, kind)
        return CudaFinding(kind, self.kernel.name, named.name, named.is_shared, where, first, second, found.count)

    def signal(self, ran: Any) -> str:
        """What a thread did that a CPU ends a program for; this process says that it is at its line."""
        calls = [address for address in ran.calls if address]
        lines = [line for around in self.library.lines(calls).values() for line in around if line.line]
        site = replace(self._site(ran.stopped), line=lines[0] if lines else _UNKNOWN)
        does = _SIGNALS.get(signal.Signals(ran.signal), "accesses memory that is not mapped")
        if ran.stopped.access and ran.signal == signal.SIGSEGV:
            does = "needs more than the 512 KiB of local memory that a GPU has for a thread"
        if lines:
            add_to_stack(lines[0].file, lines[0].line, self.kernel.plain_name)
            does += f" at {site.place}"
        return f"{self.kernel.name}: {site.who} {does}"

    def _shuffle(self, found: Any) -> CudaFinding:
        """The lanes that their mask leaves out, or that a shuffle gives no value, and why."""
        asking, sources = found.offset & _ALL_LANES, found.offset >> 32 & _ALL_LANES
        getting, mask = found.bytes & _ALL_LANES, f"the mask 0x{found.array & _ALL_LANES:08x}"
        if not getting:
            words = f"{_lanes(asking, 'call')} with {mask}, which leaves out who calls"
        elif sources & ~found.array:
            words = f"{_lanes(asking, 'read')} lanes outside {mask}"
        else:
            words = f"{_lanes(getting, 'read')} {_lanes(sources)}, where no thread runs"
        site = replace(self._site(found.now), how="read" if getting else "left out")
        return CudaFinding(SHUFFLE, self.kernel.name, "", False, words, site, None, found.count)

    def _site(self, site: Any, kind: str = "") -> CudaSite:
        is_known, line = site.pc != _NONE, _UNKNOWN
        how = _HOW[site.access] if site.access < len(_HOW) else ""
        if kind == BARRIER:
            how = "waits" if is_known and site.access != _ENDED else "ended"
        if is_known:
            line = next(iter(self.library.lines([site.pc])[site.pc]), _UNKNOWN)
        return CudaSite(line, tuple(site.thread), tuple(site.block), how)

    def _place(self, found: Any) -> tuple[Named, str]:
        """The array and the element of an access; for one outside all arrays, the nearest one and the distance."""
        if found.region < 0:
            return Named(""), ""
        address = self.regions.all[found.region].base + found.offset
        if found.array:
            named = self.regions.arrays[found.array - 1]
            return named, named.index(address, found.bytes)
        named = min(self.regions.arrays, key=lambda each: max(each.start - address, address - each.end + 1, 0))
        unit = named.element or max(1, found.bytes)
        if address < named.start:
            return named, f"{plural((named.start - address) // unit, 'element')} before its first"
        if address >= named.end:
            return named, f"{plural((address - named.end) // unit + 1, 'element')} behind its last"
        return named, f"between its elements, {plural((address - named.start) // unit, 'element')} behind its first"


def _lanes(bits: int, do: str = "") -> str:
    """The lanes of a mask, and what they do: "lane 3 reads", "lanes 8 to 15 and 20 read"."""
    numbers = []
    for first, last in spans(lane for lane in range(32) if bits >> lane & 1):
        numbers.append(str(first) if first == last else f"{first} to {last}")
    if bits.bit_count() == 1:
        return f"lane {listed(numbers)} {do and do + 's'}".rstrip()
    return f"lanes {listed(numbers)} {do}".rstrip()
