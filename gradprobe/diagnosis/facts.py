"""Facts: what is known of wrong numbers that no hypothesis explains."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..faults.hypothesis import Observed
from ..model.intermediates import slots
from ..model.number import in_words, spans

_WORDS = {"b": "batches", "h": "heads", "g": "key heads", "m": "rows", "n": "keys", "w": "distances"}
_WORDS |= {"d": "dims", "e": "dims"}


def facts_about(seen: Observed) -> list[str]:
    """Sentences about the first intermediate that is wrong by itself."""
    name = seen.own[0]
    wrong = ~seen.right[name]
    facts = [f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} elements are wrong", *_where(seen, name, wrong)]
    return ["; ".join(facts), *_numbers(seen.actual[name][wrong], seen.expected[name][wrong])]


def _where(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    """Which batches, heads, rows and columns, where that is not all of them."""
    axes = seen.case.axes(name)
    letters = [letter for letter in slots(axes) if letter]
    for axis, letter in enumerate(axes):
        if letter not in letters or wrong.shape[axis] == 1:
            continue
        others = [other for other in range(wrong.dim()) if other != axis]
        at = (wrong.amax(others) if others else wrong).nonzero().flatten().tolist()
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
