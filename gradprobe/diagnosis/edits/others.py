"""Others: small cases unlike the check's, which tell an edit that is right from one that is so in the check alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...model.assignment import Assigned
from ...model.case import Case, fewer_heads

DISTINCT: Assigned = (("all", "distinct"),)
_STRIDED = ("distinct", "distinct-unit", "distinct-ordered")
VIEWS: Assigned = (("q", "blhd"), ("k", "blhd"), ("v", "blhd"))


@dataclass(frozen=True)
class Lengths:
    """Of one side, and of a longer other one."""

    short: int
    long: int


# Both end inside every usual tile, and the longer has more than one of 64; whole tiles where these are not taken.
TAILS, WHOLE = Lengths(41, 70), Lengths(64, 128)
_LONGEST = Lengths(128, 256)
# One tile alone of 16 to 128, whole tiles, an odd number of them, and ends inside one: drawn for what was not reached.
_MORE = ((16, 16), (13, 13), (48, 48), (128, 128), (139, 139), (80, 80), (139, 41), (41, 139), (256, 256), (384, 384))
_DIMS = (128, 16)
# Of which half is another head dim, and not twice as much.
_WIDE = 64
_GROUPED, _EACH, _SEVERAL = (4, 2), (3, 3), 3
# By parameter, the option of a case that is off by default, and what it is when it is on.
_OPTIONS: dict[str, tuple[str, Any, Any]] = {
    "softcap": ("softcap", None, 1.5), "bias": ("bias", False, True), "alibi": ("alibi", False, True),
    "mask": ("mask", None, "dead-rows"), "sinks": ("sinks", False, True), "keep": ("dropout", 0.0, 0.3),
}  # fmt: skip


def ladder(case: Case) -> tuple[Lengths, ...]:
    """The lengths with which cases are tried, until the target takes them; last the check's own."""
    return TAILS, WHOLE, _LONGEST, Lengths(case.seqlen_q, 2 * case.seqlen_q)


@dataclass(frozen=True)
class Other:
    """One case, and in what it is unlike the check."""

    feature: str
    """In words: "grouped heads"."""
    case: Case
    assigned: Assigned = ()
    is_spread: bool = False
    """Whether what the target allocates itself lies apart."""


def others(
    case: Case,
    takes: Collection[str],
    required: Collection[str],
    lengths: Lengths,
    laid: Collection[str] = (),
    *,
    is_again: bool = False,
) -> Iterator[Other]:
    """The cases that every edit is to be right in, as far as the target takes them; none of values from a file.

    Args:
        takes: the target's parameters, by the names that are used here.
        required: those without a default.
        laid: the layouts that the check itself has.
        is_again: whether all were tried with other lengths.
    """
    if case.inputs is not None or case.cu_seqlens_q:
        return
    base = _small(case, lengths)
    yield Other(f"{lengths.short} rows, other batches and heads", base)
    yield Other("what it allocates laid apart", _few(base), is_spread=True)
    strided: Assigned = next(((("all", name),) for name in _STRIDED if name in laid), ())
    if not strided:
        yield Other("other strides", _few(base), DISTINCT)
        yield Other("views of [B, L, H, D]", _few(base), VIEWS)
    # What an option chooses is to be right in other strides too, where they are taken.
    for other in _of_options(case, base, takes, required, lengths):
        yield other if is_again else replace(other, assigned=strided)
    if "causal" in takes and not strided:
        words = "other strides without a causal mask" if base.causal else "other strides and a causal mask"
        yield Other(words, replace(_few(base), causal=not base.causal), DISTINCT)


