"""A part of a case, cut out exactly: some batches and key heads, the rows about the first wrong one and their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from ..inputs.draw import numbers_of
from ..model.case import Case, shortened
from ..model.number import in_words, spans
from ..model.run import Element
from ..probing.experiment import Experiment


@dataclass(frozen=True)
class Part:
    """What is kept of a case, by number."""

    batches: tuple[int, ...]
    key_heads: tuple[int, ...]
    sequences: tuple[tuple[range, range], ...]
    """The query rows and the keys of each sequence; of one where nothing is packed."""

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(row for rows, _ in self.sequences for row in rows)

    @property
    def keys(self) -> tuple[int, ...]:
        return tuple(key for _, keys in self.sequences for key in keys)

    def heads(self, case: Case) -> tuple[int, ...]:
        """The query heads of its key heads."""
        group = case.heads // case.kv_heads
        return tuple(key_head * group + member for key_head in self.key_heads for member in range(group))

    def in_words(self, case: Case) -> str:
        """What it is, in the numbers of the whole."""
        kept = {"batch": self.batches, "head": self.heads(case), "row": self.rows, "key": self.keys}
        return ", ".join(f"{name} {in_words(spans(numbers))}" for name, numbers in kept.items())

    def case(self, whole: Case) -> Case:
        """The case of this part."""
        heads, packed = self.heads(whole), whole.cu_seqlens_q is not None
        ends_q, ends_k = ((0, *accumulate(map(len, ranges))) for ranges in zip(*self.sequences, strict=True))
        first, length = self.rows[0], len(self.rows)
        lengths = whole.seqlens and tuple(min(max(whole.seqlens[b] - first, 0), length) for b in self.batches)
        return replace(
            whole, batch=len(self.batches), heads=len(heads), kv_heads=len(self.key_heads),
            seqlen_q=length, seqlen_k=len(self.keys), seqlens=lengths,
            cu_seqlens_q=ends_q if packed else None, cu_seqlens_k=ends_k if packed else None,
            tau=whole.tau and tuple(whole.tau[head] for head in heads),
        )  # fmt: skip

    def values(self, whole: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values of this part; O, LSE and delta, which see all keys, are left out, as is what a case holds."""
        kept = {"b": self.batches, "h": self.heads(whole), "g": self.key_heads, "m": self.rows, "n": self.keys}
        axes = {name: whole.input_axes(name) for name in ("q", "k", "v", "do", "bias", "mask", "keep")}
        axes |= dict.fromkeys(("tau", "alibi", "sinks"), "h")
        return {name: _cut(values[name], axes[name], kept) for name in axes if name in values}


def _cut(value: Tensor, axes: str, kept: Mapping[str, Sequence[int]]) -> Tensor:
    for at, letter in enumerate(axes):
        if letter in kept and value.shape[at] > 1:
            value = value.index_select(at, torch.tensor(kept[letter], device=value.device))
    return value.contiguous()


def part_of(experiment: Experiment, part: Part) -> Experiment:
    """The experiment on a part of its values, which lie as the whole ones did."""
    case, saved = part.case(experiment.case), experiment.saved
    cut = part.values(experiment.case, experiment.values)
    numbers = {name: value.to(case.device) for name, value in numbers_of(case).items()}
    saved = replace(saved, values=cut) if saved is not None else None
    return replace(experiment, case=case, values={**numbers, **cut}, saved=saved, command="")


def parts(case: Case, first: Element, span: int, counts: tuple[int, int]) -> Iterator[Part]:
    """Parts of a case with a wrong element in them, of so many batches and key heads, and of about so many rows."""
    head = first.head or 0
    key_head = head if case.axes(first.intermediate)[1:2] == "g" else head // (case.heads // case.kv_heads)
    batches = _with_the_first(first.batch or 0, case.batch, counts[0])
    key_heads = _with_the_first(key_head, case.kv_heads, counts[1])
    of_key = "n" in case.axes(first.intermediate)[2:3]
    ways = _packed if case.cu_seqlens_q else _alone
    yield from map(partial(Part, batches, key_heads), ways(case, first.row or 0, span, of_key=of_key))


def _with_the_first(wrong: int, count: int, most: int) -> tuple[int, ...]:
    """One that is wrong and, where two are taken, another, the first if that is another one."""
    both = sorted({wrong, 0 if wrong else min(1, count - 1)})
    return tuple(both) if most > 1 else (wrong,)


def _alone(case: Case, row: int, span: int, *, of_key: bool) -> Iterator[tuple[tuple[range, range], ...]]:
    """The first rows with their keys; then those about the wrong one, counted from the diagonal's corner."""
    rows, keys = case.seqlen_q, case.seqlen_k
    yield ((range(shortened(rows, span)), range(shortened(keys, span))),)
    shift = keys - rows if case.align == "bottom-right" else 0
    start = max(0, (row - shift if of_key else row) // span * span)
    of_rows = range(start, min(start + 2 * span, rows))
    of_keys = range(max(0, start + shift), min(of_rows.stop + shift, keys))
    if of_rows and of_keys and start:
        yield ((of_rows, of_keys),)


def _packed(case: Case, row: int, span: int, *, of_key: bool) -> Iterator[tuple[tuple[range, range], ...]]:
    """The wrong element's sequence, shortened, with the one before it or behind it, and alone."""
    ends = [tuple(map(range, of[:-1], of[1:])) for of in (case.cu_seqlens_q, case.cu_seqlens_k) if of]
    every = [(_short(rows, span), _short(keys, span)) for rows, keys in zip(*ends, strict=True)]
    at = next((at for at, pair in enumerate(zip(*ends, strict=True)) if row in pair[of_key]), 0)
    other = at - 1 if at else min(1, len(every) - 1)
    for kept in dict.fromkeys(((min(at, other), max(at, other)), (at,))):
        chosen = tuple(every[number] for number in dict.fromkeys(kept))
        if any(rows and keys for rows, keys in chosen):
            yield chosen


def _short(numbers: range, span: int) -> range:
    return numbers[: shortened(len(numbers), span)]
