"""A tensor is read or stored by other strides, or at another index."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.assignment import dense_strides
from ..model.intermediates import AXIS_WORDS, DERIVED, KINDS, MATRIX_OF, title
from ..numerics.declared_precision import Tensors
from .hypothesis import Hypothesis, WrongRun, entered
from .variant import found_at, offsets, whole_storage

_AXES = AXIS_WORDS | {"g": "head", "n": "row"}
_FIELDS = ("q", "k", "v", "do", "bias", "tau", "alibi", "mask", "sinks", "keep")


class _Way(NamedTuple):
    fault: str
    summary: str
    fix: str
    strides: Sequence[int]
    axes: str = ""  # where that is so; "" for all
    # An axis, and which head is taken for each of it.
    heads: tuple[int, Tensor] | None = None

    def at(self, tensor: Tensor) -> Tensor:
        found = offsets(tensor.shape, self.strides)
        return found if self.heads is None else found.index_select(*self.heads)


def readable(seen: WrongRun) -> dict[str, Tensor]:
    """As they lie; LSE, O, delta not handed in contiguous."""
    found = {name: of for name, of in seen.tensors.items() if name in {*_FIELDS, *DERIVED}}
    for name, intermediate in DERIVED.items():
        if name not in found and intermediate in seen.expected:
            found[name] = seen.actual.get(intermediate, seen.expected[intermediate]).contiguous()
    return {name: tensor for name, tensor in found.items() if _axes_of(name, seen)}


def _axes_of(name: str, seen: WrongRun) -> str:
    axes, tensor = seen.case.input_axes(name), seen.tensors.get(name)
    return axes if tensor is None or tensor.dim() == len(axes) else ""


def elsewhere(seen: WrongRun) -> Iterator[Hypothesis]:
    case, tensors = seen.case, readable(seen)
    for ways in (_as_contiguous, _by_other_strides, _without_a_term, _of_another_head):
        for name, tensor in tensors.items():
            is_addressed = seen.launches or name in seen.tensors
            is_asked = is_addressed or ways in (_without_a_term, _of_another_head)
            for way in _each_once(tensor, ways(seen, name, tensor)) if is_asked else ():
                reads = {name: found_at(tensor, way.at(tensor))}
                yield _hypothesis(way, name, entered(name, case.family), reads=reads)
    if 1 < case.kv_heads < case.heads:
        heads = {"key_heads": torch.arange(case.heads, device=seen.x.q.device) % case.kv_heads}
        summary = "query heads read key head h % kv_heads, not h // group"
        way = _Way("index/kv-head", summary, "h // (heads // kv_heads)", (), "g")
        yield _hypothesis(way, "k", {"LSE", "P", "O", "dP", "dQ", "dK", "dV"}, reads=heads)
    for gradient in MATRIX_OF:
        if gradient in seen.own and gradient.lower() in seen.tensors:
            yield from _stored(seen, gradient, seen.tensors[gradient.lower()])


def _hypothesis(way: _Way, tensor: str, wrong: Collection[str], **what: Any) -> Hypothesis:
    return Hypothesis(*way[:2], {}, way.fix, wrong, tensor=tensor, axes=way.axes, **what)


def _each_once(tensor: Tensor, ways: Iterable[_Way]) -> Iterator[_Way]:
    """Strides along axes of one element make no difference."""
    has_several = [size > 1 for size in tensor.shape]
    tried = {tuple(compress(tensor.stride(), has_several))}
    for way in ways:
        taken = tuple(compress(way.strides, has_several))
        if way.heads is not None or taken not in tried:
            tried.add(taken)
            yield way


# --- gradients that are stored elsewhere


def _stored(seen: WrongRun, gradient: str, tensor: Tensor) -> Iterator[Hypothesis]:
    name, ways = gradient.lower(), list[_Way]()
    ways += _by_other_strides(seen, name, tensor, "store", "is stored")
    summary, axes = f"{gradient} is stored as if it were contiguous", _axes_of(name, seen)
    ways.append(_Way(f"layout/{name}", summary, "", dense_strides(tensor.shape), axes))
    for way in _each_once(tensor, ways):
        finish = partial(_stored_at, gradient, tensor, way.at(tensor))
        yield _hypothesis(way, name, (gradient,), finish=finish)


def _stored_at(gradient: str, tensor: Tensor, at: Tensor, values: Tensors) -> Tensors:
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


def _as_contiguous(seen: WrongRun, name: str, tensor: Tensor) -> Iterator[_Way]:
    shape, own, dense = tuple(tensor.shape), tensor.stride(), dense_strides(tensor.shape)
    ways = {"as if it were contiguous": dense}
    if len(shape) > 1:
        ways["as if its last stride were 1"] = (*own[:-1], 1)
        ways["as if its rows were contiguous"] = (*own[:-2], *dense[-2:])
    if len(shape) == 4:
        ways["as [B, L, H, D]"] = (dense[0], shape[3], shape[1] * shape[3], 1)
        ways["as if each of its heads were contiguous"] = (*own[:2], *dense[2:])
    if _axes_of(name, seen).startswith("bh"):
        ways["as if batches and heads lay one behind the other"] = (own[1] * shape[1], *own[1:])
    fix = f"take every stride of {title(name)} from the tensor, or refuse other layouts"
    for words, strides in ways.items():
        summary = f"{title(name)} is addressed {words}, and does not lie so"
        yield _Way(f"layout/{name}", summary, fix, strides)


def _by_other_strides(
    seen: WrongRun, name: str, tensor: Tensor, kind: str = "stride", verb: str = "is read"
) -> Iterator[_Way]:
    axes = _axes_of(name, seen)
    tensors = (readable(seen) if seen.launches else {}) | dict(seen.tensors)
    own = [KINDS.get(letter, "?") for letter in axes]
    for kinds in ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd"):
        along = [axis for axis, letter in enumerate(own) if letter in kinds]
        for other in tensors if len(along) == len(kinds) else ():
            theirs = dict(zip(map(KINDS.get, _axes_of(other, seen)), tensors[other].stride()))  # noqa: B905
            # All strides of what the wrapper allocates are those of a contiguous tensor: that is another fault.
            is_foreign = other in seen.tensors or len(kinds) == 1
            if other == name or not is_foreign or not {*kinds} <= theirs.keys():
                continue
            taken, letters = list(tensor.stride()), "".join(axes[axis] for axis in along)
            for axis in along:
                taken[axis] = theirs[own[axis]]
            words = [*dict.fromkeys(map(_AXES.__getitem__, letters))]
            which = f"{' and '.join(words)} stride{'s' * (len(words) > 1)}"
            if len(along) == len(axes):
                words, which = [], "strides"
            summary = f"{title(name)} {verb} with {title(other)}'s {which}"
            yield _Way("-".join((f"{kind}/{name}", *words)), summary, "", taken, letters)


# --- other numbers in an index


def _without_a_term(seen: WrongRun, name: str, tensor: Tensor) -> Iterator[_Way]:
    axes, of = _axes_of(name, seen), title(name)
    long = {axis for axis, size in zip(axes, tensor.shape, strict=True) if size > 1}
    for missing in ("b", "h", "g", "bh", "bg", "m", "n"):
        if not {*missing} <= long:
            continue
        # A bias of one key in every key adds the same to all scores of a row, as none does. A mask of keys alone shows
        # key 0: its mask in every key is the mask left out.
        if missing == "n" and (name == "bias" or (name == "mask" and "m" not in axes)):
            continue
        words = ["key" if axis == "n" and "m" in axes else _AXES[axis] for axis in missing]
        left = list(tensor.stride())
        for axis in missing:
            left[axes.index(axis)] = 0
        first, every = " 0 and ".join(words), " and ".join(words)
        summary = f"{of} of {first} 0 is read in every {every}: a term of its index is missing"
        fix = f"add the {every} times its stride to the pointer of {of}"
        yield _Way("-".join((f"index/{name}", *words)), summary, fix, left, missing)


def _of_another_head(seen: WrongRun, name: str, tensor: Tensor) -> Iterator[_Way]:
    axes, case = _axes_of(name, seen), seen.case
    if "h" in axes and 1 < case.kv_heads < case.heads == tensor.shape[axes.index("h")]:
        heads = axes.index("h"), torch.arange(case.heads) * case.kv_heads // case.heads
        summary = f"{title(name)} of another head is read: that of its key head's number"
        yield _Way(f"index/{name}-kv-head", summary, "", tensor.stride(), "h", heads)
