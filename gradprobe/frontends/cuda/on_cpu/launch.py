"""Runs a kernel on this CPU, and says what its threads did wrong."""

from __future__ import annotations

import ctypes
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....inputs.memory import Array, Unwritten, elements_of, entries_of
from ....model.failures import KernelStopped, TargetFailure
from ....model.memory_finding import BARRIER, RACE, SHUFFLE
from ....model.number import in_words, spans
from ....processes.child import add_to_stack
from ....source.text import SourceLine
from ..c_types import LaunchPlan, number_type
from ..watch import EQUAL, KINDS, CudaFinding, CudaSite, Recorded, Watch
from .library import MOST_SHARED, ROOM, STRUCTURES, Library, Named

if TYPE_CHECKING:
    from torch import Tensor

_Region = STRUCTURES["gp_region"]
_UNKNOWN = SourceLine("", 0, "")
_MOST_FINDINGS = 64
# Of one launch. One that makes more is not kept, but where each thread is apart a part of the threads is.
MOST_RECORDS = 1 << 20
_NONE, _ALL_LANES = (1 << 64) - 1, 0xFFFFFFFF
# In the order of the runtime's numbers.
_HOW = ("read", "write", "atomic", "waits", "ended", "left out")
_SIGNALS = {
    signal.SIGFPE: "divides an integer by 0, which a GPU leaves undefined,",
    signal.SIGILL: "reaches the end without a return value, or a trap,",
    signal.SIGABRT: "aborts",
    signal.SIGUSR1: "has not ended",
}


def run(launch: LaunchPlan, library: Library, watch: Watch) -> None:
    """Tells the watch what its threads did wrong; KernelStopped where one cannot go on."""
    name, size, recording = launch.kernel.name, launch.shared_bytes, watch.recording
    if not 0 <= size <= MOST_SHARED:
        raise TargetFailure(
            f"kernel {name}: {size:,} bytes of shared memory; 0 to {MOST_SHARED:,} fit"
        )
    tensors = [(_name_of(parameter, tensor, watch), tensor) for parameter, tensor in launch.tensors]
    memory = LaunchMemory(launch, library, tensors, watch.unwritten)
    if recording:
        recording.before(dict(tensors))
    room = MOST_RECORDS if recording else 0
    records, copies = np.empty((2, room), STRUCTURES["gp_record"])
    regions = (_Region * len(memory.regions))(*memory.regions)
    findings = (STRUCTURES["gp_finding"] * _MOST_FINDINGS)()
    ran = STRUCTURES["gp_launch"](
        kernel=launch.caller, arguments=launch.arguments, grid=launch.grid, block=launch.block,
        shared_bytes=size, seed=watch.of.schedule, library=library.where().base,
        regions=ctypes.addressof(regions), n_regions=len(regions),
        findings=ctypes.addressof(findings), max_findings=_MOST_FINDINGS,
        records=records.ctypes.data if room else None, max_records=room, copies=copies.ctypes.data,
    )  # fmt: skip
    is_stopped = library.loaded.gp_run(ctypes.byref(ran))
    if recording and ran.n_records <= room:
        copied = copies[: ran.n_copies].copy() if ran.is_apart and ran.n_copies <= room else None
        about = (launch.kernel, library.lines, tensors, records[: ran.n_records].copy())
        bases = [region.base for region in regions]
        recording.launches.append(Recorded(*about, bases, ran.together, ran.one_of, copied))
    found = list(map(memory.finding, findings[: ran.n_findings]))
    fatal = found.pop() if ran.is_last_fatal else None
    watch.add(found)
    if is_stopped:
        words = (
            memory.signal(ran) if ran.signal else f"{name}: {ran.message.decode(errors='replace')}"
        )
        raise KernelStopped(
            f"a kernel could not run to its end: {fatal.sentence if fatal else words}"
        )


def _name_of(parameter: str, tensor: Tensor, watch: Watch) -> str:
    """The caller's, else its parameter's without a suffix such as `_ptr`."""
    there = []
    for name, view in watch.of.tensors.items():
        if view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            there.append(name)
            if view.data_ptr() == tensor.data_ptr():
                return name
    return there[0] if len(there) == 1 else re.sub(r"(?i)(_ptr|ptr)$", "", parameter) or parameter


