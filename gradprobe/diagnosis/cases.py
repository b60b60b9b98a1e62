"""Cases made of a case: smaller ones that may fail alike, fresh draws, and others unlike it that an edit is put to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from ..model.assignment import Assigned
from ..model.case import Case, fewer_heads, shortened
from ..source.reach import Reach
from ..targets.find import Target

# Lengths beyond two of these are cut to one and the remainder; no length is.
_SPAN, _NONE = 64, 1 << 30
# By how much a fresh draw is longer: it ends inside a tile of any size, unless that makes a multiple of the least one.
_LONGER, _LEAST_TILE = 5, 16
_STRIDED = ("distinct", "distinct-unit", "distinct-ordered")
DISTINCT: Assigned = (("all", "distinct"),)
VIEWS: Assigned = (("q", "blhd"), ("k", "blhd"), ("v", "blhd"))
Lengths = tuple[int, int]
"""Of one side, and of a longer other one."""
# Both end inside every usual tile, and the longer has more than one of 64; whole tiles where these are not taken.
TAILS, WHOLE, _LONGEST = (41, 70), (64, 128), (128, 256)
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
Named = tuple[str, Case]
"""In what a case is unlike the check, and the case."""


@dataclass(frozen=True)
class Trial:
    """What is to be run of a target with an edit."""

    case: Case
    assigned: Assigned
    title: str
    """What it is, for people: a layout, "a fresh draw (seed 1, 77 rows)"."""
    traced: tuple[Reach, ...] = ()
    """The functions of which it is noted what the run comes to."""
    is_lowered: bool = False
    """Whether Triton's front end is asked about what it launches."""


def cut(case: Case, span: int, batches: int, key_heads: int) -> Case:
    """At most so many batches and key heads, and each length that is two spans or more cut to one and the remainder.

    Of packed sequences one more than batches.
    """
    few = case.with_heads(*fewer_heads(case.heads, case.kv_heads, key_heads))
    if case.cu_seqlens_q:
        rows = _ends(case.cu_seqlens_q, span, batches + 1)
        keys = _ends(case.cu_seqlens_k or (0, 0), span, batches + 1)
        return replace(few, cu_seqlens_q=rows, cu_seqlens_k=keys, seqlen_q=rows[-1], seqlen_k=keys[-1])
    lengths = case.seqlens and tuple(shortened(length, span) for length in case.seqlens[:batches])
    few = replace(few, batch=min(case.batch, batches), seqlens=lengths)
    return few.with_lengths(shortened(case.seqlen_q, span), shortened(case.seqlen_k, span))


def _ends(ends: Sequence[int], span: int, count: int) -> tuple[int, ...]:
    pairs = list(pairwise(ends))[:count]
    return (0, *accumulate(shortened(end - start, span) for start, end in pairs))


def smaller(case: Case) -> Iterator[Case]:
    """Cases that are quicker than one that failed and may fail alike, the quickest first; at last itself."""
    found: dict[Case, None] = {}
    if not (case.inputs or case.seqlens or case.cu_seqlens_q):
        for span in (_SPAN, _NONE):  # some take only the lengths that were asked for
            several = {cut(case, span, *each) for each in ((1, 1), (2, 2), (case.batch, case.kv_heads))}
            found |= dict.fromkeys(sorted(several, key=lambda each: each.scores))
    found.pop(case, None)
    yield from (*found, case)


def fresh(case: Case) -> list[Case]:
    """The case with other values: with lengths that end inside a tile, with twice its own, and with its own.

    None where values are given.
    """
    if case.inputs:
        return []
    other = replace(case, seed=case.seed + 1)
    if case.seqlens or case.cu_seqlens_q:
        return [other]
    longer = other.with_lengths(_longer(case.seqlen_q), _longer(case.seqlen_k))
    return [longer, other.with_lengths(2 * case.seqlen_q, 2 * case.seqlen_k), other]


def _longer(length: int) -> int:
    longer = length + _LONGER
    return longer + (longer % _LEAST_TILE == 0)


def in_words(case: Case) -> str:
    """What of a case differs from draw to draw: "seed 1, 100 rows and 80 keys"."""
    keys = f" and {case.seqlen_k} keys" if case.seqlen_k != case.seqlen_q else ""
    return f"seed {case.seed}, {case.seqlen_q} rows{keys}"


def ladder(case: Case) -> tuple[Lengths, ...]:
    """The lengths with which cases are tried, until the target takes them; last the check's own."""
    return TAILS, WHOLE, _LONGEST, (case.seqlen_q, 2 * case.seqlen_q)


def others(
    case: Case, target: Target, lengths: Lengths, laid: Collection[str] = (), *, is_again: bool = False
) -> Iterator[Trial]:
    """The cases that every edit is to be right in, as far as the target takes them; none of values from a file.

    Args:
        laid: the layouts that the check itself has.
        is_again: whether all were tried with other lengths.
    """
    if case.inputs is not None or case.cu_seqlens_q:
        return
    base = _small(case, lengths)
    few = _few(base)
    yield Trial(base, (), f"{lengths[0]} rows, other batches and heads")
    if case.family == "softmax" and case.pattern == Case.pattern:  # what a softmax without its maximum does not bear
        yield Trial(replace(few, pattern="negative"), (), "logits near -120")
    strided: Assigned = next(((("all", name),) for name in _STRIDED if name in laid), ())
    if not strided:
        yield Trial(few, DISTINCT, "other strides")
        yield Trial(few, VIEWS, "views of [B, L, H, D]")
    # What an option chooses is to be right in other strides too, where they are taken.
    for words, other in _of_options(case, few, target, lengths):
        yield Trial(other, () if is_again else strided, words)
    if "causal" in target.takes and not strided:
        words = "other strides without a causal mask" if base.causal else "other strides and a causal mask"
        yield Trial(replace(few, causal=not base.causal), DISTINCT, words)


