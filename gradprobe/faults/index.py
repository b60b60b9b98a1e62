"""S1, S2, S3, I64, M3: a tensor is read or stored by other strides, at another index, beyond its end or wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.intermediates import DERIVED, KINDS, MATRIX_OF, title
from .hypothesis import Hypothesis, Observed, entered
from .variant import Formula

_AXES = {"b": "batch", "h": "head", "g": "head", "m": "row", "n": "row", "d": "dim", "e": "dim", "w": "distance"}
_FIELDS = ("q", "k", "v", "do", "bias", "tau", "alibi", "mask", "sinks", "keep")
"""Tensors that the reference's problem holds, by the same names."""
GRADIENTS = {name.lower(): name for name in MATRIX_OF}
"""By the name of the output that a gradient is stored into."""


# --- tensors as addresses find them


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


def _found_at(tensor: Tensor, at: Tensor) -> Tensor:
    """What lies so far from a tensor's first element; NaN outside its storage."""
    flat, at = whole_storage(tensor), at.to(tensor.device) + int(tensor.storage_offset())
    inside = (at >= 0) & (at < len(flat))
    read = flat[at.clamp(0, len(flat) - 1)]
    if bool(inside.all()):
        return read
    return read.double().masked_fill(~inside, torch.nan) if read.is_floating_point() else read & inside


def whole_storage(tensor: Tensor) -> Tensor:
    """Everything in a tensor's storage, as one row."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def _offsets(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """How far each element of a shape lies from the first."""
    total: Tensor = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(shape, strides, strict=True):
        total = total[..., None] + torch.arange(size).mul(stride)
    return total


class _Way(NamedTuple):
    """Where else than at their places the elements of a tensor may be taken to lie."""

    row: tuple[str, str, str]
    """The fault, its class, and what is said of the tensor."""
    at: Tensor
    """How far each element is taken to lie from the first."""
    axes: str = ""
    """Along which axes that is so; "" for all."""
    strides: tuple[int, ...] = ()
    fix: str = ""


def elsewhere(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, and every gradient that was handed in to be written, at other places."""
    tensors, addressed = readable(seen), _addressed(seen)
    for some, ways in (
        (addressed, _as_contiguous),
        (addressed, _by_other_strides),
        (tensors, _without_a_term),
        (tensors, _of_another_head),
        (tensors, _wrapped),
    ):
        for name, tensor in some.items():
            wrong = entered(name, seen.case.family)
            for way in _each_once(tensor, ways(seen, name, tensor)):
                reads = {name: _found_at(tensor, way.at)}
                yield Hypothesis(
                    *way.row, fix=way.fix, wrong=wrong, reads=reads, tensor=name, axes=way.axes,
                    taken=way.strides if way.axes else (),
                )  # fmt: skip
    yield from _of_key_heads(seen)
    for name, gradient in GRADIENTS.items():
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


_LARGEST = 1 << 24
"""Elements of a storage that is copied to see what stores leave in it."""


def _stored(seen: Observed, name: str, gradient: str, tensor: Tensor) -> Iterator[Hypothesis]:
    """A gradient stored with each other tensor's strides; as if it were contiguous; and where offsets wrap."""
    ways = list(_wrapped(seen, name, tensor))
    if len(whole_storage(tensor)) <= _LARGEST:
        dense = _dense(tensor)
        row = f"layout/{name}", "S2", f"{gradient} is stored as if it were contiguous"
        others = _by_other_strides(seen, name, tensor, "store", "is stored")
        contiguous = _Way(row, _offsets(tensor.shape, dense), axes_of(name, seen), dense)
        ways = [*_each_once(tensor, (*others, contiguous)), *ways]
    for way in ways:
        finish = partial(_stored_at, gradient, tensor, way.at)
        yield Hypothesis(
            *way.row, fix=way.fix, wrong=(gradient,), finish=finish, tensor=name, axes=way.axes, not_finite=True
        )


