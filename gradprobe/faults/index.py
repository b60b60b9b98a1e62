"""S1, S2, S3, I64: a tensor is read or stored by other strides, at another index, or where offsets wrap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.intermediates import KINDS, title
from .addressed import GRADIENTS, axes_of, found_at, offsets, readable, reading, whole_storage
from .hypothesis import AXES, Hypothesis, Observed
from .variant import wide

# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, those of a tile, or all.
_SETS = ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd")


class OtherStrides(NamedTuple):
    """Strides that a tensor may be taken to have."""

    strides: tuple[int, ...]
    summary: str
    """What is said of the tensor, after its name."""
    words: str = ""
    """ "do-head": the tail of the fault's name."""
    axes: str = ""
    """Along which they are another tensor's; "" where they are those of a contiguous one."""


def _each_once(tensor: Tensor, ways: Iterable[OtherStrides]) -> Iterator[tuple[OtherStrides, Tensor]]:
    """The ways that lead elsewhere than the tensor's own strides and those before them do; and to which offsets."""
    # A stride along an axis of a single step makes no difference.
    long = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    tried = {tuple(tensor.stride(axis) for axis in long)}
    for way in ways:
        felt = tuple(way.strides[axis] for axis in long)
        if felt not in tried:
            tried.add(felt)
            yield way, offsets(tensor.shape, way.strides)


