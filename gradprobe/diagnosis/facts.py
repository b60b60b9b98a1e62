"""Facts: what is known of wrong numbers that no hypothesis explains."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..faults.hypothesis import Observed
from ..model.intermediates import slots
from ..model.number import in_words, spans
from ..reference import tiles

_WORDS = {"b": "batches", "h": "heads", "g": "key heads", "m": "rows", "n": "keys", "w": "distances"}
_WORDS |= {"d": "dims", "e": "dims"}


def facts_about(seen: Observed) -> list[str]:
    """Sentences about the first intermediate that is wrong by itself, and about the run."""
    name = seen.own[0]
    wrong = ~seen.right[name]
    facts = [f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} elements are wrong", *_where(seen, name, wrong)]
    return ["; ".join(facts), *_numbers(seen, name, wrong), *_identities(seen)]


def _where(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    """Which batches, heads, rows and columns, where that is not all of them."""
    axes = seen.case.axes(name)
    letters = [letter for letter in slots(axes) if letter]
    for axis, letter in enumerate(axes):
        if letter == "1" or wrong.shape[axis] == 1:
            continue
        others = [other for other in range(wrong.dim()) if other != axis]
        along = wrong.amax(others) if others else wrong
        at = along.nonzero().flatten().tolist()
        if len(at) < wrong.shape[axis] and letter in letters:
            yield f"{_WORDS[letter]} {in_words(spans(at), 4)} of {wrong.shape[axis]}"


def _numbers(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    """What the wrong numbers are: not finite, zeros, of one ratio, only at masked entries."""
    actual, expected = seen.actual[name][wrong], seen.expected[name][wrong]
    count = len(actual)
    for words, is_so in (("not finite", ~actual.isfinite()), ("0", actual == 0)):
        share = int(is_so.sum()) / count
        if share > 0.05:
            yield f"{share:.0%} of them are {words}"
    if seen.case.axes(name) == "bhmn":
        yield from _masked(seen, name, wrong)
    kept = actual.isfinite() & (expected.abs() > expected.abs().mean() / 100)
    if int(kept.sum()) > 1:
        low, middle, high = (actual[kept] / expected[kept]).quantile(actual.new_tensor([0.05, 0.5, 0.95])).tolist()
        same = high - low < 1e-3 * abs(middle)
        varied = f"no constant ratio: actual / expected lies between {low:.3g} and {high:.3g}"
        yield f"actual / expected is {middle:.5g} throughout" if same else varied


def _masked(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    x, masked, total = seen.x, 0, 0
    distances: set[int] = set()
    for batch, tile in enumerate(tiles(x)):
        valid = x.valid(tile).expand(wrong.shape[1:])
        masked, total = masked + int((wrong[batch] & ~valid).sum()), total + int(wrong[batch].sum())
        # How far before their rows' diagonals the wrong keys lie.
        before = (x.diagonal(tile) - x.positions(tile)[1]).expand(wrong.shape[1:])
        distances |= set(before[wrong[batch]].unique().tolist())
    if len(distances) == 1:
        keys = distances.pop()
        place = f"{abs(keys)} keys {'before' if keys > 0 else 'beyond'} the diagonal" if keys else "on the diagonal"
        yield f"all of them lie {place}"
    if masked == total:
        yield "all of them are masked entries, where 0 is due"
    elif not masked and seen.case.causal:
        yield "none of them is a masked entry"


def _identities(seen: Observed) -> Iterator[str]:
    tried = [invariant for invariant in seen.measured.invariants if invariant.of == "target"]
    broken = [invariant.name for invariant in tried if not invariant.holds]
    kept = dict.fromkeys(invariant.key for invariant in tried if invariant.holds)
    if broken and kept:
        yield f"broken: {'; '.join(broken)}; kept: {' '.join(kept)}"
