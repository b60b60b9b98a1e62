"""A sweep as a plan: every combination of the values of options, or cases drawn of what a target takes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import parse
from ...model.case import Case
from ...model.failures import UsageFailure
from ...model.resolution import resolve
from .case_factors import PACKING, SOFTCAPS, Factors, Row, decided_by, factors_of
from .journal import SweepRequest
from .plan import Plan, PlannedCheck, TargetSignature, titled

# Of combinations: days of checks.
LARGEST = 10_000
# The cases of a sweep that says nothing of them; draws of one case before it is said that none suits.
_DOZEN, _DRAWS = 12, 1000


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The options of each case; the last option varies fastest.

    Raises:
        UsageFailure: there are more than anybody waits for.
    """
    count = math.prod(map(len, values.values()))
    if count > LARGEST:
        words = f"sweep: {count:,} cases are more than {LARGEST:,}"
        raise UsageFailure(words, "give fewer values")
    rows = itertools.product(*values.values())
    return [dict(zip(values, row, strict=True)) for row in rows]


def sweep_plan(asked: SweepRequest, takes: Sequence[TargetSignature | None]) -> Plan:
    """The cases of a sweep, of each target the cheapest first.

    Args:
        takes: what each target takes; None of one that is not asked for, or that cannot be imported.

    Raises:
        UsageFailure: there are too many cases, or none.
    """
    is_open = not any("recover" in request.options for request in asked.requests)
    plan = Plan(is_own=asked.is_drawn, looks_closer=asked.is_drawn and is_open)
    for request, taken in zip(asked.requests, takes, strict=True):
        cases = _cases(asked, request, taken, len(plan.checks))
        for planned in sorted(cases, key=attrgetter("cost")):
            is_named = len(asked.requests) > 1 or not planned.title
            title = f"{request.target} {planned.title}".rstrip() if is_named else planned.title
            plan.checks.append(replace(planned, title=title))
    return plan


def _cases(
    asked: SweepRequest, request: CheckRequest, takes: TargetSignature | None, first: int
) -> Iterator[PlannedCheck]:
    if asked.is_drawn and takes is not None:
        # Black boxes are looked into in the simplest that fails alone.
        fixed = {name: [word] for name, word in request.options.items() if name != "seed"}
        cases = drawn(takes, request, {"recover": [False], **fixed, **asked.varied})
        yield from itertools.islice(cases, asked.draw or _DOZEN)
        return
    # One that cannot be imported is asked once, and says why.
    values = {} if asked.is_drawn else asked.varied
    for number, options in enumerate(combinations(values), first):
        whole = replace(request, options={**request.options, **options})
        yield PlannedCheck(" ".join(titled(options)), whole, number=number)


def drawn(
    takes: TargetSignature, request: CheckRequest, given: Mapping[str, Sequence[Any]]
) -> Iterator[PlannedCheck]:
    """Cases that a target may take, the same for a seed and none twice, until there are no others.

    Args:
        given: the values that options of the command line are drawn from; all else is drawn as the target takes it.

    Raises:
        UsageFailure: no case has such options.
    """
    factors, seen, seed = factors_of(takes, given), set[str](), request.options.get("seed", 0)
    while True:
        for attempt in range(_DRAWS):
            rng = random.Random(f"{seed}:{len(seen)}:{attempt}")
            title, options, beyond = _drawn_case(factors, given, rng)
            if title not in seen and case_of(options, takes) is not None:
                seen.add(title)
                options = {"seed": rng.randrange(1 << 16), **options}
                yield PlannedCheck(title, replace(request, options=options), beyond=beyond)
                break
        else:
            if seen:
                return
            words = "sweep: this target takes no case with these options"
            raise UsageFailure(words, "give fewer, or more values for them")


def _drawn_case(
    factors: Factors, given: Mapping[str, Sequence[Any]], rng: random.Random
) -> tuple[str, dict[str, Any], str]:
    """Title, options, and what no parameter tells."""
    chosen = {name: rng.choice(words) for name, words in given.items()}
    decided, row = decided_by(given), _drawn_row(factors, rng)
    length, extra = _drawn_length(rng), list[str]()
    options = factors.options(row, length, rng.choice((1, 2, 3)))
    if options.get("pattern") == "normal" and rng.random() < 0.25:
        options["pattern"] = rng.choice(("wide", "offset", "lowrank"))
        extra.append(options["pattern"])
    told = {name: word for name, word in chosen.items() if len(given[name]) > 1}
    told |= {"heads": options["heads"]} if "heads" not in decided else {}
    options = {name: word for name, word in options.items() if name not in decided} | chosen
    if "softcap" in options and "softcap" not in chosen:
        options["softcap"] = SOFTCAPS.get(options.get("pattern", ""), options["softcap"])
    of_row = factors.title(row, None if "seqlen" in decided else length)
    title = " ".join([*titled(told), *([] if of_row == "simplest" else [of_row]), *extra])
    return title or of_row, options, factors.beyond(row)


def _drawn_row(factors: Factors, rng: random.Random) -> Row:
    """Levels that may stand together, half of them the simplest."""
    row, excluded = list[str](), factors.excluded
    for levels in factors.each:
        level = levels[rng.choice((0, rng.randrange(len(levels))))].name
        is_out = any({level, other} in excluded for other in row)
        row.append(levels[0].name if is_out else level)
    return tuple(row)


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
