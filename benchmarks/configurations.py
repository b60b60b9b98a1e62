"""Configurations that the tool does not know, in which a mended kernel is held against the kernel as it was.

They are drawn from what the kernel takes: first each option of its check is changed alone, to values drawn at random,
and those are kept with which the kernel itself is right by the float64 judge; then combinations of these are drawn
until there are so many in which it is right too. Nothing is asked of gradprobe but to call the kernel. A mended kernel
is wrong where a result errs, in one of them, by over eight times what the kernel itself errs by there.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# Of the largest right value: what a kernel may err by that is right in a dtype. Those of faults are far above.
RIGHT = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}
# How many count, how many are drawn at once, and how often at most.
COUNTED, AT_ONCE, ROUNDS = 20, 24, 5
# Options of a check that are of an axis: what is drawn stands in place of them.
_OF_AXIS = {
    "lengths": ("seqlen", "seqlen_q", "seqlen_k"), "heads": ("heads", "kv_heads"), "batch": ("batch",),
    "causal": ("causal",), "window": ("window",), "dtype": ("dtype",), "head_dim": ("head_dim",),
    "layout": ("layout", "runs"),
}  # fmt: skip
_LAYOUTS = ("contiguous", "distinct", "distinct-unit", "q=blhd,k=blhd,v=blhd", "packed")
_LONGEST = 300
_NOT_CAUSAL = "without --causal"

Words = tuple[str, ...]
"""Some options of a command; () for what the check of a kernel has itself."""
Errors = Mapping[str, Mapping[str, Sequence[float | None]]]
Run = Callable[[Sequence[Sequence[str]]], Sequence[Errors]]
"""What the judge finds of a kernel in some configurations; {} where it refuses one."""


@dataclass(frozen=True)
class Drawn:
    """The configurations that count."""

    words: list[list[str]] = field(default_factory=list)
    errors: list[Errors] = field(default_factory=list)
    """What the kernel itself errs by in each."""
    possible: int = 0
    """How many combinations of what it takes there are, of the values that were drawn."""


def drawn(words: Sequence[str], seed: int, run: Run) -> Drawn:
    """Draws configurations of a kernel, in which it is right as it is, until there are enough or no more."""
    rng = random.Random(seed)
    axes = _axes(rng) | ({"causal": []} if "--implied" in words else {})
    tried = [(axis, value) for axis, values in axes.items() for value in values]
    alone = [_with(words, {axis: value}) for axis, value in tried]
    right = [is_right(errors, each) for each, errors in zip(alone, run(alone), strict=True)]
    taken = {axis: [value for (of, value), is_taken in zip(tried, right, strict=True) if of == axis and is_taken]
             for axis in axes}  # fmt: skip
    taken = {axis: values or [()] for axis, values in taken.items()}
    found, asked = Drawn(possible=math.prod(map(len, taken.values()))), set[tuple[Words, ...]]()
    while len(found.words) < COUNTED and len(asked) < min(found.possible, ROUNDS * AT_ONCE):
        chosen = [tuple(map(rng.choice, taken.values())) for _ in range(4 * AT_ONCE)]
        fresh = [one for one in dict.fromkeys(chosen) if one not in asked][:AT_ONCE]
        asked.update(fresh)
        each = [
            _with(words, dict(zip(taken, one, strict=True)), rng.randrange(1 << 16))
            for one in fresh
        ]
        came = run(each)
        is_counted = [is_right(errors, one) for one, errors in zip(each, came, strict=True)]
        counted = list(itertools.compress(zip(each, came, strict=True), is_counted))[
            : COUNTED - len(found.words)
        ]
        found.words.extend(one for one, _ in counted)
        found.errors.extend(errors for _, errors in counted)
    return found


def _axes(rng: random.Random) -> dict[str, list[Words]]:
    """By axis, the values that are drawn: lengths of every kind, those of whole tiles too, equal and unequal."""
    alike = [rng.randint(1, 15), *(rng.randint(16, _LONGEST) for _ in range(4))]
    alike += [
        rng.choice((16, 48, 80, 112)),
        rng.choice((32, 96, 160)),
        rng.choice((64, 192)),
        128,
        256,
    ]
    lengths = [(each, each) for each in alike]
    lengths += [(rng.randint(1, _LONGEST), rng.randint(1, _LONGEST)) for _ in range(3)]
    lengths += [(64, 128), (256, 128), (rng.randint(2, 40), 128)]
    heads = [(keys * group, keys) for keys, group in ((1, 1), (2, 1), (3, 1), (1, 3), (2, 2))]
    return {
        "lengths": [
            ("--seqlen-q", str(rows), "--seqlen-k", str(keys)) for rows, keys in lengths
        ],
        "heads": [("--heads", str(each), "--kv-heads", str(keys)) for each, keys in heads],
        "batch": [("--batch", str(each)) for each in (1, 2, 3)],
        "causal": [("--causal",), (_NOT_CAUSAL,)],
        "window": [
            ("--window", f"{rng.randrange(60)},{right}") for right in (-1, 0, rng.randint(1, 40))
        ],
        "dtype": [("--dtype", name) for name in RIGHT],
        "head_dim": [
            ("--head-dim", str(each)) for each in (16, 32, 64, 128, rng.choice((24, 40, 48, 80)))
        ],
        "layout": [("--runs", name) for name in _LAYOUTS],
    }


def _with(words: Sequence[str], values: Mapping[str, Words], seed: int = 0) -> list[str]:
    """The words of a check with some values in place of those of their axes; it is run in one layout."""
    values = {"layout": ("--runs", "contiguous")} | {
        axis: value for axis, value in values.items() if value
    }
    kept = without(words, [name for axis in values for name in _OF_AXIS[axis]] + ["seed"])
    found = [word for value in values.values() for word in value if word != _NOT_CAUSAL]
    return [*kept, *found, "--seed", str(seed)]


def without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Words without some options and their values."""
    kept: list[str] = []
    is_left = False
    for word in words:
        if word.startswith("--"):
            is_left = word.removeprefix("--").partition("=")[0].replace("-", "_") in names
        kept += [] if is_left else [word]
    return kept


def is_right(errors: Errors, words: Sequence[str]) -> bool:
    """Whether a kernel ran in a configuration and is right."""
    heads = [
        one for results in errors.values() for of_heads in results.values() for one in of_heads
    ]
    return bool(heads) and all(one is not None and one <= RIGHT[_dtype(words)] for one in heads)


def _dtype(words: Sequence[str]) -> str:
    last = [at for at, word in enumerate(words) if word == "--dtype"]
    return words[last[-1] + 1] if last else "float32"
