"""S1, S2, S3, I64: a tensor is read or stored by other strides, at another index, or where offsets wrap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ..model.intermediates import KINDS, title
from .addressed import (
    GRADIENTS,
    OtherStrides,
    axes_of,
    each_once,
    found_at,
    in_words,
    offsets,
    readable,
    reading,
    whole_storage,
    with_strides_of,
)  # fmt: skip
from .hypothesis import AXES, Hypothesis, Observed, storing
from .variant import Variant, wide

_CONTIGUOUS = "as if it were contiguous"


def by_other_strides(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, taken for contiguous in some way; then with other tensors' strides."""
    tensors = {name: tensor for name, tensor in readable(seen).items() if seen.launches or name in seen.tensors}
    lay = {name: tensor.stride() for name, tensor in (*tensors.items(), *seen.tensors.items())}
    for name, tensor in tensors.items():
        fix = f"take every stride of {title(name)} from the tensor, or refuse other layouts in the wrapper"
        for way in each_once(tensor, _as_contiguous(name, tensor, axes_of(name, seen))):
            summary = f"{title(name)} is addressed {way.summary}, and does not lie so"
            read = found_at(tensor, offsets(tensor.shape, way.strides))
            yield reading(seen, name, read, f"layout/{way.words}", "S2", summary, fix=fix)
    for name, tensor in tensors.items():
        for way in each_once(tensor, _mixed_up(seen, name, lay)):
            summary, read = f"{title(name)} is read {way.summary}", found_at(tensor, offsets(tensor.shape, way.strides))
            about: dict[str, Any] = {"axes": way.axes, "taken": way.strides}
            yield reading(seen, name, read, f"stride/{way.words}", "S1", summary, **about)


