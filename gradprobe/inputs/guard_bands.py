"""Guard bands: known values around every tensor in its storage, looked at after a run."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.assignment import spanned
from ..model.failures import NoRoom
from ..model.memory_finding import GUARD, MemoryFinding
from ..processes import resource_limits as limits
from ..processes.resource_limits import in_words

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# What a guard band holds: ordinary numbers, NaN, which a wrong read spreads, or numbers so large that a product with a
# small P still shows.
ORDINARY, NAN, LARGE = FILLS = ("ordinary", "nan", "large")
# Bytes from which a storage on the CPU is mapped and not filled: only the pages that are touched are ever there.
MAPPED = 1 << 30
# Bytes from which a storage is held against what memory is left.
_LOOKED_AT = 1 << 26
# Elements after which ordinary guard values repeat.
_PERIOD = 1021


def guarded(
    size: int, dtype: torch.dtype, device: torch.device, fill: str, reserve: int
) -> Tensor:
    """[size + reserve] elements that hold guard values. Raises NoRoom.

    Where all is large, the reserve holds zeros that take no memory on a CPU, and is not there on a GPU.
    """
    import torch

    whole = size + reserve
    if whole * dtype.itemsize < MAPPED:
        _refuse_without_room(whole * dtype.itemsize, device)
        return guard_values(whole, dtype, device, fill)
    if device.type == "cpu":
        storage = mapped(whole, dtype)
    else:
        _refuse_without_room(size * dtype.itemsize, device)
        try:
            storage = torch.empty(size, dtype=dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise _no_room(size * dtype.itemsize, f"{device} is out of memory") from error
    if size * dtype.itemsize < MAPPED:
        storage[:size] = guard_values(size, dtype, device, fill)
    return storage


def mapped(size: int, dtype: torch.dtype) -> Tensor:
    """[size] zeros on the CPU; only pages that are touched take memory."""
    import torch

    without_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named since Python 3.13
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | without_reserve
    try:
        return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize, flags=flags), dtype=dtype)
    except OSError as error:
        why = f"{error.strerror}; is address space limited (ulimit -v)?"
        raise _no_room(size * dtype.itemsize, why) from error


def _refuse_without_room(size: int, device: torch.device) -> None:
    if size < _LOOKED_AT:
        return
    if device.type == "cpu":
        left, most = limits.bytes_left(), limits.limit()
    else:
        import torch

        taken = torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        most = limits.requested() or free // 2
        left = min(most, free) - taken
    what = f"a tensor that takes {in_words(size)} with its guard bands has no room on {device}"
    if size > left:
        are_left = f"{in_words(max(0, left))} are left of {in_words(most)} (--max-memory)"
        raise NoRoom(f"{what}: {are_left}")


def _no_room(size: int, why: str) -> NoRoom:
    return NoRoom(f"a tensor whose strides span {size / 2**30:.0f} GiB has no room here: {why}")


def guard_values(
    size: int, dtype: torch.dtype, device: torch.device, fill: str = ORDINARY
) -> Tensor:
    """[size] known values, the same for every storage; ordinary and whole ones lie between 4 and 8 off 0."""
    import torch

    if fill == NAN and dtype.is_floating_point:
        return torch.full((size,), float("nan"), dtype=dtype, device=device)
    ramp = torch.arange(min(size, _PERIOD), device=device, dtype=torch.int64) * 7919 % _PERIOD
    values = (ramp / _PERIOD * 4 + 4) * (1 - 2 * (ramp % 2))
    if fill == LARGE and dtype.is_floating_point:
        values = values.double() * (torch.finfo(dtype).max / 64)
    return values.to(dtype).repeat(max(1, -(-size // _PERIOD)))[:size]


@dataclass(frozen=True)
class Breach:
    tensor: str
    place: str
    offset: int
    """Elements from the first one (before, between) or the last one (after)."""
    count: int

    @property
    def finding(self) -> MemoryFinding:
        return MemoryFinding(GUARD, self.tensor, self.sentence, access="store", lanes=self.count)

    @property
    def sentence(self) -> str:
        elements = "1 element was" if self.count == 1 else f"{self.count:,} elements were"
        nearest = f"the nearest {self.offset:,} {self.place}"
        return f"a store outside {self.tensor}: {elements} written, {nearest}"


class Guards:
    def __init__(self, tensors: Mapping[str, Tensor], fill: str = ORDINARY) -> None:
        storages: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            if storage.nbytes() < MAPPED:
                storages.setdefault(storage.data_ptr(), {})[name] = tensor.detach()
        self._storages, self._fill = list(storages.values()), fill

    def breaches(self) -> list[Breach]:
        return [breach for views in self._storages for breach in _breaches(views, self._fill)]


def _breaches(views: Mapping[str, Tensor], fill: str) -> Iterator[Breach]:
    at = _written(views, fill)
    spans = dict[str, tuple[int, int]]()
    for name, view in views.items():
        start = int(view.storage_offset())
        spans[name] = start, start + spanned(view.shape, view.stride()) - 1
    leading = min(spans, key=lambda name: spans[name][0])
    trailing = max(spans, key=lambda name: spans[name][1])
    first, last = spans[leading][0], spans[trailing][1]
    between, where = (at >= first) & (at <= last), "from its first element, between its own"
    for tensor, place, distances in (
        (leading, "before its first element", first - at[at < first]),
        (" and ".join(views), where, at[between] - first),
        (trailing, "after its last element", at[at > last] - last),
    ):
        if len(distances):
            yield Breach(tensor, place, int(distances.min()), len(distances))


def _written(views: Mapping[str, Tensor], fill: str) -> Tensor:
    import torch

    view, *others = views.values()
    size = view.untyped_storage().nbytes() // view.element_size()
    whole = view.as_strided((size,), (1,), 0)
    first, span = int(view.storage_offset()), spanned(view.shape, view.stride())
    if not others and span == view.numel():  # without gaps: its ends
        ends = (0, first), (first + span, size)
        found = [_changed(whole[at:end], at, fill).nonzero() + at for at, end in ends]
        return torch.cat(found).flatten().cpu()
    changed = _changed(whole, 0, fill)
    for each in (view, *others):
        changed.as_strided(each.shape, each.stride(), each.storage_offset()).fill_(False)
    return changed.nonzero().flatten().cpu()


def _changed(part: Tensor, start: int, fill: str) -> Tensor:
    before = start % _PERIOD
    known = guard_values(before + len(part), part.dtype, part.device, fill)[before:]
    return ~same_bits(part, known)


def same_bits(actual: Tensor, other: Tensor) -> Tensor:
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds[actual.element_size()]
    return actual.view(kind) == other.view(kind)
