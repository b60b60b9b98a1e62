"""The failing layouts of a target, what each shows, and what is known of wrong numbers that nothing explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..faults.hypothesis import Observed
from ..model.intermediates import GRADIENT_OF, slots, title
from ..model.memory_finding import GUARD, OUTSIDE, RACE
from ..model.number import in_words, spans
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from .prediction import observed_in

# What a kernel does to the memory of a result that makes it wrong, whatever its numbers were.
_SPOILING = (RACE, OUTSIDE, GUARD)
_WORDS = {"b": "batches", "h": "heads", "g": "key heads", "m": "rows", "n": "keys", "w": "distances"}
_WORDS |= {"d": "dims", "e": "dims"}


@dataclass(frozen=True)
class FailingLayout:
    """One layout in which a target is wrong."""

    run: LayoutRun
    seen: Observed

    @property
    def name(self) -> str:
        return self.run.layout

    @cached_property
    def spoilt(self) -> frozenset[str]:
        """The results that kernels were seen to store outside themselves, or race for, in this layout."""
        stored = [one for one in self.run.memory if one.kind in _SPOILING and one.access != "load"]
        # Nothing is made of these: without them the others come as before.
        return frozenset(title(one.tensor) for one in stored) & {*GRADIENT_OF.values()}

    @cached_property
    def unspoilt(self) -> Observed:
        """What came, without those results."""
        return self.seen.of([name for name in self.seen.right if name not in self.spoilt])

    @cached_property
    def places(self) -> dict[str, tuple[bool, ...]]:
        """Of each result that is wrong by itself, the heads in which it is."""
        found = dict[str, tuple[bool, ...]]()
        for name in self.unspoilt.own:
            wrong, axes = ~self.seen.right[name], self.seen.case.axes(name)
            at = next((axes.index(letter) for letter in "hg" if letter in axes), None)
            heads = [wrong] if at is None else wrong.unbind(at)
            found[name] = tuple(bool(of.any()) for of in heads)
        return found


def failing_layouts(experiment: Experiment, failing: Sequence[LayoutRun]) -> list[FailingLayout]:
    """The runs as they are to be explained: the first, then those that move one tensor alone or show the least."""
    first, *others = [FailingLayout(run, observed_in(experiment, run)) for run in failing]
    return [first, *sorted(others, key=lambda one: ("all" in dict(one.run.assigned), len(one.unspoilt.wrong_names)))]


def facts_about(seen: Observed) -> list[str]:
    """Sentences about the first intermediate that is wrong by itself."""
    name = seen.own[0]
    wrong = ~seen.right[name]
    facts = [f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} elements are wrong", *_where(seen, name, wrong)]
    return ["; ".join(facts), *_numbers(seen.actual[name][wrong], seen.expected[name][wrong])]


def _where(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    """Which batches, heads, rows and columns, where that is not all of them."""
    axes = seen.case.axes(name)
    known = [letter for letter in slots(axes) if letter]
    for axis, letter in enumerate(axes):
        if letter in known and wrong.shape[axis] > 1:
            at = [step for step, of in enumerate(wrong.unbind(axis)) if bool(of.any())]
            if len(at) < wrong.shape[axis]:
                yield f"{_WORDS[letter]} {in_words(spans(at), 4)} of {wrong.shape[axis]}"


def _numbers(actual: Tensor, expected: Tensor) -> Iterator[str]:
    """What the wrong numbers are: not finite, zeros, of one ratio."""
    for words, is_so in (("not finite", ~actual.isfinite()), ("0", actual == 0)):
        share = int(is_so.sum()) / len(actual)
        if share > 0.05:
            yield f"{share:.0%} of them are {words}"
    kept = actual.isfinite() & (expected.abs() > expected.abs().mean() / 100)
    if int(kept.sum()) > 1:
        low, middle, high = (actual[kept] / expected[kept]).quantile(actual.new_tensor([0.05, 0.5, 0.95])).tolist()
        same = high - low < 1e-3 * abs(middle)
        varied = f"no constant ratio: actual / expected lies between {low:.3g} and {high:.3g}"
        yield f"actual / expected is {middle:.5g} throughout" if same else varied
