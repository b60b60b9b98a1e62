"""S1, S2, S3: a tensor is read or stored by other strides, or at another index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.intermediates import DERIVED, KINDS, MATRIX_OF, title
from .hypothesis import Hypothesis, Observed, entered
from .variant import found_at, offsets, whole_storage

_AXES = {"b": "batch", "h": "head", "g": "head", "m": "row", "n": "row", "d": "dim", "e": "dim", "w": "distance"}
# Tensors that the reference's problem holds, by the same names.
_FIELDS = ("q", "k", "v", "do", "bias", "tau", "alibi", "mask", "sinks", "keep")
# By the name of the output that a gradient is stored into.
_GRADIENTS = {name.lower(): name for name in MATRIX_OF}
# Elements of a storage that is copied to see what stores leave in it.
_LARGEST = 1 << 24


class _Way(NamedTuple):
    """Where else than at their places the elements of a tensor may be taken to lie."""

    fault: str
    fault_class: str
    summary: str
    fix: str
    at: Tensor
    """How far each element is taken to lie from the first."""
    axes: str = ""
    """Along which axes that is so; "" for all."""
    strides: tuple[int, ...] = ()
    """Those that are taken."""


_Ways = Callable[[Observed, str, Tensor], Iterator[_Way]]


def readable(seen: Observed) -> dict[str, Tensor]:
    """The tensors that kernels read, as they lie in memory.

    LSE, O and delta that were not handed in lie contiguous, as the wrapper allocates them, with nothing known behind.
    """
    found = {name: tensor for name, tensor in seen.tensors.items() if name in _FIELDS or name in DERIVED}
    for name, intermediate in DERIVED.items():
        if name not in found and intermediate in seen.expected:
            found[name] = seen.actual.get(intermediate, seen.expected[intermediate]).contiguous()
    return {name: tensor for name, tensor in found.items() if axes_of(name, seen)}


def axes_of(name: str, seen: Observed) -> str:
    """The axes of a tensor, one letter each; "" of one that has neither batches nor heads."""
    axes, tensor = seen.case.input_axes(name), seen.tensors.get(name)
    return axes if tensor is None or tensor.dim() == len(axes) else ""


def elsewhere(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, and every gradient that was handed in to be written, at other places."""
    tensors, addressed = readable(seen), _addressed(seen)
    kinds: list[tuple[Mapping[str, Tensor], _Ways]] = [
        (addressed, _as_contiguous),
        (addressed, _by_other_strides),
        (tensors, _without_a_term),
        (tensors, _of_another_head),
    ]
    for some, ways in kinds:
        for name, tensor in some.items():
            wrong = entered(name, seen.case.family)
            for way in _each_once(tensor, ways(seen, name, tensor)):
                reads = {name: found_at(tensor, way.at)}
                yield Hypothesis(*way[:3], {}, way.fix, wrong, reads=reads, tensor=name, axes=way.axes)
    case = seen.case
    if 1 < case.kv_heads < case.heads:
        heads = {"key_heads": torch.arange(case.heads, device=seen.x.q.device) % case.kv_heads}
        summary, fix = "query heads read key head h % kv_heads, where h // group is meant", "h // (heads // kv_heads)"
        wrong = frozenset({"LSE", "P", "O", "dP", "dQ", "dK", "dV"})
        yield Hypothesis("index/kv-head", "S3", summary, {}, fix, wrong, reads=heads, tensor="k", axes="g")
    for name, gradient in _GRADIENTS.items():
        if name in seen.tensors and gradient in seen.own:
            yield from _stored(seen, name, gradient, seen.tensors[name])


def _addressed(seen: Observed) -> dict[str, Tensor]:
    """The tensors that kernels read; what a target without kernels makes for itself nobody addresses."""
    return {name: tensor for name, tensor in readable(seen).items() if seen.launches or name in seen.tensors}


def _each_once(tensor: Tensor, ways: Iterable[_Way]) -> Iterator[_Way]:
    """The ways that lead elsewhere than the tensor's own strides and those before them do."""
    # A stride along an axis of a single step makes no difference.
    long = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    tried = {tuple(tensor.stride(axis) for axis in long)}
    for way in ways:
        felt = tuple(way.strides[axis] for axis in long) if way.strides else ()
        if not felt or felt not in tried:
            tried.add(felt)
            yield way


# --- gradients that are stored elsewhere


def _stored(seen: Observed, name: str, gradient: str, tensor: Tensor) -> Iterator[Hypothesis]:
    """A gradient stored with each other tensor's strides, and as if it were contiguous."""
    ways = list[_Way]()
    if len(whole_storage(tensor)) <= _LARGEST:
        ways += _by_other_strides(seen, name, tensor, "store", "is stored")
        dense, summary = _dense(tensor), f"{gradient} is stored as if it were contiguous"
        at = offsets(tensor.shape, dense)
        ways.append(_Way(f"layout/{name}", "S2", summary, "", at, axes_of(name, seen), dense))
    for way in _each_once(tensor, ways):
        finish = partial(_stored_at, gradient, tensor, way.at)
        yield Hypothesis(*way[:3], {}, way.fix, (gradient,), finish=finish, tensor=name, axes=way.axes, not_finite=True)


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


