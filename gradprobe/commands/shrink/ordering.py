"""The ordering of cases: what simpler means, one part of the key after another."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    runs = (
        tuple(pair for pair in assigned if pair[1] != "contiguous")
        for assigned in layouts_of(case)
    )
    return replace(case, layouts=(), runs=tuple(runs))


def options_on(case: Case) -> list[str]:
    """The options that a case uses. The lazy family is causal whatever is asked for."""
    found = [name for name, off in OFF.items() if getattr(case, name) != off]
    if case.family == "lazy" and "causal" in found:
        found.remove("causal")
    if not has_default_scale(case):
        found.append("scale")
    return [*found, "tau"] if any(case.tau or ()) else found


def has_default_scale(case: Case) -> bool:
    """Whether the scale is that of its head dim."""
    return math.isclose(case.scale, float(case.head_dim) ** -0.5, rel_tol=1e-12)


def sequences(case: Case) -> int:
    """How many sequences there are: batches, or what is packed into one."""
    return case.batch if case.cu_seqlens_q is None else len(case.cu_seqlens_q) - 1


def _pair(rows: int, keys: int) -> tuple[int, ...]:
    """The longer of two; then a square before any other matrix; then both."""
    return max(rows, keys), int(rows != keys), rows + keys


def _options(case: Case) -> tuple[Any, ...]:
    """How many options are on; then how far the window, the bias and the lengths reach, and how many taus there are."""
    window = tuple(0 if end == _NO_LIMIT else end + 1 for end in case.window or ())
    bias = case.bias_window if case.bias and case.family == "lazy" else 0
    lengths = (len(set(case.seqlens or ())), sum(case.seqlens or ()))
    return len(options_on(case)), sum(window), bias, lengths, len(set(case.tau or ()))


def _layouts(case: Case) -> tuple[int, ...]:
    """How many runs; then how many tensors lie otherwise than contiguous; then how far down the list of layouts."""
    runs, count, places = layouts_of(case), 0, 0
    for tensor, layout in (pair for assigned in runs for pair in assigned):
        if layout != "contiguous":
            count += len(TENSORS) if tensor == "all" else 1
            places += KNOWN.index(layout)
    return len(runs), count, places


AXES: dict[str, Callable[[Case], Any]] = {
    "batch": sequences,
    "heads": lambda case: case.heads,
    "groups": lambda case: case.heads // case.kv_heads,
    "lengths": lambda case: _pair(case.seqlen_q, case.seqlen_k),
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
lengths  fewer query rows and keys: see `_pair`
dims     smaller head dims of q, k and of v, likewise
options  fewer options on, then smaller ones: see `_options`
layouts  one run rather than several, fewer tensors that do not lie contiguous: see `_layouts`
values   the pattern normal, then the others in their order; a smaller seed
dtype    float32, float16, bfloat16
"""