def _of_options(case: Case, few: Case, target: Target, lengths: Lengths) -> Iterator[Named]:
    """What is taken as other options, dtypes and head dims."""
    takes, required = target.takes, target.required
    if case.family == "softmax":
        yield from _of_softmax(few, takes, lengths) if not case.seqlens else ()
        for parameter, (name, off, on) in _OPTIONS.items():
            is_on = getattr(case, name) != off
            if parameter in takes and not (parameter in required and is_on):
                yield f"{'without' if is_on else 'with'} {name}", replace(few, **{name: off if is_on else on})
    elif "bias" in takes:
        yield "another bias", replace(few, bias_window=case.bias_window // 2 + 1)
        if "bias" not in required:
            yield "no bias", replace(few, bias=False)
    dtype = "float16" if case.dtype != "float16" else "bfloat16"
    yield dtype, replace(_few(_small(case, WHOLE if lengths is TAILS else lengths)), dtype=dtype)
    if few.head_dim == few.head_dim_v:
        yield _with_dim(few, 2 * few.head_dim if few.head_dim <= _WIDE else few.head_dim // 2)
        yield _with_dim(few, few.head_dim + 8)


def _of_softmax(few: Case, takes: Collection[str], lengths: Lengths) -> Iterator[Named]:
    """What softmax attention has and lazy attention has not: two lengths, both masks, groups, another value dim."""
    short, long = lengths
    causal, plain = replace(few, causal="causal" in takes or few.causal), replace(few, causal=False)
    if "causal" in takes:
        yield "no causal mask" if few.causal else "a causal mask", replace(few, causal=not few.causal)
    yield "fewer rows than keys", causal.with_lengths(short, long)
    yield "more rows than keys", causal.with_lengths(long, short)
    if "causal" in takes:
        yield "two lengths without a causal mask", plain.with_lengths(long, short)
    if "window" in takes:
        yield "a window to the left", replace(causal, window=(20, -1)).with_lengths(long, long)
        yield "a window on both sides", replace(plain, window=(9, 20)).with_lengths(long, long)
        if few.window is not None:
            yield "no window", replace(causal, window=None)
    if "h" in few.shapes and few.bias_axes == Case.bias_axes:
        is_grouped = few.heads != few.kv_heads
        words, heads = ("as many key heads as heads", _EACH) if is_grouped else ("grouped heads", _GROUPED)
        yield words, few.with_heads(*heads)
    if few.head_dim == few.head_dim_v:
        yield "another value dim", replace(few, head_dim_v=2 * few.head_dim)


def further(case: Case, takes: Collection[str], taken: Collection[str]) -> Iterator[Trial]:
    """More cases, for what none of the others reached.

    Args:
        taken: the titles of the cases that the target takes.
    """
    if case.inputs is not None or case.cu_seqlens_q or case.seqlens:
        return
    for dim in _DIMS:
        words, other = _with_dim(_few(_small(case, WHOLE)), dim)
        if dim != case.head_dim == case.head_dim_v and words not in taken:
            yield Trial(other, (), words)
    takes_both = {"fewer rows than keys", "more rows than keys"} <= set(taken)
    for rows, keys in _MORE:
        size = f"{rows} rows" if rows == keys else f"{rows} rows and {keys} keys"
        few = _few(_small(case, TAILS), 1).with_lengths(rows, keys)
        if rows != keys and not takes_both:
            continue
        if "causal" in takes and case.family == "softmax":
            yield Trial(replace(few, causal=True), (), f"{size} and a causal mask")
            few = replace(few, causal=False)
        yield Trial(few, (), size)


def _with_dim(few: Case, dim: int) -> Named:
    """Another head dim, with the scale that it has where none was asked for."""
    scale = dim**-0.5 if few.scale == few.head_dim**-0.5 else few.scale
    return f"head dim {dim}", replace(few, head_dim=dim, head_dim_v=dim, scale=scale)


def _small(case: Case, lengths: Lengths) -> Case:
    """Three batches and key heads, where it has axes for them, of a short length, with other values."""
    keys = _SEVERAL if "h" in case.shapes else case.kv_heads
    heads = case.heads // case.kv_heads * keys
    tau = None if case.tau is None else (case.tau * heads)[:heads]
    batch = _SEVERAL if "b" in case.shapes and not case.seqlens else case.batch
    bare = replace(case, batch=batch, heads=heads, kv_heads=keys, tau=tau, seed=case.seed + 1)
    return bare.with_lengths(lengths[0], lengths[0])


def _few(case: Case, batches: int = 2) -> Case:
    """A few batches and two key heads, since what an option chooses may be another kernel with strides of its own."""
    return cut(case, _NONE, batches, 2)
