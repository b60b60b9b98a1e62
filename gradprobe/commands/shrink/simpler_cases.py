"""A case by the words of its command line, and the words that make it simpler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from ...inputs.options import OPTIONS, length_words, parse
from ...inputs.tensor_layouts import layout_of
from ...model.assignment import Assigned, run_name
from ...model.case import DTYPES, PATTERNS, Case
from ...model.failures import UsageFailure
from ...model.resolution import resolve
from ...probing.experiment import layouts_of
from ..suite.case_factors import PACKING
from ..suite.plan import TargetSignature

Words = Mapping[str, Any]
"""What is None is not given."""
# Words that are no part of a case, and stand in every try as they were asked for.
_AS_ASKED = ("device", "recover")
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
# What is simpler without, and what goes with it.
_OPTIONS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("causal", "softcap", "bias_axes", "alibi", "sinks", "dropout", "seqlens", "align", "repeat", "poison", "strict",
     "dots", "block_m", "block_n", "scale"), ()
) | {
    "window": ("window_as",), "bias": ("bias_axes", "bias_rank", "bias_window"),
    "mask": ("mask_axes", "mask_rank", "mask_as"),
}  # fmt: skip
# The first that come to mind where a gradient is wrong; the others follow.
_USUAL = ("do", "q", "k", "v")


@dataclass(frozen=True)
class WordedCase:
    words: Words
    case: Case

    @property
    def line(self) -> str:
        """ "batch=1 heads=2 seqlen=1 head-dim=1 layout=do=distinct"."""
        return _in_line(self.words)

    def beside(self, other: WordedCase) -> tuple[str, str]:
        """("heads=2", "with heads=1"), ("causal", "without it")."""
        here, there = self.words, other.words
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        own = _in_line({name: here.get(name) for name in names})
        its = _in_line({name: there.get(name) for name in names})
        return own or ", ".join(names), f"with {its}" if its else "without it"


def _in_line(words: Words) -> str:
    found = list[str]()
    for name, word in words.items():
        flag = "layout" if name == "runs" else name.replace("_", "-")
        between = " and " if name == "runs" else ","
        value = between.join(word) if isinstance(word, list) else word
        if not (word is None or word is False or name in _AS_ASKED):
            found.append(flag if word is True else f"{flag}={value}")
    return " ".join(found)


@dataclass(frozen=True)
class Facts:
    takes: TargetSignature
    tensors: Sequence[str] = ()

    def worded(self, words: Words) -> WordedCase:
        """Raises UsageFailure where no case has these words."""
        names = [option.name for option in OPTIONS if words.get(option.name) is not None]
        words = {name: words[name] for name in names}
        given, takes = {**parse(words), "device": self.takes.device}, self.takes.names
        packs = bool(takes & PACKING) and "seqlens" not in takes
        case = resolve(given, self.takes.family, takes_bias="bias" in takes, packs=packs)
        runs = list[Assigned]()
        for assigned in layouts_of(case):
            runs.append(tuple(pair for pair in assigned if pair[1] != "contiguous"))
        return WordedCase(words, replace(case, layouts=(), runs=tuple(runs)))

    def in_full(self, words: Words) -> WordedCase:
        case = self.worded(words).case
        return self.worded({**words, **_sizes(case, words.get("tau")), **_laid(*case.runs)})


def _laid(*runs: Assigned) -> Words:
    names = list(map(run_name, runs))
    if len(runs) == 1 and runs[0]:
        return {"layout": names[0].split(","), "runs": None}
    return {"layout": None, "runs": names}


def _sizes(case: Case, tau: str | None = None) -> Words:
    if tau is not None and case.tau is not None:
        tau = ",".join(map(str, case.tau[:1] if len(set(case.tau)) == 1 else case.tau))
    return {
        "batch": case.batch,
        "heads": case.heads,
        "kv_heads": None if case.kv_heads == case.heads else case.kv_heads,
        **dict.fromkeys(_LENGTHS),
        **length_words(case),
        "head_dim": case.head_dim,
        "head_dim_v": None if case.head_dim_v == case.head_dim else case.head_dim_v,
        "tau": tau,
    }


def ladder(size: int, blocks: Sequence[int] = ()) -> list[int]:
    """Sizes below one, ascending: small ones, powers of two, around multiples of blocks, its half, one less."""
    marks = {1, 2, 3, 4, size // 2, size - size // 4, size - 1}
    marks |= {2**power for power in range(3, size.bit_length())}
    for block in blocks:
        for multiple in (block, 2 * block, size // block * block):
            marks |= {multiple - 1, multiple, multiple + 1}
    return sorted(mark for mark in marks if 1 <= mark < size)


def _smaller_pairs(first: int, second: int, blocks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """The longer counts, then whether they are alike."""
    pairs = [(size, size) for size in ladder(max(first, second) + (first != second), blocks)]
    if first != second:
        pairs += [(size, second) for size in ladder(first, blocks)]
        pairs += [(first, size) for size in ladder(second, blocks)]
    return sorted(pairs, key=lambda pair: (max(pair), pair[0] != pair[1], sum(pair)))


def _packed(case: Case) -> list[list[int]]:
    sides = (case.cu_seqlens_q or (), case.cu_seqlens_k or ())
    return [[end - start for start, end in pairwise(ends)] for ends in sides]


def _repacked(case: Case, sides: Iterable[Sequence[int]]) -> Case:
    rows, keys = (tuple(accumulate(side, initial=0)) for side in sides)
    packed = replace(case, cu_seqlens_q=rows, cu_seqlens_k=keys)
    return replace(packed, seqlen_q=rows[-1], seqlen_k=keys[-1])


def _fewer_sequences(case: Case) -> Iterator[Case]:
    sides = _packed(case)
    for count in ladder(len(sides[0]) or case.batch):
        for part in (slice(count), slice(-count, None)):
            if sides[0]:
                yield _repacked(case, (side[part] for side in sides))
            else:
                yield replace(case, batch=count, seqlens=case.seqlens and case.seqlens[part])


def _fewer_heads(case: Case) -> Iterator[Case]:
    """Groups as they are where they divide the heads, and of one; at last none."""
    group = case.heads // case.kv_heads
    for count in ladder(case.heads):
        for size in (1, group) if count % group == 0 else (1,):
            yield case.with_heads(count, count // size)
    yield replace(case, kv_heads=case.heads)


def _shorter(case: Case) -> Iterator[Case]:
    blocks, sides = (case.block_m, case.block_n), _packed(case)
    if not sides[0]:
        for rows, keys in _smaller_pairs(case.seqlen_q, case.seqlen_k, blocks):
            yield case.with_lengths(rows, keys)
    for size in ladder(max(map(max, sides)), blocks) if sides[0] else ():
        yield _repacked(case, ([min(size, length) for length in side] for side in sides))


def _smaller_dims(case: Case) -> Iterator[Case]:
    for dim, value_dim in _smaller_pairs(case.head_dim, case.head_dim_v):
        yield replace(case, head_dim=dim, head_dim_v=value_dim)


def _fewer_options(of: WordedCase) -> Iterator[Words]:
    case, words = of.case, of.words
    for name, others in _OPTIONS.items():
        if words.get(name) and not (name == "bias" and case.family == "lazy"):
            yield dict.fromkeys((name, *others))
    if case.cu_seqlens_q is not None:
        yield _sizes(replace(case, cu_seqlens_q=None, cu_seqlens_k=None))
    if case.family == "lazy" and case.bias:
        yield {"bias": False, "bias_window": None}
        yield from ({"bias_window": size} for size in ladder(case.bias_window))
    if any(case.tau or ()):
        yield {"tau": "0.0"}
    lengths = case.seqlens or ()
    for at, length in enumerate(lengths):
        for size in (0, *ladder(length)) if length else ():
            yield {"seqlens": ",".join(map(str, (*lengths[:at], size, *lengths[at + 1 :])))}


def _simpler_layouts(case: Case, tensors: Sequence[str]) -> Iterator[Words]:
    if len(case.runs) > 1:
        yield from map(_laid, case.runs)
        return
    order = dict.fromkeys([*(name for name in _USUAL if name in tensors), *tensors])
    laid = ((name, layout_of(name, case.runs[0])) for name in order)
    named = tuple(pair for pair in laid if pair[1] != "contiguous")
    half = len(named) // 2
    without = [named[:at] + named[at + 1 :] for at in range(len(named))]
    alone = [(pair,) for pair in named]
    yield from map(_laid, ((), *alone, named[:half], named[half:], *without))


_SIZES = {
    "batch": _fewer_sequences, "heads": _fewer_heads, "lengths": _shorter, "dims": _smaller_dims
}  # fmt: skip
_CHOICES = {"pattern": PATTERNS, "dtype": DTYPES}
AXES = (*_SIZES, "options", "layouts", *_CHOICES)
"""In the order in which the search goes."""


def simpler(of: WordedCase, axis: str, facts: Facts) -> Iterator[WordedCase]:
    changes: Iterable[Words]
    if axis in _SIZES:
        changes = (_sizes(case, of.words.get("tau")) for case in _SIZES[axis](of.case))
    elif axis in _CHOICES:
        known, default = _CHOICES[axis], getattr(Case, axis)
        before = known[: known.index(getattr(of.case, axis))]
        changes = ({axis: None if choice == default else choice} for choice in before)
    else:
        layouts = axis == "layouts"
        changes = _simpler_layouts(of.case, facts.tensors) if layouts else _fewer_options(of)
    seen = {of.case}
    for change in changes:
        with contextlib.suppress(UsageFailure):  # no case has these words
            step = facts.worded({**of.words, **change})
            if step.case not in seen:
                seen.add(step.case)
                yield step