def by_other_strides(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, taken for contiguous in some way; then with other tensors' strides."""
    tensors = {name: tensor for name, tensor in readable(seen).items() if seen.launches or name in seen.tensors}
    lay = {name: tensor.stride() for name, tensor in (*tensors.items(), *seen.tensors.items())}
    for name, tensor in tensors.items():
        fix = f"take every stride of {title(name)} from the tensor, or refuse other layouts in the wrapper"
        for way, at in _each_once(tensor, _as_contiguous(tensor, axes_of(name, seen))):
            summary = f"{title(name)} is addressed {way.summary}, and does not lie so"
            yield reading(seen, name, found_at(tensor, at), f"layout/{name}", "S2", summary, fix=fix)
    for name, tensor in tensors.items():
        ways = (*_of_others(seen, name, lay), *_swapped(seen, name, lay[name]))
        for way, at in _each_once(tensor, ways):
            fault, summary, found = f"stride/{way.words}", f"{title(name)} is read {way.summary}", found_at(tensor, at)
            yield reading(seen, name, found, fault, "S1", summary, axes=way.axes, taken=way.strides)


def _as_contiguous(tensor: Tensor, axes: str) -> Iterator[OtherStrides]:
    shape, own, dense = tuple(tensor.shape), tensor.stride(), _dense(tensor)
    ways = {"it were contiguous": dense}
    if len(shape) > 1:
        ways["its last stride were 1"] = (*own[:-1], 1)
        ways["its rows were contiguous"] = (*own[:-2], *dense[-2:])
    if len(shape) == 4:
        ways["[B, L, H, D]"] = (dense[0], shape[3], shape[1] * shape[3], 1)
        ways["each of its batches were contiguous"] = (own[0], *dense[1:])
        ways["each of its heads were contiguous"] = (*own[:2], *dense[2:])
    if axes.startswith("bh"):
        ways["batches and heads lay one behind the other"] = (own[1] * shape[1], *own[1:])
        ways["batches lay one behind the other, heads within rows"] = (dense[0], *own[1:])
    for words, strides in ways.items():
        yield OtherStrides(strides, f"as {words}" if words[0] == "[" else f"as if {words}")


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of this shape without gaps."""
    return torch.empty(tuple(tensor.shape), device="meta").stride()


def _of_others(seen: Observed, name: str, strides: Mapping[str, Sequence[int]]) -> Iterator[OtherStrides]:
    """A tensor with each other tensor's strides along some axes, one axis first."""
    own = axes_of(name, seen)
    for kinds in _SETS:
        axes = "".join(axis for axis in own if KINDS.get(axis, "?") in kinds)
        for other, theirs in strides.items() if len(axes) == len(kinds) else ():
            named = dict(zip((KINDS.get(axis, "?") for axis in axes_of(other, seen)), theirs, strict=False))
            # All strides of what the wrapper allocates are those of a contiguous tensor: that is another fault.
            foreign = other in seen.tensors or len(axes) == 1
            if other != name and foreign and set(kinds) <= named.keys():
                taken = list(strides[name])
                for axis in axes:
                    taken[own.index(axis)] = named[KINDS[axis]]
                words = _slug(name, axes if len(axes) < len(own) else "")
                yield OtherStrides(tuple(taken), f"with {title(other)}'s {_in_words(axes)} stride", words, axes)


def _swapped(seen: Observed, name: str, strides: Sequence[int]) -> Iterator[OtherStrides]:
    """A tensor with two of its own strides swapped."""
    own = axes_of(name, seen)
    for first, second in combinations([at for at, axis in enumerate(own) if axis in AXES], 2):
        taken, axes = list(strides), own[first] + own[second]
        taken[first], taken[second] = taken[second], taken[first]
        words = _slug(name, axes if len(own) > 2 else "")
        yield OtherStrides(tuple(taken), f"with its own {_in_words(axes)} strides swapped", words, axes)


def _slug(name: str, axes: str) -> str:
    return "-".join([name, *dict.fromkeys(AXES[axis] for axis in axes)])


def _in_words(axes: str) -> str:
    """ "head", "batch and head"."""
    return " and ".join(dict.fromkeys(AXES[axis] for axis in axes))


def by_other_numbers(seen: Observed) -> Iterator[Hypothesis]:
    """Each term of each index missing; the number of another head; the key heads in another order."""
    for name, tensor in readable(seen).items():
        yield from _without_a_term(seen, name, wide(tensor))
        yield from _of_another_head(seen, name, wide(tensor))
    case, x = seen.case, seen.x
    if 1 < case.kv_heads < case.heads:
        heads = torch.arange(case.heads, device=x.q.device)
        owner = heads % case.kv_heads
        yield Hypothesis(
            "index/kv-head", "S3", "query heads read key head h % kv_heads, where h // group is meant",
            wrong=("LSE", "P", "O", "dP", "dQ", "dK", "dV"), fix="h // (heads // kv_heads)",
            reads={"k": x.k[:, owner], "v": x.v[:, owner]}, share=(owner == heads[: case.kv_heads, None]).double(),
            tensor="k", axes="g",
        )  # fmt: skip


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
        first, every = " 0 and ".join(words), " and ".join(words)
        summary = f"{title(name)} of {first} 0 is read in every {every}: that term of its index is missing"
        fix = f"add the {every} times its stride to the pointer of {title(name)}"
        yield reading(seen, name, read, f"index/{name}-{'-'.join(words)}", "S3", summary, axes=missing, fix=fix)


def _of_another_head(seen: Observed, name: str, tensor: Tensor) -> Iterator[Hypothesis]:
    """A head's tensor read under another number: the key head's, the next head's, or its own modulo a limit."""
    axes, case = axes_of(name, seen), seen.case
    letter = next((axis for axis in "hg" if axis in axes), "")
    if not letter or tensor.shape[at := axes.index(letter)] == 1:
        return
    count, key_heads = tensor.shape[at], case.kv_heads
    h = torch.arange(count, device=tensor.device)
    ways = [("next-head", "the next head", (h + 1) % count)]
    if letter == "h" and 1 < key_heads < case.heads:
        ways.append(("kv-head", "the head that has its key head's number", h * key_heads // case.heads))
        ways.append(("kv-head-remainder", "head h % kv_heads", h % key_heads))
    ways += [(f"head-mod-{n}", f"head h % {n}", h % n) for n in (2, 4, 8, 16) if n < count]
    for tail, words, index in ways:
        fault, summary = f"index/{name}-{tail}", f"{title(name)} of {words} is read"
        yield reading(seen, name, tensor.index_select(at, index), fault, "S3", summary, axes=letter)


# Elements of a storage that is copied to see what stores leave in it.
_LARGEST = 1 << 24


def stored_elsewhere(seen: Observed) -> Iterator[Hypothesis]:
    """Every gradient that was handed in to be written, with each other tensor's strides; and as if contiguous."""
    lay = {name: tensor.stride() for name, tensor in seen.tensors.items()}
    for name, gradient, tensor in _handed_in(seen):
        if len(whole_storage(tensor)) > _LARGEST:
            continue
        dense = OtherStrides(_dense(tensor), "as if it were contiguous")
        for way, at in _each_once(tensor, (*_of_others(seen, name, lay), dense)):
            fault, fault_class = (f"store/{way.words}", "S1") if way.words else (f"layout/{name}", "S2")
            axes = way.axes or axes_of(name, seen)
            yield _storing(gradient, tensor, at, fault, fault_class, f"{gradient} is stored {way.summary}", axes)


def _handed_in(seen: Observed) -> Iterator[tuple[str, str, Tensor]]:
    """(name, gradient, tensor) of those that are wrong by themselves."""
    for name, gradient in GRADIENTS.items():
        if name in seen.tensors and gradient in seen.own:
            yield name, gradient, seen.tensors[name]


def _storing(
    gradient: str, tensor: Tensor, at: Tensor, fault: str, fault_class: str, summary: str, axes: str = "", fix: str = ""
) -> Hypothesis:
    """The fault that all of a gradient is stored so far from its first element."""
    finish = partial(_stored_at, gradient, tensor, at)
    return Hypothesis(
        fault, fault_class, summary, fix=fix, wrong=(gradient,), finish=finish, tensor=gradient.lower(), axes=axes,
        not_finite=True,
    )  # fmt: skip


def _stored_at(gradient: str, tensor: Tensor, at: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What is found at a gradient's own places once all of it was stored elsewhere."""
    if gradient not in values:
        return {}
    flat, first = whole_storage(tensor), int(tensor.storage_offset())
    own = (offsets(tensor.shape, tensor.stride()) + first).to(tensor.device)
    at = (at + first).to(tensor.device).flatten()
    inside = (at >= 0) & (at < len(flat))
    # Of a storage of gigabytes only the elements that are stored to or looked at are held in float64.
    touched = torch.cat((own.flatten(), at[inside])).unique()
    stored = flat[touched].double()
    stored[torch.searchsorted(touched, at[inside])] = values[gradient].flatten()[inside]
    return {gradient: stored[torch.searchsorted(touched, own)]}


_LIMIT = 2**31
# Which axes' terms one expression adds up, in 32 bits, before the sum is added to a pointer.
_GROUPS = (("bhmd",), ("bh", "md"), ("b", "h", "m"), ("bh",), ("h",), ("m",), ("md",), ("b",))
_WIDEN = "widen the index before it is multiplied: .to(tl.int64)"
_WRAPS = "offsets into {} wrap around at 2^31: they are 32 bits wide"


def wraps(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor whose offsets pass 2^31, with those of some axes in 32 bits."""
    read = [(name, tensor) for name, tensor in readable(seen).items() if _is_huge(tensor)]
    written = [each for each in _handed_in(seen) if _is_huge(each[2])]
    for groups in _GROUPS:
        for name, tensor in read:
            found, summary = found_at(tensor, _wrapped(tensor, axes_of(name, seen), groups)), _WRAPS.format(title(name))
            yield reading(seen, name, found, f"wrap/{name}", "I64", summary, fix=_WIDEN)
        for name, gradient, tensor in written:
            at = _wrapped(tensor, axes_of(name, seen), groups)
            yield _storing(gradient, tensor, at, f"wrap/{name}", "I64", _WRAPS.format(gradient), fix=_WIDEN)


def _is_huge(tensor: Tensor) -> bool:
    return sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True)) >= _LIMIT


def _wrapped(tensor: Tensor, axes: str, groups: Sequence[str]) -> Tensor:
    """How far each element is taken to lie from the first, when each group's terms are added up in 32 bits."""
    total, left = offsets(tensor.shape, [0] * tensor.dim()), list(tensor.stride())
    for group in groups:
        own = [step if KINDS.get(axis, "?") in group else 0 for axis, step in zip(axes, tensor.stride(), strict=True)]
        left = [0 if taken else step for taken, step in zip(own, left, strict=True)]
        total = total + (offsets(tensor.shape, own) + _LIMIT) % (2 * _LIMIT) - _LIMIT
    return total + offsets(tensor.shape, left)