def _as_contiguous(name: str, tensor: Tensor, axes: str) -> Iterator[OtherStrides]:
    shape, own = tuple(tensor.shape), tuple(tensor.stride())
    dense = _dense(tensor)
    ways = {_CONTIGUOUS: dense}
    if len(shape) > 1:
        ways |= {"as if its last stride were 1": (*own[:-1], 1)}
        ways |= {"as if its rows were contiguous": (*own[:-2], *dense[-2:])}
    if len(shape) == 4:
        _, heads, rows, dim = shape
        ways |= {"as [B, L, H, D]": (rows * heads * dim, dim, heads * dim, 1)}
        ways |= {"as if each of its batches were contiguous": (own[0], *dense[1:])}
        ways |= {"as if each of its heads were contiguous": (*own[:2], *dense[2:])}
    if axes.startswith("bh"):
        ways |= {"as if batches and heads lay one behind the other": (own[1] * shape[1], *own[1:])}
        ways |= {"as if batches lay one behind the other, heads within rows": (dense[0], *own[1:])}
    for words, strides in ways.items():
        yield OtherStrides(strides, name, words)


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of this shape without gaps."""
    return torch.empty(tuple(tensor.shape), device="meta").stride()


def _mixed_up(seen: Observed, name: str, lay: Mapping[str, tuple[int, ...]]) -> Iterator[OtherStrides]:
    """Those of other tensors along some axes; at last its own, swapped."""
    yield from with_strides_of(seen, name, lay)
    own = axes_of(name, seen)
    for first, second in combinations([at for at, axis in enumerate(own) if axis in AXES], 2):
        taken, axes = list(lay[name]), own[first] + own[second]
        taken[first], taken[second] = taken[second], taken[first]
        words = "-".join([name, *dict.fromkeys(AXES[axis] for axis in axes if len(own) > 2)])
        yield OtherStrides(tuple(taken), words, f"with its own {in_words(axes)} strides swapped", axes, name)


def by_other_numbers(seen: Observed) -> Iterator[Hypothesis]:
    """Each term of each index missing; the number of another head; the key heads in another order."""
    for name, tensor in readable(seen).items():
        yield from _without_a_term(seen, name, wide(tensor))
        yield from _of_another_head(seen, name, wide(tensor))
    if 1 < seen.case.kv_heads < seen.case.heads:
        yield _key_heads_by_remainder(seen)


def _without_a_term(seen: Observed, name: str, tensor: Tensor) -> Iterator[Hypothesis]:
    axes = axes_of(name, seen)
    for missing in ("b", "h", "g", "bh", "bg", "m", "n"):
        if not set(missing) <= set(axes) or any(tensor.shape[axes.index(axis)] == 1 for axis in missing):
            continue
        # A bias of one key in every key adds the same to all scores of a row, as none does. A mask of keys alone shows
        # key 0: its mask in every key is the mask left out.
        if missing == "n" and (name == "bias" or (name == "mask" and "m" not in axes)):
            continue
        read, words = tensor, ["key" if axis == "n" and "m" in axes else AXES[axis] for axis in missing]
        for axis in missing:
            read = read.narrow(axes.index(axis), 0, 1).expand_as(tensor)
        first, every = " and ".join(f"{each} 0" for each in words), " and ".join(words)
        summary = f"{title(name)} of {first} is read in every {every}: that term of its index is missing"
        yield reading(seen, name, read, f"index/{name}-{'-'.join(words)}", "S3", summary, axes=missing)


def _of_another_head(seen: Observed, name: str, tensor: Tensor) -> Iterator[Hypothesis]:
    """A head's tensor read under another number: the key head's, the next head's, or its own modulo a limit."""
    axes, case = axes_of(name, seen), seen.case
    letter = next((axis for axis in "hg" if axis in axes), "")
    if not letter or tensor.shape[at := axes.index(letter)] == 1:
        return
    count = tensor.shape[at]
    heads = torch.arange(count, device=tensor.device)
    numbers = {"next-head": ("the next head", (heads + 1) % count)}
    if letter == "h" and 1 < case.kv_heads < case.heads:
        group = case.heads // case.kv_heads
        numbers["kv-head"] = ("the head that has its key head's number", heads // group)
        numbers["kv-head-remainder"] = ("head h % kv_heads", heads % case.kv_heads)
    numbers |= {f"head-mod-{n}": (f"head h % {n}", heads % n) for n in (2, 4, 8, 16) if n < count}
    for tail, (words, index) in numbers.items():
        summary = f"{title(name)} of {words} is read"
        yield reading(seen, name, tensor.index_select(at, index), f"index/{name}-{tail}", "S3", summary, axes=letter)


def _key_heads_by_remainder(seen: Observed) -> Hypothesis:
    case, heads = seen.case, torch.arange(seen.case.heads, device=seen.x.q.device)
    owner = heads % case.kv_heads
    share = (owner == heads[: case.kv_heads, None]).double()

    def alter(variant: Variant) -> Variant:
        of = variant.x
        return variant.reading(k=of.k[:, owner], v=of.v[:, owner]).sharing(share)

    summary = "query heads read key head h % kv_heads, where h // group is meant"
    changes, fix = frozenset({"LSE", "P", "O", "dP", "dQ", "dK", "dV"}), "h // (heads // kv_heads)"
    return Hypothesis("index/kv-head", "S3", summary, alter, changes, fix, tensor="k", axes="g")


# Elements of a storage that is copied to see what stores leave in it.
_LARGEST = 1 << 24


def stored_elsewhere(seen: Observed) -> Iterator[Hypothesis]:
    """Every gradient that was handed in to be written, with each other tensor's strides; and as if contiguous."""
    lay = {name: tensor.stride() for name, tensor in seen.tensors.items()}
    for name, gradient, tensor in _handed_in(seen):
        if len(whole_storage(tensor)) > _LARGEST:
            continue
        dense = OtherStrides(_dense(tensor), name, _CONTIGUOUS, axes_of(name, seen))
        for way in each_once(tensor, iter((*with_strides_of(seen, name, lay), dense))):
            fault, fault_class = (f"store/{way.words}", "S1") if way.other else (f"layout/{name}", "S2")
            about: dict[str, Any] = {"tensor": name, "axes": way.axes, "not_finite": True}
            finish = partial(_stored_at, gradient, tensor, offsets(tensor.shape, way.strides))
            yield storing(fault, fault_class, f"{gradient} is stored {way.summary}", [gradient], finish, **about)


def _handed_in(seen: Observed) -> Iterator[tuple[str, str, Tensor]]:
    """(name, gradient, tensor) of those that are wrong by themselves."""
    for name, gradient in GRADIENTS.items():
        if name in seen.tensors and gradient in seen.own:
            yield name, gradient, seen.tensors[name]


def _stored_at(gradient: str, tensor: Tensor, at: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What is found at a gradient's own places once all of it was stored so far from its first element."""
    if gradient not in values:
        return {}
    flat, first = whole_storage(tensor), int(tensor.storage_offset())
    own = (offsets(tensor.shape, tensor.stride()) + first).to(tensor.device)
    at = (at + first).to(tensor.device).flatten()
    inside = (at >= 0) & (at < len(flat))
    # Of a storage of gigabytes only the elements that are stored to or looked at are held in float64.
    touched = torch.cat((own.flatten(), at[inside])).unique()
    held = flat[touched].double()
    held[torch.searchsorted(touched, at[inside])] = values[gradient].flatten()[inside]
    return {gradient: held[torch.searchsorted(touched, own)]}


_LIMIT = 2**31
# Which axes' terms one expression adds up, in 32 bits, before the sum is added to a pointer.
_GROUPS = (("bhmd",), ("bh", "md"), ("b", "h", "m"), ("bh",), ("h",), ("m",), ("md",), ("b",))
_WIDEN = "widen the index before it is multiplied: .to(tl.int64)"
_WRAPS = "offsets into {} wrap around at 2^31: they are 32 bits wide"


def wraps(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor whose offsets pass 2^31, with those of some axes in 32 bits."""
    for groups in _GROUPS:
        for name, tensor in readable(seen).items():
            if _reach(tensor) >= _LIMIT:
                read = found_at(tensor, _wrapped(tensor, axes_of(name, seen), groups))
                yield reading(seen, name, read, f"wrap/{name}", "I64", _WRAPS.format(title(name)), fix=_WIDEN)
        for name, gradient, tensor in _handed_in(seen):
            if _reach(tensor) >= _LIMIT:
                finish = partial(_stored_at, gradient, tensor, _wrapped(tensor, axes_of(name, seen), groups))
                about: dict[str, Any] = {"tensor": name, "not_finite": True}
                yield storing(f"wrap/{name}", "I64", _WRAPS.format(gradient), [gradient], finish, _WIDEN, **about)


def _reach(tensor: Tensor) -> int:
    return sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _wrapped(tensor: Tensor, axes: str, groups: Sequence[str]) -> Tensor:
    """How far each element is taken to lie from the first, when each group's terms are added up in 32 bits."""
    total, left = offsets(tensor.shape, [0] * tensor.dim()), list(tensor.stride())
    for group in groups:
        own = [step if KINDS.get(axis, "?") in group else 0 for axis, step in zip(axes, tensor.stride(), strict=True)]
        left = [0 if taken else step for taken, step in zip(own, left, strict=True)]
        total = total + (offsets(tensor.shape, own) + _LIMIT) % (2 * _LIMIT) - _LIMIT
    return total + offsets(tensor.shape, left)
