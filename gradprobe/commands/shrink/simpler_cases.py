"""What a simpler case is, one part of its key after another; the cases one step simpler, axis by axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.tensor_layouts import layout_of
from ...model.assignment import KNOWN, TENSORS, run_name
from ...model.case import DTYPES, PATTERNS, Case
from ...model.number import plural
from ...probing.experiment import layouts_of

# The value with which each option is off. Those of a family's own, and scale and tau, are in `options_on`.
OFF: dict[str, Any] = {
    "causal": False, "window": None, "softcap": None, "bias": False, "bias_axes": Case.bias_axes, "alibi": False,
    "mask": None, "sinks": False, "dropout": 0.0, "seqlens": None, "cu_seqlens_q": None, "align": Case.align,
    "repeat": 1, "poison": False, "strict": False, "dots": None,
    "block_m": Case.block_m, "block_n": Case.block_n,
}  # fmt: skip
# What goes with an option that is taken off.
_WITH = {
    "bias": ("bias_axes", "bias_rank", "bias_window"),
    "mask": ("mask_axes", "mask_rank", "mask_as"),
    "cu_seqlens_q": ("cu_seqlens_k",),
}
# The first that come to mind where a gradient is wrong; the others follow.
_USUAL = ("do", "q", "k", "v")
ALL_OPTIONS = "options"


def key(case: Case) -> tuple[Any, ...]:
    """The sort key of a case: a smaller key is a simpler case. It has one part for each of AXES."""
    return tuple(part(case) for part in AXES.values())


def settled(case: Case) -> Case:
    """The case with its layouts in normal form: as runs, without the tensors that lie contiguous."""
    runs = []
    for assigned in layouts_of(case):
        runs.append(tuple(pair for pair in assigned if pair[1] != "contiguous"))
    return replace(case, layouts=(), runs=tuple(runs))


def options_on(case: Case) -> list[str]:
    """The options that a case uses. The lazy family is causal whatever is asked for."""
    found = [name for name, off in OFF.items() if getattr(case, name) != off]
    if case.family == "lazy" and "causal" in found:
        found.remove("causal")
    if not _has_default_scale(case):
        found.append("scale")
    return [*found, "tau"] if any(case.tau or ()) else found


def _has_default_scale(case: Case) -> bool:
    return math.isclose(case.scale, float(case.head_dim) ** -0.5, rel_tol=1e-12)


def _sequences(case: Case) -> int:
    """How many there are: batches, or what is packed into one."""
    return case.batch if case.cu_seqlens_q is None else len(case.cu_seqlens_q) - 1


def _pair(rows: int, keys: int) -> tuple[int, ...]:
    """The longer of two; then a square before any other matrix; then both."""
    return max(rows, keys), int(rows != keys), rows + keys


def _option_part(case: Case) -> tuple[Any, ...]:
    """How many options are on; then how far the window, the bias and the lengths reach, and how many taus there are."""
    window = [end + 1 for end in case.window or ()]  # 0 of one without a limit
    bias = case.bias_window if case.bias and case.family == "lazy" else 0
    lengths = (len(set(case.seqlens or ())), sum(case.seqlens or ()))
    return len(options_on(case)), sum(window), bias, lengths, len(set(case.tau or ()))


def _layout_part(case: Case) -> tuple[int, ...]:
    """How many runs; then how many tensors lie otherwise than contiguous; then how far down the list of layouts."""
    runs, count, places = layouts_of(case), 0, 0
    for tensor, layout in itertools.chain.from_iterable(runs):
        if layout != "contiguous":
            count += len(TENSORS) if tensor == "all" else 1
            places += KNOWN.index(layout)
    return len(runs), count, places


AXES: dict[str, Callable[[Case], Any]] = {
    "batch": _sequences,
    "heads": lambda case: case.heads,
    "groups": lambda case: case.heads // case.kv_heads,
    "lengths": lambda case: _pair(case.seqlen_q, case.seqlen_k),
    "dims": lambda case: _pair(case.head_dim, case.head_dim_v),
    "options": _option_part,
    "layouts": _layout_part,
    "values": lambda case: (PATTERNS.index(case.pattern), case.seed),
    "dtype": lambda case: DTYPES.index(case.dtype),
}
"""One part of the key each, the first the most important: a case with fewer heads is simpler however long it is."""


@dataclass(frozen=True)
class Simplification:
    """A simpler case, and in which respect it is that."""

    subject: str
    """What becomes simpler, as it is now: "heads 2", "causal"."""
    change: str
    """How it changes: "with 1 head", "without it"."""
    case: Case


Steps = Iterator[Simplification]


def simpler(case: Case, axis: str, tensors: Sequence[str]) -> list[Simplification]:
    """The cases that are simpler along one axis, and no less simple along those before it; the simplest first.

    Args:
        case: settled, as the simpler ones are too.
        tensors: what the target is given, by name.
    """
    steps = _layouts(case, tensors) if axis == "layouts" else _STEPS[axis](case)
    here, found = key(case), dict[Case, Simplification]()
    for step in steps:
        if key(step.case) < here:
            found.setdefault(step.case, step)
    return sorted(found.values(), key=lambda step: key(step.case))


def ladder(size: int, blocks: Sequence[int] = ()) -> list[int]:
    """Sizes below one, ascending: the first few, powers of two, around the multiples of blocks, its half, one less."""
    marks = {1, 2, 3, 4, size // 2, size - size // 4, size - 1}
    marks |= {2**power for power in range(3, size.bit_length())}
    for block in blocks:
        for multiple in (block, 2 * block, size // block * block):
            marks |= {multiple - 1, multiple, multiple + 1}
    return sorted(mark for mark in marks if 1 <= mark < size)


def _batch(case: Case) -> Steps:
    """Fewer batches or packed sequences: the first of them, and the last."""
    noun, have = "batch" if case.cu_seqlens_q is None else "sequence", _sequences(case)
    rows, keys = _packed(case)
    for count in ladder(have):
        for part in (slice(0, count), slice(have - count, have)):
            if case.cu_seqlens_q is not None:
                fewer = _repacked(case, rows[part], keys[part])
            else:
                seqlens = case.seqlens[part] if case.seqlens else case.seqlens
                fewer = replace(case, batch=count, seqlens=seqlens)
            yield Simplification(f"{noun} {have}", f"with {plural(count, noun)}", fewer)


def _packed(case: Case) -> tuple[list[int], list[int]]:
    """The lengths of the packed sequences; none where there are none."""
    ends = (case.cu_seqlens_q or (), case.cu_seqlens_k or ())
    rows, keys = ([end - start for start, end in itertools.pairwise(side)] for side in ends)
    return rows, keys


def _repacked(case: Case, rows: Sequence[int], keys: Sequence[int]) -> Case:
    ends, key_ends = (tuple(itertools.accumulate(side, initial=0)) for side in (rows, keys))
    packed = replace(case, cu_seqlens_q=ends, cu_seqlens_k=key_ends)
    return replace(packed, seqlen_q=ends[-1], seqlen_k=key_ends[-1])


def _heads(case: Case) -> Steps:
    """Fewer query heads: with groups as they are where they divide them, and with groups of one."""
    group = case.heads // case.kv_heads
    for count in ladder(case.heads):
        for size in (group, 1) if count % group == 0 else (1,):
            fewer = case.with_heads(count, count // size)
            yield Simplification(f"heads {case.heads}", f"with {plural(count, 'head')}", fewer)


def _groups(case: Case) -> Steps:
    for count in range(case.kv_heads + 1, case.heads + 1):
        if case.heads % count == 0:
            words, more = f"with {plural(count, 'key head')}", replace(case, kv_heads=count)
            yield Simplification(f"kv-heads {case.kv_heads}", words, more)


def _lengths(case: Case) -> Steps:
    subject = _length_words(case)
    for shorter in _shorter_packed(case) if case.cu_seqlens_q is not None else _shorter(case):
        yield Simplification(subject, f"with {_length_words(shorter)}", shorter)


def _smaller_pairs(first: int, second: int, blocks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Both alike, and where they are not, one of them smaller."""
    pairs = [(size, size) for size in ladder(max(first, second) + (first != second), blocks)]
    if first != second:
        pairs += [(size, second) for size in ladder(first, blocks)]
        pairs += [(first, size) for size in ladder(second, blocks)]
    return pairs


