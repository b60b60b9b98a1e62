"""Configurations that the tool does not know, in which a mended kernel is held against the kernel as it was.

They are drawn at random, with no regard to what the kernel takes: those count in which the kernel itself is right. A
mended kernel is wrong where a result errs, in one of them, by over eight times what the kernel itself errs by there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

# Of the largest right value: what a kernel may err by that is right in a dtype. Those of faults are far above.
RIGHT = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}
# How many are drawn for one in which the kernel is to be right, and how many of these count.
DRAWN, COUNTED = 4, 20
# The options that are drawn. Of what the words of a kernel have, they take the place; a dtype and a head dim stay.
_SIZES = ("batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k")
_DRAWN = (*_SIZES, "causal", "no_causal", "window", "layout", "runs", "seed")
_LAYOUTS = ("contiguous", "contiguous", "distinct", "distinct-unit", "q=blhd,k=blhd,v=blhd")
_LENGTHS = (1, 7, 16, 31, 48, 64, 65, 96, 100, 128, 130, 160, 192, 200)


def drawn(words: Sequence[str], seed: int) -> list[list[str]]:
    """The words of so many configurations of a kernel: those of its check with others in place of what is drawn."""
    rng, kept = random.Random(seed), without(words, _DRAWN)
    return [[*kept, *_options(words, rng)] for _ in range(DRAWN * COUNTED)]


def _options(words: Sequence[str], rng: random.Random) -> list[str]:
    keys, group, rows = rng.choice((1, 2, 3)), rng.choice((1, 1, 1, 2, 3)), rng.choice(_LENGTHS)
    columns = rows if rng.random() < 0.6 else rng.choice(_LENGTHS)
    found = ["--batch", str(rng.choice((1, 2, 3))), "--heads", str(keys * group), "--kv-heads", str(keys)]
    found += ["--seqlen-q", str(rows), "--seqlen-k", str(columns), "--seed", str(rng.randrange(1 << 16))]
    found += ["--causal"] if rng.random() < 0.5 else []
    found += ["--window", f"{rng.randrange(60)},{rng.choice((-1, 0, 5, 40))}"] if rng.random() < 0.15 else []
    if not any(word.startswith("--dtype") for word in words):
        found += ["--dtype", rng.choice(("float32", "float32", "float16", "bfloat16"))]
    return [*found, "--runs", rng.choice(_LAYOUTS)]


def without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Words without some options and their values."""
    kept: list[str] = []
    is_left = False
    for word in words:
        if word.startswith("--"):
            is_left = word.removeprefix("--").partition("=")[0].replace("-", "_") in names
        kept += [] if is_left else [word]
    return kept


def right(each: Sequence[Mapping[str, Any]], configurations: Sequence[Sequence[str]]) -> list[int]:
    """The numbers of the first configurations in which a kernel ran and is right."""
    found = [at for at, errors in enumerate(each) if errors and _worst(errors) <= RIGHT[_dtype(configurations[at])]]
    return found[:COUNTED]


def _worst(errors: Mapping[str, Mapping[str, Sequence[float | None]]]) -> float:
    heads = [one for results in errors.values() for of_heads in results.values() for one in of_heads]
    return max((float("inf") if one is None else one for one in heads), default=0.0)


def _dtype(words: Sequence[str]) -> str:
    last = [at for at, word in enumerate(words) if word == "--dtype"]
    return words[last[-1] + 1] if last else "float32"