def _of_options(
    case: Case, base: Case, takes: Collection[str], required: Collection[str], lengths: Lengths
) -> Iterator[Other]:
    """What is taken as other options, dtypes and head dims."""
    yield from _of_family(base, takes, lengths) if case.family == "softmax" and not case.seqlens else ()
    for parameter, (name, off, on) in _OPTIONS.items():
        if parameter in takes and case.family == "softmax" and not (parameter in required and getattr(case, name)):
            value = on if getattr(case, name) == off else off
            yield Other(f"{'with' if value == on else 'without'} {name}", replace(_few(base), **{name: value}))
    if case.family == "lazy" and "bias" in takes:
        yield Other("another bias", replace(_few(base), bias_window=case.bias_window // 2 + 1))
        if "bias" not in required:
            yield Other("no bias", replace(_few(base), bias=False))
    dtype = "float16" if case.dtype != "float16" else "bfloat16"
    yield Other(dtype, replace(_few(_small(case, WHOLE if lengths is TAILS else lengths)), dtype=dtype))
    if base.head_dim == base.head_dim_v:
        yield _with_dim(base, 2 * base.head_dim if base.head_dim <= _WIDE else base.head_dim // 2)
        yield _with_dim(base, base.head_dim + 8)


def _of_family(base: Case, takes: Collection[str], lengths: Lengths) -> Iterator[Other]:
    """What softmax attention has and lazy attention has not: two lengths, both masks, groups, another value dim."""
    few, short, long = _few(base), lengths.short, lengths.long
    causal = replace(few, causal="causal" in takes or base.causal)
    if "causal" in takes:
        yield Other("no causal mask" if base.causal else "a causal mask", replace(few, causal=not base.causal))
    yield Other("fewer rows than keys", causal.with_lengths(short, long))
    yield Other("more rows than keys", causal.with_lengths(long, short))
    if "causal" in takes:
        yield Other("two lengths without a causal mask", replace(few, causal=False).with_lengths(long, short))
    if "window" in takes:
        yield Other("a window to the left", replace(causal, window=(20, -1)).with_lengths(long, long))
        yield Other("a window on both sides", replace(few, causal=False, window=(9, 20)).with_lengths(long, long))
        if base.window is not None:
            yield Other("no window", replace(causal, window=None))
    grouped = base.heads != base.kv_heads
    if "h" in base.shapes and base.bias_axes == Case.bias_axes:
        words, heads = ("as many key heads as heads", _EACH) if grouped else ("grouped heads", _GROUPED)
        yield Other(words, few.with_heads(*heads))
    if base.head_dim == base.head_dim_v:
        yield Other("another value dim", replace(few, head_dim_v=2 * base.head_dim))


def further(case: Case, takes: Collection[str], taken: Collection[str]) -> Iterator[Other]:
    """More cases, for what none of the others reached.

    Args:
        taken: the features of the cases that the target takes.
    """
    if case.inputs is not None or case.cu_seqlens_q or case.seqlens:
        return
    two = {"fewer rows than keys", "more rows than keys"} <= set(taken)
    dims = [
        dim for dim in _DIMS if dim != case.head_dim == case.head_dim_v and _with_dim(case, dim).feature not in taken
    ]
    yield from (_with_dim(_small(case, WHOLE), dim) for dim in dims)
    for rows, keys in _MORE:
        if rows == keys or two:
            few = _few(_small(case, TAILS), 1).with_lengths(rows, keys)
            for causal in (True, False) if "causal" in takes and case.family == "softmax" else (case.causal,):
                size = f"{rows} rows" if rows == keys else f"{rows} rows and {keys} keys"
                words = f"{size}{' and a causal mask' if causal and 'causal' in takes else ''}"
                yield Other(words, replace(few, causal=causal))


def _with_dim(case: Case, dim: int) -> Other:
    """Few heads of another dim, with the scale that it has where none was asked for."""
    scale = dim**-0.5 if case.scale == case.head_dim**-0.5 else case.scale
    return Other(f"head dim {dim}", replace(_few(case), head_dim=dim, head_dim_v=dim, scale=scale))


def _small(case: Case, lengths: Lengths) -> Case:
    """Three batches and key heads, where it has axes for them, of a short length, with other values."""
    keys = _SEVERAL if "h" in case.shapes else case.kv_heads
    heads = case.heads // case.kv_heads * keys
    tau = None if case.tau is None else (case.tau * heads)[:heads]
    batch = _SEVERAL if "b" in case.shapes and not case.seqlens else case.batch
    bare = replace(case, batch=batch, heads=heads, kv_heads=keys, tau=tau, seed=case.seed + 1, taps=())
    return bare.with_lengths(lengths.short, lengths.short)


def _few(case: Case, batches: int = 2) -> Case:
    """A few batches of two key heads: what an option chooses may be another kernel, with strides of its own."""
    few = case if case.seqlens else replace(case, batch=min(batches, case.batch))
    return few.with_heads(*fewer_heads(case.heads, case.kv_heads, 2))