def _shorter(case: Case) -> Iterator[Case]:
    blocks = (case.block_m, case.block_n)
    for rows, keys in _smaller_pairs(case.seqlen_q, case.seqlen_k, blocks):
        yield case.with_lengths(rows, keys)


def _shorter_packed(case: Case) -> Iterator[Case]:
    """The case with one packed sequence shorter, for each sequence in turn."""
    rows, keys = _packed(case)
    for at in range(len(rows)):
        for size in (0, *ladder(max(rows[at], keys[at]), (case.block_m, case.block_n))):
            fewer_rows, fewer_keys = list(rows), list(keys)
            fewer_rows[at], fewer_keys[at] = min(size, rows[at]), min(size, keys[at])
            if sum(fewer_rows) and sum(fewer_keys):
                yield _repacked(case, fewer_rows, fewer_keys)


def _length_words(case: Case) -> str:
    if case.cu_seqlens_q is not None:
        return f"cu-seqlens {','.join(map(str, case.cu_seqlens_q))}"
    if case.seqlen_q == case.seqlen_k:
        return f"seqlen {case.seqlen_q}"
    return f"seqlen-q {case.seqlen_q} and seqlen-k {case.seqlen_k}"


def _dims(case: Case) -> Steps:
    """Smaller head dims. A default scale follows that of q and k."""
    for dim, value_dim in _smaller_pairs(case.head_dim, case.head_dim_v):
        scale = float(dim) ** -0.5 if _has_default_scale(case) else case.scale
        smaller = replace(case, head_dim=dim, head_dim_v=value_dim, scale=scale)
        yield Simplification(_dim_words(case), f"with {_dim_words(smaller)}", smaller)


