"""Cases made of a case: smaller ones, fresh draws, others for an edit."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
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
_DISTINCT: Assigned = (("all", "distinct"),)
_VIEWS: Assigned = (("q", "blhd"), ("k", "blhd"), ("v", "blhd"))
# Both lengths end inside every usual tile, and the longer has more than one of 64; whole tiles where these are refused.
TAILS, WHOLE = (41, 70), (64, 128)
# Drawn for what was not reached: one tile of 16 to 128, whole tiles, an odd number of them, and ends inside one.
_SQUARE, _OBLONG = (16, 13, 48, 128, 139, 80, 256, 384), ((139, 41), (41, 139))
# Other head dims; and the widest of which twice as much is another one.
_DIMS, _WIDE = (128, 16), 64
_GROUPED, _EACH, _SEVERAL = (4, 2), (3, 3), 3
# By parameter, the option of a case that is off by default, and what it is when it is on.
_OPTIONS: dict[str, tuple[str, Any, Any]] = {
    "softcap": ("softcap", None, 1.5), "bias": ("bias", False, True), "alibi": ("alibi", False, True),
    "mask": ("mask", None, "dead-rows"), "sinks": ("sinks", False, True), "keep": ("dropout", 0.0, 0.3),
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    case: Case
    assigned: Assigned
    title: str = ""
    is_spread: bool = False  # what the target allocates is laid apart
    traced: tuple[Reach, ...] = ()
    is_lowered: bool = False  # Triton's front end is asked about what it launches


def cut_cases(case: Case, spans: Sequence[int], counts: Sequence[tuple[int, int]]) -> list[Case]:
    """Each once: one span of several and the remainder, few heads; none of packed sequences."""
    cuts = product(spans, counts) if not case.cu_seqlens_q else ()
    found = dict.fromkeys(_cut(case, span, *count) for span, count in cuts)
    return [each for each in found if each != case]


def _cut(case: Case, span: int, batches: int, key_heads: int) -> Case:
    few = case.with_heads(*fewer_heads(case.heads, case.kv_heads, key_heads))
    lengths = case.seqlens and tuple(shortened(each, span) for each in case.seqlens[:batches])
    few = replace(few, batch=min(case.batch, batches), seqlens=lengths)
    return few.with_lengths(shortened(case.seqlen_q, span), shortened(case.seqlen_k, span))


def quicker(case: Case) -> list[Case]:
    """The quickest first; at last itself."""
    is_given = case.inputs or case.seqlens or case.cu_seqlens_q
    counts = ((1, 1), (2, 2), (case.batch, case.kv_heads))
    return [*([] if is_given else cut_cases(case, (_SPAN, _NONE), counts)), case]


def fresh(case: Case) -> list[Case]:
    """In lengths that end inside a tile, twice it, and its own; none of files."""
    other, rows, keys = replace(case, seed=case.seed + 1), case.seqlen_q, case.seqlen_k
    if case.inputs or case.seqlens or case.cu_seqlens_q:
        return [] if case.inputs else [other]
    longer = [size + (size % _LEAST_TILE == 0) for size in (rows + _LONGER, keys + _LONGER)]
    return [other.with_lengths(*longer), other.with_lengths(2 * rows, 2 * keys), other]


def others(
    case: Case,
    target: Target,
    lengths: tuple[int, int],
    laid: Collection[str],
    *,
    is_again: bool,
) -> Iterator[Trial]:
    """What every edit is to be right in, as far as the target takes it.

    Args: laid: the check's layouts; is_again: whether all were tried before.
    """
    if case.inputs is not None or case.cu_seqlens_q:
        return
    few = _few(case, lengths)
    yield Trial(_small(case, lengths), (), f"{lengths[0]} rows, other batches and heads")
    yield Trial(few, (), "what it allocates laid apart", is_spread=True)
    if case.family == "softmax" and case.pattern == Case.pattern:
        # A softmax without its maximum does not bear it.
        yield Trial(replace(few, pattern="negative"), (), "logits near -120")
    strided = list(filter(laid.__contains__, _STRIDED))
    if not strided:
        yield Trial(few, _DISTINCT, "other strides")
        yield Trial(few, _VIEWS, "views of [B, L, H, D]")
        if "causal" in target.takes:
            turned = replace(few, causal=not few.causal)
            yield Trial(turned, _DISTINCT, "other strides, causal the other way")
    # What an option chooses is to be right in other strides too, where they are taken.
    assigned: Assigned = (("all", strided[0]),) if strided and not is_again else ()
    made = _of_softmax if case.family == "softmax" else _of_lazy
    for words, other in chain(made(few, target, *lengths), _of_sizes(case, few, lengths)):
        yield Trial(other, assigned, words)


def _of_lazy(few: Case, target: Target, *lengths: int) -> Iterator[tuple[str, Case]]:
    if "bias" in target.takes:
        yield "another bias", replace(few, bias_window=few.bias_window // 2 + 1)
        if "bias" not in target.required:
            yield "no bias", replace(few, bias=False)


def _of_sizes(case: Case, few: Case, lengths: tuple[int, int]) -> Iterator[tuple[str, Case]]:
    dtype = "float16" if case.dtype != "float16" else "bfloat16"
    yield dtype, replace(_few(case, max(lengths, WHOLE)), dtype=dtype)
    if few.head_dim == few.head_dim_v:
        yield _of_dim(few, 2 * few.head_dim if few.head_dim <= _WIDE else few.head_dim // 2)
        yield _of_dim(few, few.head_dim + 8)


def _of_softmax(few: Case, target: Target, short: int, long: int) -> Iterator[tuple[str, Case]]:
    if not few.seqlens:
        yield from _of_lengths(few, target.takes, short, long)
    for parameter, (name, off, on) in _OPTIONS.items():
        is_on = getattr(few, name) != off
        if parameter in target.takes and not (is_on and parameter in target.required):
            changed = replace(few, **{name: off if is_on else on})
            yield f"{'without' if is_on else 'with'} {name}", changed


def _of_lengths(
    few: Case, takes: Collection[str], short: int, long: int
) -> Iterator[tuple[str, Case]]:
    causal = replace(few, causal="causal" in takes or few.causal)
    plain = replace(few, causal=False)
    if "causal" in takes:
        words = "no causal mask" if few.causal else "a causal mask"
        yield words, replace(few, causal=not few.causal)
        yield "two lengths without a causal mask", plain.with_lengths(long, short)
    yield "fewer rows than keys", causal.with_lengths(short, long)
    yield "more rows than keys", causal.with_lengths(long, short)
    if "window" in takes:
        yield "a window to the left", replace(causal, window=(20, -1)).with_lengths(long, long)
        yield "a window on both sides", replace(plain, window=(9, 20)).with_lengths(long, long)
        if few.window is not None:
            yield "no window", replace(causal, window=None)
    if "h" in few.shapes and few.bias_axes == Case.bias_axes:
        is_each = few.heads == few.kv_heads
        words = "grouped heads" if is_each else "as many key heads as heads"
        yield words, few.with_heads(*(_GROUPED if is_each else _EACH))
    if few.head_dim == few.head_dim_v:
        yield "another value dim", replace(few, head_dim_v=2 * few.head_dim)


def further(case: Case, takes: Collection[str], taken: Collection[str]) -> Iterator[Trial]:
    """For what none of the others reached; `taken`: titles of those the target takes."""
    if case.inputs is not None or case.cu_seqlens_q or case.seqlens:
        return
    for dim in _DIMS:
        words, other = _of_dim(_few(case, WHOLE), dim)
        if dim != case.head_dim == case.head_dim_v and words not in taken:
            yield Trial(other, (), words)
    takes_two = {"fewer rows than keys", "more rows than keys"} <= {*taken}
    oblong = _OBLONG if takes_two else ()
    for rows, keys in (*zip(_SQUARE, _SQUARE, strict=True), *oblong):
        size = f"{rows} rows" if rows == keys else f"{rows} rows and {keys} keys"
        few = _few(case, TAILS, 1).with_lengths(rows, keys)
        if "causal" in takes and case.family == "softmax":
            yield Trial(replace(few, causal=True), (), f"{size} and a causal mask")
            few = replace(few, causal=False)
        yield Trial(few, (), size)


def _of_dim(few: Case, dim: int) -> tuple[str, Case]:
    scale = dim**-0.5 if few.scale == few.head_dim**-0.5 else few.scale
    return f"head dim {dim}", replace(few, head_dim=dim, head_dim_v=dim, scale=scale)


def _small(case: Case, lengths: tuple[int, int]) -> Case:
    keys = _SEVERAL if "h" in case.shapes else case.kv_heads
    heads = case.heads // case.kv_heads * keys
    tau = None if case.tau is None else (case.tau * heads)[:heads]
    batch = _SEVERAL if "b" in case.shapes and not case.seqlens else case.batch
    bare = replace(case, batch=batch, heads=heads, kv_heads=keys, tau=tau, seed=case.seed + 1)
    return bare.with_lengths(lengths[0], lengths[0])


def _few(case: Case, lengths: tuple[int, int], batches: int = 2) -> Case:
    return _cut(_small(case, lengths), _NONE, batches, 2)
