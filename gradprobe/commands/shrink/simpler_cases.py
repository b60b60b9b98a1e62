"""Case -> the cases one step simpler, axis by axis, the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.tensor_layouts import layout_of
from ...model.assignment import run_name
from ...model.case import DTYPES, PATTERNS, Case
from ...model.number import plural
from ...probing.experiment import layouts_of
from .ordering import OFF, key, ladder, options_on, sequences, shorter, with_dims, with_heads, with_sequences

# The first that come to mind where a gradient is wrong; the others follow.
_USUAL = ("do", "q", "k", "v")
ALL_OPTIONS = "options"
_FLAGS = {"cu_seqlens_q": "--cu-seqlens"}


@dataclass(frozen=True)
class Simplification:
    """A simpler case, and in which respect it is that."""

    subject: str
    """What becomes simpler, as it is now: "heads 2", "causal"."""
    change: str
    """How it changes: "with 1 head", "without it"."""
    case: Case


def simpler(case: Case, axis: str, tensors: Sequence[str]) -> list[Simplification]:
    """The cases that are simpler along one axis, and no less simple along those before it; the simplest first.

    Args:
        case: settled, as the simpler ones are too.
        tensors: what the target is given, by name.
    """
    here, found = key(case), dict[Case, Simplification]()
    for step in _STEPS[axis](case, tensors):
        found.setdefault(step.case, step)
    return sorted((step for step in found.values() if key(step.case) < here), key=lambda step: key(step.case))


def single_runs(case: Case) -> list[Simplification]:
    """The case with each of its runs alone."""
    runs = layouts_of(case)
    return [_layout_step(case, replace(case, runs=(run,))) for run in runs if len(runs) > 1]


def _batch(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    noun = "batch" if case.cu_seqlens_q is None else "sequence"
    for count in ladder(sequences(case)):
        for smaller in with_sequences(case, count):
            yield Simplification(f"{noun} {sequences(case)}", f"with {plural(count, noun)}", smaller)


def _heads(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    for count in ladder(case.heads):
        for smaller in with_heads(case, count):
            yield Simplification(f"heads {case.heads}", f"with {plural(count, 'head')}", smaller)


def _groups(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    for kv_heads in range(case.kv_heads + 1, case.heads + 1):
        if case.heads % kv_heads == 0:
            words = f"with {plural(kv_heads, 'key head')}"
            yield Simplification(f"kv-heads {case.kv_heads}", words, replace(case, kv_heads=kv_heads))


def _lengths(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    subject = _length_words(case)
    for smaller in shorter(case):
        yield Simplification(subject, f"with {_length_words(smaller)}", smaller)


def _length_words(case: Case) -> str:
    if case.cu_seqlens_q is not None:
        return f"cu-seqlens {','.join(map(str, case.cu_seqlens_q))}"
    if case.seqlen_q == case.seqlen_k:
        return f"seqlen {case.seqlen_q}"
    return f"seqlen-q {case.seqlen_q} and seqlen-k {case.seqlen_k}"


def _dims(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    dim, value_dim = case.head_dim, case.head_dim_v
    sizes = [(size, size) for size in ladder(max(dim, value_dim) + (dim != value_dim))]
    if dim != value_dim:
        sizes += [(size, value_dim) for size in ladder(dim)]
        sizes += [(dim, size) for size in ladder(value_dim)]
    for smaller in (with_dims(case, *both) for both in sizes):
        yield Simplification(_dim_words(case), f"with {_dim_words(smaller)}", smaller)


def _dim_words(case: Case) -> str:
    same = case.head_dim == case.head_dim_v
    return f"head-dim {case.head_dim}" + ("" if same else f" and head-dim-v {case.head_dim_v}")


def _options(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    on = options_on(case)
    if len(on) > 1:
        yield Simplification(ALL_OPTIONS, "without any", without(case, on))
    for name in on:
        yield Simplification(_option_words(case, name), "without it", without(case, [name]))
    for name, value in _smaller_values(case):
        smaller = replace(case, **{name: value})
        yield Simplification(_option_words(case, name), f"with {_option_words(smaller, name)}", smaller)


def without(case: Case, names: Collection[str]) -> Case:
    """The case with these options off. What depends on them takes its default."""
    off = {name: OFF[name] for name in names if name in OFF}
    off |= {name: getattr(Case, name) for name in ("bias_axes", "bias_rank", "bias_window") if "bias" in names}
    off |= {name: getattr(Case, name) for name in ("mask_axes", "mask_rank", "mask_as") if "mask" in names}
    off |= {"cu_seqlens_k": None} if "cu_seqlens_q" in names else {}
    off |= {"scale": case.head_dim**-0.5} if "scale" in names else {}
    off |= {"tau": (0.0,) * case.heads} if "tau" in names else {}
    return replace(case, **off)


def _smaller_values(case: Case) -> Iterator[tuple[str, Any]]:
    """Options that stay on with a smaller value."""
    for at, end in enumerate(case.window or ()):
        for size in (-1, 0, *ladder(end)):
            yield "window", tuple(size if at == place else other for place, other in enumerate(case.window or ()))
    if case.bias and case.family == "lazy":
        yield from (("bias_window", size) for size in ladder(case.bias_window))
    if case.tau is not None and len(set(case.tau)) > 1:
        yield from (("tau", (tau,) * case.heads) for tau in (0.5, -0.5))
    for at, length in enumerate(case.seqlens or ()):
        for size in (0, *ladder(length)):
            yield "seqlens", tuple(size if at == place else one for place, one in enumerate(case.seqlens or ()))
    yield from (("repeat", size) for size in ladder(case.repeat))


def _option_words(case: Case, name: str) -> str:
    value = getattr(case, name)
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))[2:]
    if isinstance(value, bool):
        return flag
    if isinstance(value, tuple):
        return f"{flag} {','.join(map(str, value))}"
    shown = f"{value:g}" if isinstance(value, float) else value
    return f"{flag} {shown}"


def _layouts(case: Case, tensors: Sequence[str]) -> Iterator[Simplification]:
    runs = layouts_of(case)
    if len(runs) > 1:
        yield from single_runs(case)
        yield from (_layout_step(case, replace(case, runs=(*runs[:at], *runs[at + 1 :]))) for at in range(len(runs)))
        return
    for fewer in _fewer_placed(runs[0], tensors):
        yield _layout_step(case, replace(case, runs=(fewer,)))


def _layout_step(case: Case, smaller: Case) -> Simplification:
    now, then = (" and ".join(map(run_name, layouts_of(one))) for one in (case, smaller))
    return Simplification(f"layout {now}", f"with {then}", smaller)


def _fewer_placed(
    assigned: tuple[tuple[str, str], ...], tensors: Sequence[str]
) -> Iterator[tuple[tuple[str, str], ...]]:
    """Assignments with fewer tensors: none, each one alone, each half, and all but one."""
    order = sorted(tensors, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))
    named = [(name, layout) for name in order if (layout := layout_of(name, assigned)) != "contiguous"]
    half = len(named) // 2
    kept = [[], *([one] for one in named), named[:half], named[half:]]
    kept += [[one for one in named if one != left] for left in named]
    yield from dict.fromkeys(tuple(one) for one in kept)


def _values(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    for pattern in PATTERNS:
        yield Simplification(f"pattern {case.pattern}", f"with pattern {pattern}", replace(case, pattern=pattern))
    for seed in (0, *ladder(case.seed)):
        yield Simplification(f"seed {case.seed}", f"with seed {seed}", replace(case, seed=seed))


def _dtype(case: Case, _: Sequence[str]) -> Iterator[Simplification]:
    for dtype in DTYPES:
        yield Simplification(f"dtype {case.dtype}", f"with {dtype}", replace(case, dtype=dtype))


_STEPS: dict[str, Callable[[Case, Sequence[str]], Iterator[Simplification]]] = {
    "batch": _batch, "heads": _heads, "groups": _groups, "lengths": _lengths, "dims": _dims, "options": _options,
    "layouts": _layouts, "values": _values, "dtype": _dtype,
}  # fmt: skip