def _dim_words(case: Case) -> str:
    same = case.head_dim == case.head_dim_v
    return f"head-dim {case.head_dim}" + ("" if same else f" and head-dim-v {case.head_dim_v}")


def _options(case: Case) -> Steps:
    on = options_on(case)
    if len(on) > 1:
        yield Simplification(ALL_OPTIONS, "without any", _without(case, on))
    for name in on:
        yield Simplification(_option_words(case, name), "without it", _without(case, [name]))
    for name, value in _smaller_values(case):
        smaller = replace(case, **{name: value})
        change = f"with {_option_words(smaller, name)}"
        yield Simplification(_option_words(case, name), change, smaller)


def _without(case: Case, names: Collection[str]) -> Case:
    """The case with these options off. What depends on them takes its default."""
    off: dict[str, Any] = {name: OFF[name] for name in names if name in OFF}
    for name in names:
        off |= {other: getattr(Case, other) for other in _WITH.get(name, ())}
    if "scale" in names:
        off["scale"] = case.head_dim**-0.5
    if "tau" in names:
        off["tau"] = (0.0,) * case.heads
    return replace(case, **off)


def _smaller_values(case: Case) -> Iterator[tuple[str, Any]]:
    """Options that stay on with a smaller value."""
    for name, least in (("window", (-1, 0)), ("seqlens", (0,))):
        value = getattr(case, name) or ()
        for at, end in enumerate(value):
            for size in (*least, *ladder(end)):
                yield name, (*value[:at], size, *value[at + 1 :])
    if case.bias and case.family == "lazy":
        yield from (("bias_window", size) for size in ladder(case.bias_window))
    if case.tau is not None and len(set(case.tau)) > 1:
        yield from (("tau", (tau,) * case.heads) for tau in (0.5, -0.5))
    yield from (("repeat", size) for size in ladder(case.repeat))


def _option_words(case: Case, name: str) -> str:
    value = getattr(case, name)
    flag = name.removesuffix("_q").replace("_", "-")
    if isinstance(value, bool):
        return flag
    if isinstance(value, tuple):
        return f"{flag} {','.join(map(str, value))}"
    return f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"


def single_runs(case: Case) -> list[Simplification]:
    """The case with each of its runs alone."""
    runs = layouts_of(case)
    return [_with_runs(case, run) for run in runs if len(runs) > 1]


def _layouts(case: Case, tensors: Sequence[str]) -> Steps:
    runs = layouts_of(case)
    if len(runs) > 1:
        yield from single_runs(case)
        for at in range(len(runs)):
            yield _with_runs(case, *runs[:at], *runs[at + 1 :])
        return
    # With fewer tensors: none, each one alone, each half, and all but one.
    order = [*(name for name in _USUAL if name in tensors), *tensors]
    laid = [(name, layout_of(name, runs[0])) for name in dict.fromkeys(order)]
    named = [pair for pair in laid if pair[1] != "contiguous"]
    half = len(named) // 2
    kept = [[], *([pair] for pair in named), named[:half], named[half:]]
    kept += [named[:at] + named[at + 1 :] for at in range(len(named))]
    for pairs in kept:
        yield _with_runs(case, tuple(pairs))


def _with_runs(case: Case, *runs: tuple[tuple[str, str], ...]) -> Simplification:
    smaller = replace(case, runs=runs)
    now, then = (" and ".join(map(run_name, layouts_of(each))) for each in (case, smaller))
    return Simplification(f"layout {now}", f"with {then}", smaller)


def _values(case: Case) -> Steps:
    for pattern in PATTERNS:
        changed = replace(case, pattern=pattern)
        yield Simplification(f"pattern {case.pattern}", f"with pattern {pattern}", changed)
    for seed in (0, *ladder(case.seed)):
        yield Simplification(f"seed {case.seed}", f"with seed {seed}", replace(case, seed=seed))


def _dtype(case: Case) -> Steps:
    for dtype in DTYPES:
        yield Simplification(f"dtype {case.dtype}", f"with {dtype}", replace(case, dtype=dtype))


_STEPS: dict[str, Callable[[Case], Steps]] = {
    "batch": _batch, "heads": _heads, "groups": _groups, "lengths": _lengths, "dims": _dims, "options": _options,
    "values": _values, "dtype": _dtype,
}  # fmt: skip