class LaunchMemory:
    """What a launch may touch, and what it did wrong there."""

    def __init__(
        self,
        launch: LaunchPlan,
        library: Library,
        tensors: Sequence[tuple[str, Tensor]],
        unwritten: Unwritten,
    ) -> None:
        self._launch, self._library = launch, library
        self.regions, self._arrays = list[Any](), list[Named]()
        self._maps = list[Any]()  # which regions only hold the addresses of
        self._add_tensors(tensors, unwritten)
        self._add_arrays()

    def _add_tensors(self, tensors: Sequence[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        storages: dict[int, list[Named]] = {}
        for name, tensor in tensors:
            if tensor.numel():
                unit, span = tensor.element_size(), elements_of(tensor).span
                named = Named(name, False, tensor.data_ptr(), span * unit, unit, tensor)
                storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(named)
        for base, views in storages.items():
            first, granule = len(self._arrays) + 1, min(view.element for view in views)
            self._arrays += views
            size = views[0].tensor.untyped_storage().nbytes()
            is_one = len(views) == 1 and views[0].tensor.is_contiguous() and views[0].bytes == size
            maps = (
                None if is_one else _owners(views, first, size, granule),
                unwritten.by_granule(base, granule),
            )
            self._maps += maps
            addresses = [None if each is None else each.ctypes.data for each in maps]
            self.regions.append(
                _Region(base, size // granule * granule, *addresses, granule, first)
            )

    def _add_arrays(self) -> None:
        source, place = self._launch.kernel.source, self._library.where()
        for array in self._library.arrays:
            name, size = array.name, array.bytes
            if name == ROOM:  # findings call it as the kernel does
                size = self._launch.shared_bytes
                name = source.dynamic_array_of(self._launch.kernel.function.name) or (
                    "memory" if size else ""
                )
            start, number = array.start + (place.shared if array.is_shared else place.base), 0
            if name:
                type_ = number_type(source, source.shared_type(name))
                self._arrays.append(
                    Named(name, array.is_shared, start, size, ctypes.sizeof(type_) if type_ else 0)
                )
                number = len(self._arrays)
            if size:
                self.regions.append(
                    _Region(start, size, None, None, source.granule, number, array.is_shared)
                )
        # The rest of the shared memory, where an access is a fault and does no harm; then constants, and the compiler's
        # own data, which are no array, and may be read.
        self.regions += (
            _Region(place.shared, place.shared_bytes, None, None, source.granule, -1),
            _Region(place.base, place.bytes, None, None, 1),
        )

    def finding(self, found: Any) -> CudaFinding:
        kind = KINDS[found.kind]
        named, where = (Named(""), _shuffle(found)) if kind == SHUFFLE else self._place(found)
        before = self._site(found.before) if kind in (RACE, EQUAL, BARRIER) else None
        about = (kind, self._launch.kernel.name, named.name, named.is_shared, where)
        return CudaFinding(*about, self._site(found.now), before, found.count)

    def signal(self, ran: Any) -> str:
        """What a thread did; this process says that it is at its line."""
        around = self._library.lines([address for address in ran.calls if address])
        line = next((line for lines in around.values() for line in lines if line.line), _UNKNOWN)
        site, kernel = replace(self._site(ran.stopped), line=line), self._launch.kernel
        does = _SIGNALS.get(signal.Signals(ran.signal), "accesses memory that is not mapped")
        if ran.stopped.access and ran.signal == signal.SIGSEGV:
            does = "needs more than the 512 KiB of local memory that a GPU has for a thread"
        if line.line:
            add_to_stack(line.file, line.line, kernel.function.name)
            does += f" at {site.place}"
        return f"{kernel.name}: {site.who} {does}"

    def _site(self, site: Any) -> CudaSite:
        lines = self._library.lines([site.pc])[site.pc] if site.pc != _NONE else ()
        return CudaSite(
            next(iter(lines), _UNKNOWN), tuple(site.thread), tuple(site.block), _HOW[site.access]
        )

    def _place(self, found: Any) -> tuple[Named, str]:
        """The array of an access, or the nearest one, and where in it."""
        if found.region < 0:
            return Named(""), ""
        address = self.regions[found.region].base + found.offset
        if found.array:
            named = self._arrays[found.array - 1]
        else:
            named = min(
                self._arrays,
                key=lambda each: max(each.start - address, address - each.start - each.bytes, -1),
            )
        return named, named.where(address, found.bytes, is_inside=found.array > 0)


def _owners(views: Sequence[Named], first: int, size: int, granule: int) -> Array:
    """The number of the tensor that owns each granule; 0 between elements."""
    owners = np.zeros(size // granule, np.uint8)
    for number, view in enumerate(views, first):
        parts = view.element // granule
        by_element = owners[: len(owners) // parts * parts].reshape(-1, parts)
        for part in range(parts):
            entries_of(view.tensor, by_element[:, part])[...] = number
    return owners


def _shuffle(found: Any) -> str:
    asking, sources = found.offset & _ALL_LANES, found.offset >> 32 & _ALL_LANES
    getting, mask = found.bytes & _ALL_LANES, f"the mask 0x{found.array & _ALL_LANES:08x}"
    if not getting:
        return f"{_lanes(asking, 'call')} with {mask}, which leaves out who calls"
    if sources & ~found.array:
        return f"{_lanes(asking, 'read')} lanes outside {mask}"
    return f"{_lanes(getting, 'read')} {_lanes(sources)}, where no thread runs"


def _lanes(bits: int, do: str = "") -> str:
    """ "lane 3 reads", "lanes 8-15, 20 read"."""
    lanes = in_words(spans(lane for lane in range(32) if bits >> lane & 1))
    if bits.bit_count() == 1:
        return f"lane {lanes}{do and f' {do}s'}"
    return f"lanes {lanes}{do and f' {do}'}"
