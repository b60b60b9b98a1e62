"""Runs a kernel on this CPU."""

import ctypes
import re
import signal
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from ....inputs.memory import Array, UnwrittenElements, elements_of, entries_of, home_of
from ....model.failures import KernelStopped, TargetFailure
from ....model.memory_finding import BARRIER, RACE, SHUFFLE
from ....model.number import in_words, spans
from ....processes.child import add_to_stack
from ....source.syntax import SourceLine
from ... import OPEN, Launches
from ..c_types import LaunchPlan, number_type
from ..watch import EQUAL, KINDS, CudaFinding, CudaSite, RecordedAccesses, by_lines
from .library import MOST_SHARED, ROOM, STRUCTURES, Library, NamedArray

_Region = STRUCTURES["gp_region"]
_UNKNOWN = SourceLine("", 0, "")
_MOST_FINDINGS = 64
# Of one launch. One that makes more is not kept, but where each thread is apart a part of the threads is.
MOST_RECORDS = 1 << 20
_NONE, _ALL_LANES = (1 << 64) - 1, 0xFFFFFFFF
_HOW = ("read", "write", "atomic", "waits", "ended", "left out")


def run(launch: LaunchPlan, library: Library, found: Launches) -> None:
    name, size = launch.kernel.name, launch.shared_bytes
    if not 0 <= size <= MOST_SHARED:
        words = f"{size:,} bytes of shared memory; 0 to {MOST_SHARED:,} fit"
        raise TargetFailure(f"kernel {name}: {words}")
    memory = LaunchMemory(launch, library, found)
    found.before(dict(memory.tensors))
    room = 0 if found.accesses is None else MOST_RECORDS
    records, copies = np.empty((2, room), STRUCTURES["gp_record"])
    regions = (_Region * len(memory.regions))(*memory.regions)
    findings = (STRUCTURES["gp_finding"] * _MOST_FINDINGS)()
    ran = STRUCTURES["gp_launch"](
        kernel=launch.caller, arguments=launch.arguments, grid=launch.grid, block=launch.block,
        shared_bytes=size, seed=found.schedule, library=library.where().base,
        regions=ctypes.addressof(regions), n_regions=len(regions),
        findings=ctypes.addressof(findings), max_findings=_MOST_FINDINGS,
        records=records.ctypes.data if room else None, max_records=room, copies=copies.ctypes.data,
    )  # fmt: skip
    is_stopped = library.loaded.gp_run(ctypes.byref(ran))
    if found.accesses is not None and ran.n_records <= room:
        copied = copies[: ran.n_copies].copy() if ran.is_apart and ran.n_copies <= room else None
        about = (launch.kernel, library.lines, memory.tensors, records[: ran.n_records].copy())
        bases = [region.base for region in regions]
        found.accesses.append(RecordedAccesses(*about, bases, ran.together, ran.one_of, copied))
    seen = list(map(memory.finding, findings[: ran.n_findings]))
    words = (
        memory.signal(ran) if ran.signal else f"{name}: {ran.message.decode(errors='replace')}"
    )
    words = seen.pop().sentence if ran.is_last_fatal else words
    for finding in by_lines(each for each in seen if each.kind != EQUAL):
        found.findings.append(finding.finding)
        if OPEN.get() is None:
            warnings.warn(finding.sentence, RuntimeWarning, stacklevel=4)
    if is_stopped:
        raise KernelStopped(f"a kernel could not run to its end: {words}")


def _name_of(parameter: str, tensor: Any, found: Launches) -> str:
    home, start = home_of(tensor), tensor.data_ptr()
    there = [(name, view) for name, view in found.tensors.items() if home_of(view) == home]
    same = [(name, view) for name, view in there if view.data_ptr() == start]
    if same or len(there) == 1:
        return (same or there)[0][0]
    return re.sub(r"(?i)(?<=.)_?ptr$", "", parameter)