def _stored_at(gradient: str, tensor: Tensor, at: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What is found at a gradient's own places once all of it was stored elsewhere."""
    if gradient not in values:
        return {}
    flat, first = whole_storage(tensor), int(tensor.storage_offset())
    own = (_offsets(tensor.shape, tensor.stride()) + first).to(tensor.device)
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
        row = f"layout/{name}", "S2", f"{title(name)} is addressed {words}, and does not lie so"
        yield _Way(row, _offsets(shape, strides), "", strides, fix)


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of this shape without gaps."""
    return torch.empty(tuple(tensor.shape), device="meta").stride()


def _by_other_strides(
    seen: Observed, name: str, tensor: Tensor, kind: str = "stride", verb: str = "is read"
) -> Iterator[_Way]:
    """A tensor with each other tensor's strides along some axes, one axis first.

    Kernels are known to mix up one stride, those of a program's offset, those of a tile, or all.
    """
    own, others = axes_of(name, seen), _addressed(seen) | dict(seen.tensors)
    for kinds in ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd"):
        axes = "".join(axis for axis in own if KINDS.get(axis, "?") in kinds)
        for other, theirs in others.items() if len(axes) == len(kinds) else ():
            named = dict(zip((KINDS.get(axis, "?") for axis in axes_of(other, seen)), theirs.stride(), strict=False))
            # All strides of what the wrapper allocates are those of a contiguous tensor: that is another fault.
            foreign = other in seen.tensors or len(axes) == 1
            if other != name and foreign and set(kinds) <= named.keys():
                taken = list(tensor.stride())
                for axis in axes:
                    taken[own.index(axis)] = named[KINDS[axis]]
                words = list(dict.fromkeys(_AXES[axis] for axis in axes))
                fault = "-".join([f"{kind}/{name}", *(words if len(axes) < len(own) else ())])
                which = f"{' and '.join(words)} " if len(axes) < len(own) else ""
                summary = f"{title(name)} {verb} with {title(other)}'s {which}stride{'s' * (len(words) > 1)}"
                yield _Way((fault, "S1", summary), _offsets(tensor.shape, taken), axes, tuple(taken))
    for first, second in combinations([at for at, axis in enumerate(own) if axis in _AXES], 2):
        taken, words = list(tensor.stride()), list(dict.fromkeys((_AXES[own[first]], _AXES[own[second]])))
        taken[first], taken[second] = taken[second], taken[first]
        summary = f"{title(name)} {verb} with its own {' and '.join(words)} strides swapped"
        row = f"{kind}/{name}-{'-'.join(words)}", "S1", summary
        yield _Way(row, _offsets(tensor.shape, taken), own[first] + own[second], tuple(taken))


# --- other numbers in an index


def _without_a_term(seen: Observed, name: str, tensor: Tensor) -> Iterator[_Way]:
    axes = axes_of(name, seen)
    for missing in ("b", "h", "g", "bh", "bg", "m", "n"):
        if not set(missing) <= set(axes) or any(tensor.shape[axes.index(axis)] == 1 for axis in missing):
            continue
        # A bias of one key in every key adds the same to all scores of a row, as none does. A mask of keys alone shows
        # key 0: its mask in every key is the mask left out.
        if missing == "n" and (name == "bias" or (name == "mask" and "m" not in axes)):
            continue
        words = ["key" if axis == "n" and "m" in axes else _AXES[axis] for axis in missing]
        left = [0 if axis in missing else step for axis, step in zip(axes, tensor.stride(), strict=True)]
        first, every = " 0 and ".join(words), " and ".join(words)
        summary = f"{title(name)} of {first} 0 is read in every {every}: that term of its index is missing"
        fix = f"add the {every} times its stride to the pointer of {title(name)}"
        row = f"index/{name}-{'-'.join(words)}", "S3", summary
        yield _Way(row, _offsets(tensor.shape, left), missing, fix=fix)


def _of_another_head(seen: Observed, name: str, tensor: Tensor) -> Iterator[_Way]:
    """A head's tensor read under another number: the key head's, the next head's, or its own modulo a limit."""
    axes, case = axes_of(name, seen), seen.case
    letter = next((axis for axis in "hg" if axis in axes), "")
    if not letter or tensor.shape[axis := axes.index(letter)] == 1:
        return
    count, key_heads = tensor.shape[axis], case.kv_heads
    h, own = torch.arange(count), _offsets(tensor.shape, tensor.stride())
    ways = [("next-head", "the next head", (h + 1) % count)]
    if letter == "h" and 1 < key_heads < case.heads:
        ways.append(("kv-head", "the head that has its key head's number", h * key_heads // case.heads))
        ways.append(("kv-head-remainder", "head h % kv_heads", h % key_heads))
    ways += [(f"head-mod-{n}", f"head h % {n}", h % n) for n in (2, 4, 8, 16) if n < count]
    for tail, words, index in ways:
        row = f"index/{name}-{tail}", "S3", f"{title(name)} of {words} is read"
        yield _Way(row, own.index_select(axis, index), letter)


def _of_key_heads(seen: Observed) -> Iterator[Hypothesis]:
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


# --- offsets that wrap around


_LIMIT = 2**31
# Which axes' terms one expression adds up, in 32 bits, before the sum is added to a pointer.
_GROUPS = (("bhmd",), ("bh", "md"), ("b", "h", "m"), ("bh",), ("h",), ("m",), ("md",), ("b",))


def _wrapped(seen: Observed, name: str, tensor: Tensor) -> Iterator[_Way]:
    """A tensor whose offsets pass 2^31, with those of some axes in 32 bits."""
    strides, fix = tensor.stride(), "widen the index before it is multiplied: .to(tl.int64)"
    summary = f"offsets into {title(name)} wrap around at 2^31: they are 32 bits wide"
    last = sum((size - 1) * abs(step) for size, step in zip(tensor.shape, strides, strict=True))
    for groups in _GROUPS if last >= _LIMIT else ():
        at, left = torch.zeros((), dtype=torch.int64), list(strides)
        for group in groups:
            own = [0] * len(strides)
            for axis, letter in enumerate(axes_of(name, seen)):
                if KINDS.get(letter, "?") in group:
                    own[axis], left[axis] = strides[axis], 0
            at = at + (_offsets(tensor.shape, own) + _LIMIT) % (2 * _LIMIT) - _LIMIT
        yield _Way((f"wrap/{name}", "I64", summary), at + _offsets(tensor.shape, left), fix=fix)


# --- what lies beyond the end


# What rows beyond the end add to dK and dV: P of them, and with it; and what keys add to dQ.
_P = "(scale * _q[place] @ k.mT - _lse[place][..., None]).exp() * beyond(rows=count)"
_WITH_ROWS = {
    "dK": f"dK + scale * ({_P} * (_do[place] @ v.mT - _delta[place][..., None])).mT @ _q[place]",
    "dV": f"dV + ({_P}).mT @ _do[place]",
}
_HEADS = "[tile.batch, x.kv_heads(tile)]"
_WITH_KEYS = {
    "dQ": f"dQ + scale * ((scale * q @ _k{_HEADS}.mT - LSE[..., None]).exp() * beyond(keys=count)"
    f" * (do @ _v{_HEADS}.mT - delta[..., None])) @ _k{_HEADS}"
}


def read_beyond_the_end(seen: Observed) -> Iterator[Hypothesis]:
    """Rows beyond the end that reach dK and dV, and keys beyond it that reach dQ; some operands are masked to 0."""
    case, x = seen.case, seen.x
    others = (x.bias, x.mask, x.keep, x.seqlens, x.cu_seqlens_q, x.alibi, x.softcap, x.tau)
    if any(other is not None for other in others):
        return
    for size in dict.fromkeys((case.block_m, case.block_n, 16, 32, 64, 128)):
        rows, keys = -case.seqlen_q % size, -case.seqlen_k % size
        beyond = f"beyond the last one, up to a whole tile of {size},"
        for read in (("q", "do", "lse", "delta"), ("q", "do"), ("q",)) if rows else ():
            made = _with(seen, _WITH_ROWS, ("q", "do", "lse", "delta"), read, rows)
            summary = f"rows {beyond} are read from the next head and added to dK and dV"
            yield Hypothesis("tail/q", "M3", summary, made, "mask the rows by the length: offs_m < n_ctx", tensor="q")
        for read in (("k", "v"), ("k",)) if keys else ():
            made = _with(seen, _WITH_KEYS, ("k", "v"), read, keys)
            summary = f"keys {beyond} are read from the next head and added to dQ"
            yield Hypothesis("tail/k", "M3", summary, made, "mask the keys by the length: offs_n < n_ctx", tensor="k")
        if keys:
            # A load pads them with 0, as it does their values.
            made = {"LSE": f"LSE.logaddexp(beyond(keys={keys}).sum(-1).to(LSE).log())"}
            summary = f"keys {beyond} count with a score of 0"
            fix = "mask the scores by the length: tl.where(offs_n < n_ctx, s, -inf)"
            yield Hypothesis("tail/scores", "M3", summary, made, fix, ("LSE", "P", "O"))


def _with(
    seen: Observed, formulas: Mapping[str, str], every: Sequence[str], read: Sequence[str], count: int
) -> dict[str, Formula]:
    """Formulas with what lies behind the last row of each head, [B, H, count, ...]; 0 where it is masked."""
    behind: dict[str, Any] = {"count": count}
    for name in every:
        tensor = readable(seen)[name]
        shape = (*tensor.shape[:2], count, *tensor.shape[3:])
        at = _offsets(shape, tensor.stride()) + tensor.shape[2] * tensor.stride(2)
        there = _found_at(tensor, at).double().nan_to_num(0.0)
        behind[f"_{name}"] = there if name in read else there * 0
    return {name: (formula, behind) for name, formula in formulas.items()}
