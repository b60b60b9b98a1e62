"""S3: a tensor of another head, batch or row is read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..model.intermediates import title
from .hypothesis import AXES, Hypothesis, Observed
from .memory import axes_of, misreading, readable
from .variant import Variant, wide


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Each term of each index missing; the number of another head; the key heads in another order."""
    tensors = {name: wide(tensor) for name, tensor in readable(seen).items()}
    for name, tensor in tensors.items():
        yield from _without_a_term(seen, name, tensor)
        yield from _by_another_number(seen, name, tensor)
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
        first, every = " and ".join(f"{one} 0" for one in words), " and ".join(words)
        summary = f"{title(name)} of {first} is read in every {every}: that term of its index is missing"
        yield misreading(seen, name, read, f"index/{name}-{'-'.join(words)}", "S3", summary, axes=missing)


def _by_another_number(seen: Observed, name: str, tensor: Tensor) -> Iterator[Hypothesis]:
    """A head's tensor read under another number: the key head's, the next head's, or its own modulo a limit."""
    axes, case = axes_of(name, seen), seen.case
    letter = next((axis for axis in "hg" if axis in axes), "")
    if not letter or tensor.shape[at := axes.index(letter)] == 1:
        return
    count = tensor.shape[at]
    heads = torch.arange(count, device=tensor.device)
    maps = {f"{name}-next-head": ("the next head", (heads + 1) % count)}
    if letter == "h" and 1 < case.kv_heads < case.heads:
        group = case.heads // case.kv_heads
        maps[f"{name}-kv-head"] = ("the head that has its key head's number", heads // group)
        maps[f"{name}-kv-head-remainder"] = ("head h % kv_heads", heads % case.kv_heads)
    maps |= {f"{name}-head-mod-{n}": (f"head h % {n}", heads % n) for n in (2, 4, 8, 16) if n < count}
    for word, (words, index) in maps.items():
        read = tensor.index_select(at, index)
        yield misreading(seen, name, read, f"index/{word}", "S3", f"{title(name)} of {words} is read", axes=letter)


def _key_heads_by_remainder(seen: Observed) -> Hypothesis:
    case, x = seen.case, seen.x
    heads = torch.arange(case.heads, device=x.q.device)
    owner = heads % case.kv_heads
    share = (owner == torch.arange(case.kv_heads, device=x.q.device)[:, None]).double()

    def alter(variant: Variant) -> Variant:
        of = variant.x
        return variant.reading(k=of.k[:, owner], v=of.v[:, owner]).sharing(share)

    summary = "query heads read key head h % kv_heads, where h // group is meant"
    changes, fix = frozenset({"LSE", "P", "O", "dP", "dQ", "dK", "dV"}), "h // (heads // kv_heads)"
    return Hypothesis("index/kv-head", "S3", summary, alter, changes, fix=fix, tensor="k", axes="g")