class LaunchMemory:
    def __init__(self, launch: LaunchPlan, library: Library, found: Launches) -> None:
        self._launch, self._library = launch, library
        self.regions, self._arrays = list[Any](), list[NamedArray]()
        self._maps = list[Any]()  # which regions only hold the addresses of
        self.tensors = [(_name_of(*each, found), each[1]) for each in launch.tensors]
        self._add_tensors(found.unwritten)
        self._add_arrays()

    def _add_tensors(self, unwritten: UnwrittenElements) -> None:
        storages = defaultdict[int, list[NamedArray]](list)
        for name, tensor in self.tensors:
            unit, span = tensor.element_size(), elements_of(tensor).span
            if span:
                named = NamedArray(name, False, tensor.data_ptr(), span * unit, unit, tensor)
                storages[home_of(tensor)].append(named)
        for base, views in storages.items():
            first, granule = len(self._arrays) + 1, min(view.element for view in views)
            self._arrays += views
            count = views[0].tensor.untyped_storage().nbytes() // granule
            owners = _owners(views, first, count, granule)
            marks = unwritten.by_granule(base, granule)
            self._maps += owners, marks
            about = (owners.ctypes.data, None if marks is None else marks.ctypes.data, granule)
            self.regions.append(_Region(base, count * granule, *about))

    def _add_arrays(self) -> None:
        kernel, place = self._launch.kernel, self._library.where()
        source, granule = kernel.source, kernel.source.granule
        for array in self._library.arrays:
            name, size = array.name, array.bytes
            if name == ROOM:  # findings call it as the kernel does
                size = self._launch.shared_bytes
                name = source.dynamic_array_of(kernel.function.name) or "memory" * bool(size)
            start = array.start + (place.shared if array.is_shared else place.base)
            if name:
                type_ = number_type(source, source.shared_type(name))
                width = ctypes.sizeof(type_) if type_ else 0
                self._arrays.append(NamedArray(name, array.is_shared, start, size, width))
            if size:
                about = granule, len(self._arrays) if name else 0, array.is_shared
                self.regions.append(_Region(start, size, None, None, *about))
        # The rest of the shared memory, where an access is a fault and does no harm; then constants, and the compiler's
        # own data, which are no array, and may be read.
        self.regions += (
            _Region(place.shared, place.shared_bytes, None, None, granule, -1),
            _Region(place.base, place.bytes, None, None, 1),
        )

    def finding(self, found: Any) -> CudaFinding:
        kind, named, where = KINDS[found.kind], NamedArray(""), ""
        if kind == SHUFFLE:
            where = _shuffle(found)
        elif found.region >= 0:
            named, where = self._place(found)
        before = self._site(found.before) if kind in (RACE, EQUAL, BARRIER) else None
        about = (kind, self._launch.kernel.name, named.name, named.is_shared, where)
        return CudaFinding(*about, self._site(found.now), before, found.count)

    def signal(self, ran: Any) -> str:
        around = self._library.lines([*filter(None, ran.calls)])
        known = filter(attrgetter("line"), chain.from_iterable(around.values()))
        line = next(known, _UNKNOWN)
        site, kernel = replace(self._site(ran.stopped), line=line), self._launch.kernel
        name = signal.Signals(ran.signal).name
        does = "has not ended" if name == "SIGUSR1" else f"is stopped by {name}"
        if line.line:
            add_to_stack(line.file, line.line, kernel.function.name)
            does += f" at {site.place}"
        return f"{kernel.name}: {site.who} {does}"

    def _site(self, site: Any) -> CudaSite:
        lines = self._library.lines([site.pc])[site.pc] if site.pc != _NONE else ()
        line = lines[0] if lines else _UNKNOWN
        return CudaSite(line, tuple(site.thread), tuple(site.block), _HOW[site.access])

    def _place(self, found: Any) -> tuple[NamedArray, str]:
        address = self.regions[found.region].base + found.offset

        def distance(each: NamedArray) -> int:
            return int(max(each.start - address, address - each.start - each.bytes, -1))

        is_own = found.array > 0
        named = self._arrays[found.array - 1] if is_own else min(self._arrays, key=distance)
        return named, named.where(address, found.bytes, is_inside=is_own)


def _owners(views: Sequence[NamedArray], first: int, count: int, granule: int) -> Array:
    owners = np.zeros(count, np.uint8)
    for number, view in enumerate(views, first):
        parts = view.element // granule
        by_element = owners[: len(owners) // parts * parts].reshape(-1, parts)
        for part in range(parts):
            entries_of(view.tensor, by_element[:, part])[...] = number
    return owners


def _shuffle(found: Any) -> str:
    asking, sources = found.offset & _ALL_LANES, found.offset >> 32 & _ALL_LANES
    getting, mask = found.bytes & _ALL_LANES, f"the mask 0x{found.array & _ALL_LANES:08x}"

    def lanes(bits: int) -> str:
        words = in_words(spans(lane for lane in range(32) if bits >> lane & 1))
        return f"lane{'s' * (bits.bit_count() > 1)} {words}"

    if not getting:
        return f"{lanes(asking)} called with {mask}, which leaves out who calls"
    if sources & ~found.array:
        return f"{lanes(asking)} read lanes outside {mask}"
    return f"{lanes(getting)} read {lanes(sources)}, where no thread runs"
