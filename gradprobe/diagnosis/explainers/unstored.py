"""What no program stores of a result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS, title
from ...model.number import plural
from ..follow import FollowedRun
from .suspect import Suspect, share


def never_stored(run: FollowedRun) -> Iterator[Suspect]:
    """Results of which some rows or keys, heads or batches are stored by no program: too few of them are launched, or
    two take the same.

    Nothing of kernels that store a mere number, which is right where no pair of a row and a key is seen.
    """
    flow, by_name = run.flow, dict[str, list[int]]()
    of_numbers = {site.kernel for site in flow.empty.values()}
    for number, source in enumerate(flow.sources):
        is_store = source.site.operation != "load" and source.site.kernel not in of_numbers
        if is_store and title(source.tensor) in run.wrong:
            by_name.setdefault(title(source.tensor), []).append(number)
    for name, numbers in by_name.items():
        letters, site = flow.filled[numbers[0]][0], flow.sources[numbers[0]].site
        filled = [here for axes, here in map(flow.filled.__getitem__, numbers) if axes == letters]
        needed = _needed(run, letters)
        never = needed & ~np.logical_or.reduce(filled)
        if never.any():
            reason, extent = _lacking(letters, needed, never, name)
            beside = tuple(flow.lines[line] for line in _placing(run, numbers))
            yield Suspect("unstored", name, site, site.lines, reason, extent, beside=beside)


def _needed(run: FollowedRun, letters: str) -> Array:
    """[of these axes] bool: where something is that some row sees some key for."""
    kept = letters.replace("g", "h")
    needed = run.roles.valid.any(tuple(at for at, letter in enumerate("bhmn") if letter not in kept))
    if "g" not in letters:
        return needed
    axis, shape = letters.index("g"), [run.flow.sizes[letter] for letter in letters]
    return needed.reshape(*shape[: axis + 1], -1, *shape[axis + 1 :]).any(axis + 1)


def _lacking(letters: str, needed: Array, never: Array, name: str) -> tuple[str, str]:
    """What is never stored, in words, and how much that is: whole batches, heads, rows or keys; else of which head."""
    for at, letter in enumerate(letters):
        others = tuple(axis for axis in range(len(letters)) if axis != at)
        whole = ~(needed & ~never).any(others) & needed.any(others)
        if whole.any():
            many, first = int(whole.sum()), int(np.flatnonzero(whole)[0])
            words = f"no program stores {plural(many, AXIS_WORDS[letter])} of {name}, the first {first}"
            return words, share(many, whole.size, AXIS_WORDS[letter])
    *above, first = (int(at) for at in np.argwhere(never)[0])
    many, word = int(never[tuple(above)].sum()), AXIS_WORDS[letters[-1]]
    of = " and ".join(f"{AXIS_WORDS[letter]} {at}" for letter, at in zip(letters, above, strict=False))
    words = f"no program stores {plural(many, word)} of {name} in {of}, the first {first}"
    return words, share(int(never.sum()), int(needed.sum()), word)


def _placing(run: FollowedRun, numbers: Sequence[int]) -> list[int]:
    """The lines behind all addresses of a kernel that leave something out; last those behind others as well."""
    flow, kernel = run.flow, run.flow.sources[numbers[0]].site.kernel
    short, others = [flow.slices[number] for number in numbers], frozenset[int]()
    for number, (letters, filled) in flow.filled.items():
        if letters and number not in flow.derived and flow.sources[number].site.kernel == kernel:
            if (_needed(run, letters) & ~filled).any():
                short.append(flow.slices[number])
            else:
                others |= flow.slices[number]
    return sorted(frozenset.intersection(*short), key=lambda line: (line in others, -line))
