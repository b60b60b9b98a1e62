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
    axes_of,
    dense_strides,
    each_once,
    in_words,
    misread,
    offsets,
    readable,
    reading,
    through,
    whole_storage,
    with_strides_of,
    word,
)  # fmt: skip
from .hypothesis import AXES, EVERYTHING, Hypothesis, Observed, entered, storing
from .variant import Variant, wide

Strides = tuple[int, ...]


def layouts(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, taken for contiguous, for [B, L, H, D], or for dense in its last axes."""
    for name, tensor in readable(seen).items():
        fix = f"take every stride of {title(name)} from the tensor, or refuse other layouts in the wrapper"
        for words, taken in each_once(tensor, _assumed(tensor, axes_of(name, seen))):
            summary = f"{title(name)} is addressed {words}, and does not lie so"
            yield reading(seen, name, through(tensor, taken), f"layout/{name}", "S2", summary, fix=fix)


def _assumed(tensor: Tensor, axes: str) -> Iterator[tuple[str, Strides]]:
    shape, own = tuple(tensor.shape), tuple(tensor.stride())
    dense = dense_strides(shape)
    yield "as if it were contiguous", dense
    if len(shape) > 1:
        yield "as if its last stride were 1", (*own[:-1], 1)
        yield "as if its rows were contiguous", (*own[:-2], *dense[-2:])
    if len(shape) == 4:
        _, heads, rows, dim = shape
        yield "as [B, L, H, D]", (rows * heads * dim, dim, heads * dim, 1)
        yield "as if each of its batches were contiguous", (own[0], *dense[1:])
        yield "as if each of its heads were contiguous", (*own[:2], *dense[2:])
    if axes.startswith("bh"):
        yield "as if batches and heads lay one behind the other", (own[1] * shape[1], *own[1:])
        yield "as if batches lay one behind the other, heads within rows", (dense[0], *own[1:])


def strides(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, with each other tensor's strides along some of its axes, each reading once."""
    tensors = readable(seen)
    lay = {name: tuple(tensor.stride()) for name, tensor in (*tensors.items(), *seen.tensors.items())}
    for name, tensor in tensors.items():
        for axes, other, taken in each_once(tensor, _exchanged(name, lay, seen)):
            along, fault = in_words(axes), f"stride/{word(name, axes, axes_of(name, seen))}"
            whose = f"its own {along} strides swapped" if other == name else f"{title(other)}'s {along} stride"
            summary = f"{title(name)} is read with {whose}"
            # Why the first one is right.
            right = (f"{along} 0 is right because its offset is 0 with any stride",) if len(axes) == 1 else ()
            about = {"axes": axes, "other": other, "evidence": right, "taken": taken}
            yield reading(seen, name, through(tensor, taken), fault, "S1", summary, **about)


def _exchanged(name: str, lay: Mapping[str, Strides], seen: Observed) -> Iterator[tuple[str, str, Strides]]:
    """(axes, the other tensor, the strides taken), one axis first; at last those of the tensor itself, swapped."""
    yield from with_strides_of(seen, name, lay)
    own = axes_of(name, seen)
    for one, two in combinations([at for at, axis in enumerate(own) if axis in AXES], 2):
        swapped = list(lay[name])
        swapped[one], swapped[two] = swapped[two], swapped[one]
        yield own[one] + own[two], name, tuple(swapped)


def indices(seen: Observed) -> Iterator[Hypothesis]:
    """Each term of each index missing; the number of another head; the key heads in another order."""
    for name, tensor in readable(seen).items():
        yield from _without_a_term(seen, name, wide(tensor))
        yield from _by_another_number(seen, name, wide(tensor))
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


def _by_another_number(seen: Observed, name: str, tensor: Tensor) -> Iterator[Hypothesis]:
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
    for name, gradient in GRADIENTS.items():
        if name not in lay or gradient not in seen.own or len(whole_storage(seen.tensors[name])) > _LARGEST:
            continue
        tensor, own = seen.tensors[name], axes_of(name, seen)
        ways = (*with_strides_of(seen, name, lay), (own, "", dense_strides(tensor.shape)))
        for axes, other, strides in each_once(tensor, ways):
            how = f"with {title(other)}'s {in_words(axes)} stride" if other else "as if it were contiguous"
            fault, of_class = (f"store/{word(name, axes, own)}", "S1") if other else (f"layout/{name}", "S2")
            about: dict[str, Any] = {"tensor": name, "axes": axes, "other": other, "not_finite": True}
            finish = partial(_misplaced, gradient, tensor, strides)
            yield storing(fault, of_class, f"{gradient} is stored {how}", [gradient], finish, **about)


def _misplaced(gradient: str, tensor: Tensor, strides: Strides, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What is found at a gradient's own places once all of it was stored at others."""
    if gradient not in values:
        return {}
    flat, first = whole_storage(tensor), int(tensor.storage_offset())
    own = (offsets(tensor.shape, tensor.stride()) + first).to(tensor.device)
    at = (offsets(tensor.shape, strides) + first).to(tensor.device).flatten()
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
    """Every tensor whose offsets pass 2^31, alone and all of them, with those of some axes in 32 bits."""
    tensors = {name: tensor for name, tensor in readable(seen).items() if _reach(tensor) >= _LIMIT}
    stored = {name: seen.tensors[name] for name in GRADIENTS if name in seen.tensors and GRADIENTS[name] in seen.own}
    some = [{name: tensor} for name, tensor in tensors.items()] + ([tensors] if len(tensors) > 1 else [])
    for groups in _GROUPS:
        yield from (_wrapped_read(seen, each, groups) for each in some)
        for name, tensor in stored.items():
            if _reach(tensor) >= _LIMIT:
                gradient, at = GRADIENTS[name], _wrapped(tensor, axes_of(name, seen), groups)
                is_moved = at != offsets(tensor.shape, tensor.stride())
                finish = partial(_unmoved, gradient, tensor, is_moved)
                about = {"tensor": name, "not_finite": True}
                yield storing(f"wrap/{name}", "I64", _WRAPS.format(gradient), [gradient], finish, _WIDEN, **about)


def _reach(tensor: Tensor) -> int:
    return sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _wrapped_read(seen: Observed, tensors: Mapping[str, Tensor], groups: Sequence[str]) -> Hypothesis:
    first, *others = tensors

    def alter(variant: Variant) -> Variant:
        for name, tensor in tensors.items():
            at = _wrapped(tensor, axes_of(name, seen), groups) + int(tensor.storage_offset())
            flat = whole_storage(tensor)
            variant = misread(variant, name, flat[at.to(tensor.device).clamp(0, len(flat) - 1)])
        return variant

    changes = EVERYTHING if others else entered(first, seen.case.family)
    summary = _WRAPS.format(", ".join(map(title, tensors)))
    return Hypothesis(f"wrap/{first}", "I64", summary, alter, changes, _WIDEN, tensor=first)


def _wrapped(tensor: Tensor, axes: str, groups: Sequence[str]) -> Tensor:
    """How far each element is taken to lie from the first, when each group's terms are added up in 32 bits."""
    total, left = offsets(tensor.shape, [0] * tensor.dim()), list(tensor.stride())
    for group in groups:
        own = [step if KINDS.get(axis, "?") in group else 0 for axis, step in zip(axes, tensor.stride(), strict=True)]
        left = [0 if taken else step for taken, step in zip(own, left, strict=True)]
        total = total + (offsets(tensor.shape, own) + _LIMIT) % (2 * _LIMIT) - _LIMIT
    return total + offsets(tensor.shape, left)


def _unmoved(gradient: str, tensor: Tensor, is_moved: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What the memory held before, where the gradient was stored elsewhere."""
    before = tensor.double().to(values[gradient].device)
    return {gradient: values[gradient].where(~is_moved.to(before.device), before)}
