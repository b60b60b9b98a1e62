"""What a simpler case is, one part of its key after another; the cases one step simpler along each; a case in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from ...inputs.tensor_layouts import layout_of
from ...model.assignment import KNOWN, TENSORS, run_name
from ...model.case import DTYPES, PATTERNS, Case
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
# What is said only where it is not that of another.
_BESIDE = {"kv_heads": "heads", "seqlen_k": "seqlen_q", "head_dim_v": "head_dim"}
_SIZES = ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")
ALL_OPTIONS = "options"


def key(case: Case) -> tuple[Any, ...]:
    """The sort key of a case: a smaller key is a simpler case. It has one part for each of AXES."""
    return tuple(axis.part(case) for axis in AXES.values())


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


def in_words(case: Case, names: Sequence[str]) -> str:
    """Fields of a case in one line: "heads=2 seqlen=1 causal"."""
    words = []
    for name in names:
        value, other = getattr(case, name), _BESIDE.get(name, "")
        if value is None or (other in names and value == getattr(case, other)):
            continue
        flag = name.replace("cu_seqlens_q", "cu_seqlens").replace("_", "-")
        if name == "seqlen_q" and "seqlen_k" in names and value == case.seqlen_k:
            flag = "seqlen"
        if name == "runs":
            flag, value = "layout", " and ".join(map(run_name, layouts_of(case)))
        elif isinstance(value, tuple):
            value = ",".join(map(str, value))
        words.append(flag if isinstance(value, bool) else f"{flag}={value}")
    return " ".join(words)


def case_in_words(case: Case) -> str:
    """A case in one line: "batch=1 heads=2 seqlen=1 head-dim=1 layout=do=distinct"."""
    names = [*_SIZES, *options_on(case), "runs"]
    for name in ("pattern", "seed", "dtype"):
        if getattr(case, name) != getattr(Case, name):
            names.append(name)
    return in_words(case, names)


@dataclass(frozen=True)
class Simplification:
    """A simpler case, and in which respect it is that."""

    subject: str
    """What becomes simpler, as it is now: "heads=2", "causal"."""
    change: str
    """How it changes: "with heads=1", "without it"."""
    case: Case


def simpler(case: Case, axis: str, tensors: Sequence[str]) -> list[Simplification]:
    """The cases that are simpler along one axis, and no less simple along those before it; the simplest first.

    Args:
        case: settled, as the simpler ones are too.
        tensors: what the target is given, by name.
    """
    here, found, own = key(case), dict[Case, Simplification](), AXES[axis]
    if axis == "options":
        steps = _options(case)
    else:
        cases = _layouts(case, tensors) if own.smaller is None else own.smaller(case)
        steps = (_step(case, other, own.names) for other in cases)
    for step in steps:
        if key(step.case) < here:
            found.setdefault(step.case, step)
    return sorted(found.values(), key=lambda step: key(step.case))


def _step(case: Case, smaller: Case, names: Sequence[str]) -> Simplification:
    return Simplification(in_words(case, names), f"with {in_words(smaller, names)}", smaller)


def ladder(size: int, blocks: Sequence[int] = ()) -> list[int]:
    """Sizes below one, ascending: the first few, powers of two, around the multiples of blocks, its half, one less."""
    marks = {1, 2, 3, 4, size // 2, size - size // 4, size - 1}
    marks |= {2**power for power in range(3, size.bit_length())}
    for block in blocks:
        for multiple in (block, 2 * block, size // block * block):
            marks |= {multiple - 1, multiple, multiple + 1}
    return sorted(mark for mark in marks if 1 <= mark < size)


def _packed(case: Case) -> tuple[list[int], list[int]]:
    """The lengths of the packed sequences; none where there are none."""
    ends = (case.cu_seqlens_q or (), case.cu_seqlens_k or ())
    rows, keys = ([end - start for start, end in pairwise(side)] for side in ends)
    return rows, keys


def _sequences(case: Case) -> int:
    """How many there are: batches, or what is packed into one."""
    return case.batch if case.cu_seqlens_q is None else len(case.cu_seqlens_q) - 1


def _repacked(case: Case, rows: Sequence[int], keys: Sequence[int]) -> Case:
    ends, key_ends = (tuple(accumulate(side, initial=0)) for side in (rows, keys))
    packed = replace(case, cu_seqlens_q=ends, cu_seqlens_k=key_ends)
    return replace(packed, seqlen_q=ends[-1], seqlen_k=key_ends[-1])


def _fewer_sequences(case: Case) -> Iterator[Case]:
    """The first batches or packed sequences, and the last."""
    have, (rows, keys) = _sequences(case), _packed(case)
    for count in ladder(have):
        for part in (slice(0, count), slice(have - count, have)):
            if case.cu_seqlens_q is not None:
                yield _repacked(case, rows[part], keys[part])
            else:
                seqlens = case.seqlens[part] if case.seqlens else case.seqlens
                yield replace(case, batch=count, seqlens=seqlens)


def _fewer_heads(case: Case) -> Iterator[Case]:
    """With groups as they are where they divide the heads, and with groups of one."""
    group = case.heads // case.kv_heads
    for count in ladder(case.heads):
        for size in (group, 1) if count % group == 0 else (1,):
            yield case.with_heads(count, count // size)


def _ungrouped(case: Case) -> Iterator[Case]:
    yield replace(case, kv_heads=case.heads)


def _smaller_pairs(first: int, second: int, blocks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Both alike, and where they are not, one of them smaller."""
    pairs = [(size, size) for size in ladder(max(first, second) + (first != second), blocks)]
    if first != second:
        pairs += [(size, second) for size in ladder(first, blocks)]
        pairs += [(first, size) for size in ladder(second, blocks)]
    return pairs


