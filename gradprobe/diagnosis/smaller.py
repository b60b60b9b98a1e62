"""A smaller case that fails in the same way, where the one asked for has too many scores for hypotheses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, pairwise, product

import torch
from torch import Tensor

from ..inputs.draw import numbers_of
from ..inputs.options import flags, with_others
from ..model.assignment import Assigned
from ..model.case import Case, fewer_heads, shortened
from ..model.failures import Failure
from ..model.layout_run import MISMATCH, Element
from ..model.mechanisms import door
from ..model.number import in_words, spans
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, experiment_of
from ..probing.runs import outcomes_of, records_of, with_strays
from .apart import with_intermediates

# Elements of all score matrices together up to which hypotheses are tried: each takes an evaluation or two.
MOST_SCORES = 1 << 18
# Lengths are shortened to one of these and a remainder.
_SPANS = (64, 128, 256)
# Batches and key heads: two show what one hides. The rest of the time goes to one of each, and to longer sequences.
_COUNTS = ((2, 2), (1, 2), (1, 1))
# Cases that are tried at most. None has more than MOST_SCORES.
_MOST_CASES = 24
# The options that give a case its size.
_SIZES = (
    "batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k", "tau",
)  # fmt: skip


@dataclass(frozen=True)
class Smaller:
    """A smaller case that fails in the same way."""

    experiment: Experiment
    runs: list[LayoutRun]
    """Those in the layouts that failed."""
    words: str
    """What is smaller."""


@door("smaller")
def smaller_failing(experiment: Experiment, failing: Sequence[LayoutRun]) -> Smaller | None:
    """The first of some smaller cases in which the same result is the first wrong one, in the first layout that failed.

    Returns:
        It, run in every layout that failed; None where every case that was tried is right or fails otherwise.
    """
    first, *others = (run.assigned for run in failing)
    for small, words in islice(_smaller(experiment, failing[0]), _MOST_CASES):
        try:
            ran, runs = _run(small, [first])
        except Failure:  # such as a length that the target does not take
            continue
        if any(run.measured and _fails_alike(run.measured, failing[0]) for run in runs):
            return Smaller(ran, [*runs, *_of_others(ran, others)], words)
    return None


def _run(experiment: Experiment, layouts: Sequence[Assigned]) -> tuple[Experiment, list[LayoutRun]]:
    """The runs in some layouts, and the experiment with what they showed of the target."""
    case = replace(experiment.case, layouts=(), runs=tuple(layouts), configs="first", repeat=1)
    experiment = replace(experiment, case=case, first=None, cuda="", is_compiled=False)
    records = list(records_of(experiment))
    experiment = experiment.after(outcomes_of(records))
    return experiment, with_strays(with_intermediates(experiment, records))


def _of_others(experiment: Experiment, layouts: Sequence[Assigned]) -> list[LayoutRun]:
    """The runs in further layouts, into none of which the target is looked."""
    without = replace(experiment, case=replace(experiment.case, recover=False))
    try:
        return _run(without, layouts)[1] if layouts else []
    except Failure:
        return []


def _fails_alike(measured: Measured, failing: LayoutRun) -> bool:
    """Whether the first result that is wrong by itself is the same, among what both runs returned."""
    assert failing.measured is not None
    here, there = measured.comparison.findings, failing.measured.comparison.findings
    wrong = [[name for name, finding in found.items() if finding.status == MISMATCH] for found in (here, there)]
    if not wrong[1] or wrong[0][:1] != wrong[1][:1]:
        return False
    # Where a fault takes all of a short case it leaves no trace of what it is.
    traces = (measured.trace.values, failing.measured.trace.values)
    return all(_is_something(traces[1], name) <= _is_something(traces[0], name) for name in wrong[0])


def _is_something(came: Mapping[str, Tensor], name: str) -> bool:
    """Whether anything but 0 came of a result; what was recovered is not asked."""
    return bool(came[name].any()) if name in came else True


def _smaller(experiment: Experiment, failing: LayoutRun) -> Iterator[tuple[Experiment, str]]:
    """Cases of the same options, the quickest first: drawn anew, then with a part of the very values that failed."""
    for case in _drawn(experiment.case):
        command = with_others(experiment.command, _SIZES, {**_sizes(case), "tau": _listed(case.tau)})
        small = experiment_of(case, experiment.target, experiment.reference, command=command)
        yield small, f"a smaller case that fails in the same way: {size_in_words(case)}"
    first, tried = failing.measured.first if failing.measured else None, set[object]()
    if first is None:
        return
    for span, counts in product(_SPANS, _COUNTS):
        for part in parts(experiment.case, first, span, counts):
            if part.case(experiment.case).scores <= MOST_SCORES and part not in tried:
                tried.add(part)
                yield part_of(experiment, part), f"a part of it that fails alike: {part.in_words(experiment.case)}"


def size_in_words(case: Case) -> str:
    """The options that give a case its size."""
    return " ".join(flags(_sizes(case)))


def _sizes(case: Case) -> dict[str, object]:
    """The options; None of one that says nothing."""
    rows, keys, packed = case.seqlen_q, case.seqlen_k, case.cu_seqlens_q
    lengths: dict[str, object] = {"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}
    if packed is not None:
        of_keys = None if case.cu_seqlens_k == packed else _listed(case.cu_seqlens_k)
        lengths = {"cu_seqlens": _listed(packed), "cu_seqlens_k": of_keys}
    batch, few = case.batch if packed is None else None, case.kv_heads if case.kv_heads != case.heads else None
    return {"batch": batch, "heads": case.heads, "kv_heads": few, **lengths, "seqlens": _listed(case.seqlens)}


def _listed(numbers: Sequence[float] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))


def _drawn(case: Case) -> Iterator[Case]:
    """Cases whose values are drawn, with fewer batches, heads, rows and keys; none of values of a file."""
    tried = {case}
    for span, (batches, key_heads) in product(_SPANS, _COUNTS if case.inputs is None else ()):
        small = case.with_heads(*fewer_heads(case.heads, case.kv_heads, key_heads))
        small = _packed(small, span, batches) if case.cu_seqlens_q else _padded(small, span, batches)
        if small.scores <= MOST_SCORES and small not in tried:
            tried.add(small)
            yield small


def _padded(case: Case, span: int, batches: int) -> Case:
    """The first batches, each length shortened by itself."""
    lengths = case.seqlens and tuple(shortened(length, span) for length in case.seqlens[:batches])
    small = replace(case, batch=min(case.batch, batches), seqlens=lengths)
    return small.with_lengths(shortened(case.seqlen_q, span), shortened(case.seqlen_k, span))


def _packed(case: Case, span: int, count: int) -> Case:
    """One sequence more than batches would be, each shortened."""
    ends_q, ends_k = (
        (0, *accumulate(shortened(end - start, span) for start, end in list(pairwise(ends))[: count + 1]))
        for ends in (case.cu_seqlens_q or (0, 0), case.cu_seqlens_k or (0, 0))
    )
    return replace(case, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, seqlen_q=ends_q[-1], seqlen_k=ends_k[-1])


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
    ways = _of_sequences if case.cu_seqlens_q else _of_rows
    yield from map(partial(Part, batches, key_heads), ways(case, first.row or 0, span, of_key=of_key))


def _with_the_first(wrong: int, count: int, most: int) -> tuple[int, ...]:
    """One that is wrong and, where two are taken, another, the first if that is another one."""
    both = sorted({wrong, 0 if wrong else min(1, count - 1)})
    return tuple(both) if most > 1 else (wrong,)


def _of_rows(case: Case, row: int, span: int, *, of_key: bool) -> Iterator[tuple[tuple[range, range], ...]]:
    """The first rows with their keys; then those about the wrong one, counted from the diagonal's corner."""
    rows, keys = case.seqlen_q, case.seqlen_k
    yield ((range(shortened(rows, span)), range(shortened(keys, span))),)
    shift = keys - rows if case.align == "bottom-right" else 0
    start = max(0, (row - shift if of_key else row) // span * span)
    of_rows = range(start, min(start + 2 * span, rows))
    of_keys = range(max(0, start + shift), min(of_rows.stop + shift, keys))
    if of_rows and of_keys and start:
        yield ((of_rows, of_keys),)


def _of_sequences(case: Case, row: int, span: int, *, of_key: bool) -> Iterator[tuple[tuple[range, range], ...]]:
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