# --- other strides


def _as_contiguous(seen: Observed, name: str, tensor: Tensor) -> Iterator[_Way]:
    shape, own, dense = tuple(tensor.shape), tensor.stride(), _dense(tensor)
    ways = {"as if it were contiguous": dense}
    if len(shape) > 1:
        ways["as if its last stride were 1"] = (*own[:-1], 1)
        ways["as if its rows were contiguous"] = (*own[:-2], *dense[-2:])
    if len(shape) == 4:
        ways["as [B, L, H, D]"] = (dense[0], shape[3], shape[1] * shape[3], 1)
        ways["as if each of its heads were contiguous"] = (*own[:2], *dense[2:])
    if axes_of(name, seen).startswith("bh"):
        ways["as if batches and heads lay one behind the other"] = (own[1] * shape[1], *own[1:])
    fix = f"take every stride of {title(name)} from the tensor, or refuse other layouts in the wrapper"
    for words, strides in ways.items():
        summary = f"{title(name)} is addressed {words}, and does not lie so"
        yield _Way(f"layout/{name}", "S2", summary, fix, offsets(shape, strides), "", strides)


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of this shape without gaps."""
    return torch.empty(tuple(tensor.shape), device="meta").stride()


def _by_other_strides(
    seen: Observed, name: str, tensor: Tensor, kind: str = "stride", verb: str = "is read"
) -> Iterator[_Way]:
    """A tensor with each other tensor's strides along some axes, one axis first.

    Kernels are known to mix up one stride, those of a program's offset, those of a tile, or all.
    """
    axes, tensors = axes_of(name, seen), _addressed(seen) | dict(seen.tensors)
    own = [KINDS.get(letter, "?") for letter in axes]
    for kinds in ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd"):
        along = [axis for axis, letter in enumerate(own) if letter in kinds]
        for other in tensors if len(along) == len(kinds) else ():
            letters = [KINDS.get(letter, "?") for letter in axes_of(other, seen)]
            theirs = dict(zip(letters, tensors[other].stride(), strict=False))
            # All strides of what the wrapper allocates are those of a contiguous tensor: that is another fault.
            is_foreign = other in seen.tensors or len(kinds) == 1
            if other == name or not is_foreign or not {*kinds} <= theirs.keys():
                continue
            taken = list(tensor.stride())
            for axis in along:
                taken[axis] = theirs[own[axis]]
            words = [*dict.fromkeys(_AXES[axes[axis]] for axis in along)] if len(along) < len(axes) else []
            which = f"{' and '.join(words)} stride{'s' * (len(words) > 1)}" if words else "strides"
            summary, fault = f"{title(name)} {verb} with {title(other)}'s {which}", "-".join((f"{kind}/{name}", *words))
            letters, strides = [axes[axis] for axis in along], tuple(taken)
            yield _Way(fault, "S1", summary, "", offsets(tensor.shape, strides), "".join(letters), strides)


# --- other numbers in an index


def _without_a_term(seen: Observed, name: str, tensor: Tensor) -> Iterator[_Way]:
    axes, of = axes_of(name, seen), title(name)
    for missing in ("b", "h", "g", "bh", "bg", "m", "n"):
        if not {*missing} <= {*axes} or any(tensor.shape[axes.index(axis)] == 1 for axis in missing):
            continue
        # A bias of one key in every key adds the same to all scores of a row, as none does. A mask of keys alone shows
        # key 0: its mask in every key is the mask left out.
        if missing == "n" and (name == "bias" or (name == "mask" and "m" not in axes)):
            continue
        words = ["key" if axis == "n" and "m" in axes else _AXES[axis] for axis in missing]
        left = [0 if axis in missing else step for axis, step in zip(axes, tensor.stride(), strict=True)]
        first, every = " 0 and ".join(words), " and ".join(words)
        summary = f"{of} of {first} 0 is read in every {every}: that term of its index is missing"
        fix = f"add the {every} times its stride to the pointer of {of}"
        fault = "-".join((f"index/{name}", *words))
        yield _Way(fault, "S3", summary, fix, offsets(tensor.shape, left), missing)


def _of_another_head(seen: Observed, name: str, tensor: Tensor) -> Iterator[_Way]:
    """A head's tensor read under another number: the next head's, or its key head's."""
    axes, case = axes_of(name, seen), seen.case
    letter = next((axis for axis in "hg" if axis in axes), "")
    if not letter or tensor.shape[axis := axes.index(letter)] == 1:
        return
    h, own = torch.arange(tensor.shape[axis]), offsets(tensor.shape, tensor.stride())
    ways = {"next-head": (h + 1) % len(h)}
    if letter == "h" and 1 < case.kv_heads < case.heads:
        ways["kv-head"] = h * case.kv_heads // case.heads
        ways["kv-head-remainder"] = h % case.kv_heads
    for way, index in ways.items():
        summary = f"{title(name)} of another head is read: {way.replace('-', ' ')}"
        yield _Way(f"index/{name}-{way}", "S3", summary, "", own.index_select(axis, index), letter)