def _shorter(case: Case) -> Iterator[Case]:
    blocks = (case.block_m, case.block_n)
    if case.cu_seqlens_q is None:
        for rows, keys in _smaller_pairs(case.seqlen_q, case.seqlen_k, blocks):
            yield case.with_lengths(rows, keys)
        return
    sides = _packed(case)
    for size in ladder(max(map(max, sides)), blocks):
        shorter = [[min(size, length) for length in side] for side in sides]
        yield _repacked(case, *shorter)


def _smaller_dims(case: Case) -> Iterator[Case]:
    """A default scale follows the head dim of q and k."""
    for dim, value_dim in _smaller_pairs(case.head_dim, case.head_dim_v):
        scale = float(dim) ** -0.5 if _has_default_scale(case) else case.scale
        yield replace(case, head_dim=dim, head_dim_v=value_dim, scale=scale)


def _options(case: Case) -> Iterator[Simplification]:
    on = options_on(case)
    if len(on) > 1:
        yield Simplification(ALL_OPTIONS, "without any", _without(case, on))
    for name in on:
        yield Simplification(in_words(case, [name]), "without it", _without(case, [name]))
    for name, value in _smaller_values(case):
        yield _step(case, replace(case, **{name: value}), [name])


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
    yield from (("repeat", size) for size in ladder(case.repeat))


def _layouts(case: Case, tensors: Sequence[str]) -> Iterator[Case]:
    """One run, or one fewer; of one with fewer tensors: none, each one alone, each half, and all but one."""
    runs = layouts_of(case)
    if len(runs) > 1:
        for at, run in enumerate(runs):
            yield replace(case, runs=(run,))
            yield replace(case, runs=(*runs[:at], *runs[at + 1 :]))
        return
    order = [*(name for name in _USUAL if name in tensors), *tensors]
    laid = [(name, layout_of(name, runs[0])) for name in dict.fromkeys(order)]
    named = [pair for pair in laid if pair[1] != "contiguous"]
    half = len(named) // 2
    kept = [[], *([pair] for pair in named), named[:half], named[half:]]
    kept += [named[:at] + named[at + 1 :] for at in range(len(named))]
    for pairs in kept:
        yield replace(case, runs=(tuple(pairs),))


def _other_patterns(case: Case) -> Iterator[Case]:
    return (replace(case, pattern=pattern) for pattern in PATTERNS)


def _other_dtypes(case: Case) -> Iterator[Case]:
    return (replace(case, dtype=dtype) for dtype in DTYPES)


def _pair(rows: int, keys: int) -> tuple[int, ...]:
    """The longer of two; then a square before any other matrix; then both."""
    return max(rows, keys), int(rows != keys), rows + keys


def _option_part(case: Case) -> tuple[Any, ...]:
    """How many options are on; then how far the window, the bias and the lengths reach."""
    window = [end + 1 for end in case.window or ()]  # 0 of one without a limit
    bias = case.bias_window if case.bias and case.family == "lazy" else 0
    lengths = (len(set(case.seqlens or ())), sum(case.seqlens or ()))
    return len(options_on(case)), sum(window), bias, lengths, case.repeat


def _layout_part(case: Case) -> tuple[int, ...]:
    """How many runs; then how many tensors lie otherwise than contiguous; then how far down the list of layouts."""
    runs, count, places = layouts_of(case), 0, 0
    for tensor, layout in (pair for run in runs for pair in run):
        if layout != "contiguous":
            count += len(TENSORS) if tensor == "all" else 1
            places += KNOWN.index(layout)
    return len(runs), count, places


@dataclass(frozen=True)
class Axis:
    """One respect in which a case may be simpler."""

    names: tuple[str, ...]
    """The fields that say it."""
    part: Callable[[Case], Any]
    """Its part of the key."""
    smaller: Callable[[Case], Iterator[Case]] | None = None
    """Cases that may be simpler; None of layouts and options."""


AXES = {
    "batch": Axis(("batch", "cu_seqlens_q"), _sequences, _fewer_sequences),
    "heads": Axis(("heads",), lambda case: case.heads, _fewer_heads),
    "groups": Axis(("kv_heads",), lambda case: case.heads // case.kv_heads, _ungrouped),
    "lengths": Axis(
        ("seqlen_q", "seqlen_k"), lambda case: _pair(case.seqlen_q, case.seqlen_k), _shorter
    ),
    "dims": Axis(
        ("head_dim", "head_dim_v"),
        lambda case: _pair(case.head_dim, case.head_dim_v),
        _smaller_dims,
    ),
    "options": Axis((), _option_part),
    "layouts": Axis(("runs",), _layout_part),
    "values": Axis(("pattern",), lambda case: PATTERNS.index(case.pattern), _other_patterns),
    "dtype": Axis(("dtype",), lambda case: DTYPES.index(case.dtype), _other_dtypes),
}
"""The first is the most important: a case with fewer heads is simpler however long it is."""
