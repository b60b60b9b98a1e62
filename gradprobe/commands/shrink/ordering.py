"""The ordering of cases: what simpler means, one part of the key after another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...model.assignment import KNOWN, TENSORS
from ...model.case import DTYPES, PATTERNS, Case
from ...probing.experiment import layouts_of

# The value with which each option is off. Those of a family's own, and scale and tau, are in `options_on`.
OFF: dict[str, Any] = {
    "causal": False, "window": None, "softcap": None, "bias": False, "bias_axes": Case.bias_axes, "alibi": False,
    "mask": None, "sinks": False, "dropout": 0.0, "seqlens": None, "cu_seqlens_q": None, "align": Case.align,
    "repeat": 1, "poison": False, "strict": False, "dots": None,
    "block_m": Case.block_m, "block_n": Case.block_n,
}  # fmt: skip
_NO_LIMIT = -1


def key(case: Case) -> tuple[Any, ...]:
    """The sort key of a case: a smaller key is a simpler case. It has one part for each of AXES."""
    return tuple(part(case) for part in AXES.values())


def settled(case: Case) -> Case:
    """The case with its layouts in normal form: as runs, without the tensors that lie contiguous."""
    runs = (tuple(one for one in assigned if one[1] != "contiguous") for assigned in layouts_of(case))
    return replace(case, layouts=(), runs=tuple(runs))


def options_on(case: Case) -> list[str]:
    """The options that a case uses. The lazy family is causal whatever is asked for."""
    found = [name for name, off in OFF.items() if getattr(case, name) != off]
    found = [name for name in found if not (name == "causal" and case.family == "lazy")]
    found += ["scale"] if not has_default_scale(case) else []
    return found + (["tau"] if any(case.tau or ()) else [])


def has_default_scale(case: Case) -> bool:
    """Whether the scale is that of its head dim."""
    return math.isclose(case.scale, float(case.head_dim) ** -0.5, rel_tol=1e-12)


def sequences(case: Case) -> int:
    """How many sequences there are: batches, or what is packed into one."""
    return case.batch if case.cu_seqlens_q is None else len(case.cu_seqlens_q) - 1


def _lengths(case: Case) -> tuple[int, ...]:
    """The longer of rows and keys; then a square before any other matrix; then both."""
    return _pair(case.seqlen_q, case.seqlen_k)


def _pair(rows: int, keys: int) -> tuple[int, ...]:
    return max(rows, keys), int(rows != keys), rows + keys


def _options(case: Case) -> tuple[Any, ...]:
    """How many options are on; then how far the window, the bias and the lengths reach, and how many taus there are."""
    window = tuple(0 if end == _NO_LIMIT else end + 1 for end in case.window or ())
    bias = case.bias_window if case.bias and case.family == "lazy" else 0
    lengths = (len(set(case.seqlens or ())), sum(case.seqlens or ()))
    return len(options_on(case)), sum(window), bias, lengths, len(set(case.tau or ()))


def _layouts(case: Case) -> tuple[int, ...]:
    """How many runs; then how many tensors lie otherwise than contiguous; then how far down the list of layouts."""
    runs = layouts_of(case)
    placed = [(tensor, layout) for assigned in runs for tensor, layout in assigned if layout != "contiguous"]
    count = sum(len(TENSORS) if tensor == "all" else 1 for tensor, _ in placed)
    return len(runs), count, sum(KNOWN.index(layout) for _, layout in placed)


AXES: dict[str, Callable[[Case], Any]] = {
    "batch": sequences,
    "heads": lambda case: case.heads,
    "groups": lambda case: case.heads // case.kv_heads,
    "lengths": _lengths,
    "dims": lambda case: _pair(case.head_dim, case.head_dim_v),
    "options": _options,
    "layouts": _layouts,
    "values": lambda case: (PATTERNS.index(case.pattern), case.seed),
    "dtype": lambda case: DTYPES.index(case.dtype),
}
"""One part of the key each, the first the most important: a case with fewer heads is simpler however long it is.

batch    fewer batches, or packed sequences
heads    fewer query heads
groups   fewer query heads to a key head, towards 1
lengths  fewer query rows and keys: see `_lengths`
dims     smaller head dims of q, k and of v, likewise
options  fewer options on, then smaller ones: see `_options`
layouts  one run rather than several, fewer tensors that do not lie contiguous: see `_layouts`
values   the pattern normal, then the others in their order; a smaller seed
dtype    float32, float16, bfloat16
"""


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
    group = case.heads // case.kv_heads
    if count % group == 0:
        yield case.with_heads(count, count // group)
    yield case.with_heads(count, count)


def shorter(case: Case) -> Iterator[Case]:
    """The case with fewer rows and keys."""
    if case.cu_seqlens_q is not None:
        yield from _shorter_packed(case)
        return
    rows, keys, blocks = case.seqlen_q, case.seqlen_k, (case.block_m, case.block_n)
    for size in ladder(max(rows, keys) + (rows != keys), blocks):
        yield case.with_lengths(size, size)
    if rows != keys:
        yield from (case.with_lengths(size, keys) for size in ladder(rows, blocks))
        yield from (case.with_lengths(rows, size) for size in ladder(keys, blocks))


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
