"""Drawn cases: for a sweep, of the properties that a target takes, the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.options import parse
from ...model.case import Case
from ...model.failures import UsageFailure
from ...model.resolution import resolve
from .case_factors import PACKING, SOFTCAPS, Factors, Sizes, decided_by, factors_of
from .covering import Place, Row, Space
from .plan import titled
from .takes import TargetSignature


@dataclass(frozen=True)
class DrawnCase:
    """A case that was drawn for a target."""

    title: str
    options: Mapping[str, Any]
    beyond: str


# Draws of one case before it is said that none suits.
_MOST = 1000


def drawn(
    takes: TargetSignature, given: Mapping[str, Sequence[Any]], seed: int
) -> Iterator[DrawnCase]:
    """Cases that a target may take, none twice, until there are no others.

    Args:
        given: the values that options of the command line are drawn from; all else is drawn as the target takes it.

    Raises:
        UsageFailure: no case has such options.
    """
    factors, seen = factors_of(takes, given), set[str]()
    while True:
        for attempt in range(_MOST):
            rng = random.Random(f"{seed}:{len(seen)}:{attempt}")
            case = _drawn_case(factors, given, rng)
            if case.title not in seen and case_of(case.options, takes) is not None:
                seen.add(case.title)
                seeded = {"seed": rng.randrange(1 << 16), **case.options}
                yield replace(case, options=seeded)
                break
        else:
            if seen:
                return
            words = "sweep: this target takes no case with these options"
            raise UsageFailure(words, "give fewer, or more values for them")


def _drawn_case(
    factors: Factors, given: Mapping[str, Sequence[Any]], rng: random.Random
) -> DrawnCase:
    chosen = {name: rng.choice(words) for name, words in given.items()}
    decided, row = decided_by(given), _drawn_row(factors.space, rng)
    sizes = Sizes(_drawn_length(rng), rng.choice((1, 2, 3)))
    options, extra = factors.options(row, sizes), list[str]()
    if options.get("pattern") == "normal" and rng.random() < 0.25:
        options["pattern"] = rng.choice(("wide", "offset", "lowrank"))
        extra.append(options["pattern"])
    told = {name: word for name, word in chosen.items() if len(given[name]) > 1}
    told |= {"heads": options["heads"]} if "heads" not in decided else {}
    options = {name: word for name, word in options.items() if name not in decided} | chosen
    if "softcap" in options and "softcap" not in chosen:
        options["softcap"] = SOFTCAPS.get(options.get("pattern", ""), options["softcap"])
    of_row = factors.title(row, Sizes() if "seqlen" in decided else sizes)
    title = " ".join([*titled(told), *([] if of_row == "simplest" else [of_row]), *extra])
    return DrawnCase(title or of_row, options, factors.beyond(row))


def _drawn_row(space: Space, rng: random.Random) -> Row:
    """Levels that may stand together, half of them the simplest."""
    row = list[Place]()
    for factor in range(len(space.counts)):
        level = rng.choice((0, rng.randrange(space.counts[factor])))
        row.append((factor, level if space.allows((factor, level), row) else 0))
    return tuple(level for _, level in row)


def _drawn_length(rng: random.Random) -> int:
    """Below a tile, a multiple of one, and one more or less; seldom more than two tiles of 64."""
    tile = rng.choice((16, 16, 32, 32, 64, 128))
    lengths = (rng.randrange(1, 16), tile, tile - 1, tile + 1, rng.randrange(1, 2 * tile))
    return rng.choice(lengths)


def case_of(options: Mapping[str, Any], takes: TargetSignature) -> Case | None:
    """The case of options; None where there is none."""
    takes_bias, packs = "bias" in takes.names, bool(PACKING & takes.required)
    words = {**parse(options), "device": "cpu"}
    try:
        return resolve(words, takes.family, takes_bias=takes_bias, packs=packs)
    except UsageFailure:
        return None
