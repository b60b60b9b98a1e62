"""Cases of other sizes: what follows from fewer sequences, heads, rows or dims."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..cases.case import Case
from .ordering import has_default_scale

_FIRST = (1, 2, 3, 4)


def ladder(size: int, blocks: Sequence[int] = ()) -> list[int]:
    """Sizes below one, ascending: the first few, powers of two, around the multiples of blocks, its half, one less."""
    marks = {*_FIRST, *(2**power for power in range(3, size.bit_length())), size // 2, size - size // 4, size - 1}
    for block in blocks:
        for multiple in (block, 2 * block, size // block * block):
            marks |= {multiple - 1, multiple, multiple + 1}
    return sorted(mark for mark in marks if 1 <= mark < size)


def with_sequences(case: Case, count: int) -> Iterator[Case]:
    """The case with fewer batches or packed sequences: the first of them, and the last."""
    if case.cu_seqlens_q is not None and case.cu_seqlens_k is not None:
        rows, keys = _packed(case)
        yield repacked(case, rows[:count], keys[:count])
        yield repacked(case, rows[-count:], keys[-count:])
    elif case.seqlens is None:
        yield replace(case, batch=count)
    else:
        yield replace(case, batch=count, seqlens=case.seqlens[:count])
        yield replace(case, batch=count, seqlens=case.seqlens[-count:])


def _packed(case: Case) -> tuple[list[int], list[int]]:
    """The lengths of the packed sequences."""
    ends = (case.cu_seqlens_q or (), case.cu_seqlens_k or ())
    rows, keys = ([end - start for start, end in itertools.pairwise(one)] for one in ends)
    return rows, keys


def repacked(case: Case, rows: Sequence[int], keys: Sequence[int]) -> Case:
    """The case with packed sequences of these lengths."""
    ends, key_ends = (tuple(itertools.accumulate(one, initial=0)) for one in (rows, keys))
    return replace(case, cu_seqlens_q=ends, cu_seqlens_k=key_ends, seqlen_q=ends[-1], seqlen_k=key_ends[-1])


def with_heads(case: Case, count: int) -> Iterator[Case]:
    """The case with fewer query heads: with groups as they are where they divide them, and with groups of one."""
    group, tau = case.heads // case.kv_heads, None if case.tau is None else case.tau[:count]
    if count % group == 0:
        yield replace(case, heads=count, kv_heads=count // group, tau=tau)
    yield replace(case, heads=count, kv_heads=count, tau=tau)


def shorter(case: Case) -> Iterator[Case]:
    """The case with fewer rows and keys."""
    if case.cu_seqlens_q is not None:
        yield from _shorter_packed(case)
        return
    rows, keys, blocks = case.seqlen_q, case.seqlen_k, (case.block_m, case.block_n)
    for size in ladder(max(rows, keys) + (rows != keys), blocks):
        yield with_lengths(case, size, size)
    if rows != keys:
        yield from (with_lengths(case, size, keys) for size in ladder(rows, blocks))
        yield from (with_lengths(case, rows, size) for size in ladder(keys, blocks))


def with_lengths(case: Case, rows: int, keys: int) -> Case:
    """The case with other lengths; the lengths of padded sequences are cut to fit."""
    seqlens = None if case.seqlens is None else tuple(min(length, rows) for length in case.seqlens)
    return replace(case, seqlen_q=rows, seqlen_k=keys, seqlens=seqlens)


def _shorter_packed(case: Case) -> Iterator[Case]:
    """The case with one packed sequence shorter, for each sequence in turn."""
    rows, keys = _packed(case)
    for at, (row_count, key_count) in enumerate(zip(rows, keys, strict=True)):
        for size in (0, *ladder(max(row_count, key_count), (case.block_m, case.block_n))):
            fewer_rows = [*rows[:at], min(size, row_count), *rows[at + 1 :]]
            fewer_keys = [*keys[:at], min(size, key_count), *keys[at + 1 :]]
            if sum(fewer_rows) and sum(fewer_keys):
                yield repacked(case, fewer_rows, fewer_keys)


def with_dims(case: Case, dim: int, value_dim: int) -> Case:
    """The case with other head dims. A default scale follows the head dim."""
    scale = float(dim) ** -0.5 if has_default_scale(case) else case.scale
    return replace(case, head_dim=dim, head_dim_v=value_dim, scale=scale)
