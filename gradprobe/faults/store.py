"""H1, ACC: results that come in one another's place, not at all, or as one share of a sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from ..model.intermediates import GRADIENT_OF
from ..model.number import listed
from ..numerics.totals import TOTALS
from ..reference.attention import BY_HEAD
from .hypothesis import SIZES, Hypothesis, Observed
from .variant import TileScope

Results = Mapping[str, Tensor]


def zeros(seen: Observed) -> Iterator[Hypothesis]:
    """Gradients that are 0 throughout, together where there are several: one kernel may have left them."""
    found = [name for name in GRADIENT_OF.values() if name in seen.own and not bool(seen.actual[name].any())]
    if found:
        are, there = (" are", "in them") if len(found) > 1 else (" is", "there")
        summary = f"{listed(found)}{are} 0 throughout: nothing was stored {there}, or None was returned"
        made = {name: f"{name} * 0" for name in found}
        yield Hypothesis(f"zero/{found[0]}", "H1", summary, made, is_plain=True)


def shares(seen: Observed) -> Iterator[Hypothesis]:
    """Sums over the heads of a group, or over programs, that add something twice or keep one of their terms."""
    case, group = seen.case, seen.case.heads // seen.case.kv_heads
    heads = torch.arange(case.heads, device=seen.x.q.device)
    for member in range(group) if group > 1 else ():
        share = (heads == heads[: case.kv_heads, None] * group + member).double()
        ways = {
            f"of each group only query head {member} is added to dK and dV": share,
            f"query head {member} of each group is added in every member's place": share * group,
        }
        for summary, shared in ways.items():
            fix = "add every query head of the group once"
            yield Hypothesis("accumulation/dK", "ACC", summary, fix=fix, wrong=("dK", "dV"), share=shared)
    for name in filter(seen.own.__contains__, BY_HEAD):
        for size in dict.fromkeys((case.block_m, *SIZES)):
            last = (case.seqlen_q - 1) // size
            for batch, tile in dict.fromkeys(((case.batch - 1, last), (case.batch - 1, 0), (0, last), (0, 0))):
                rows = range(tile * size, tile * size + size)
                share_of = f"of batch {batch}, rows {rows[0]} to {rows[-1]}"
                summary = f"{name} holds the share {share_of} alone: it is stored, where it is to be added"
                made = {name: partial(_of_one_program, name, batch, rows)}
                yield Hypothesis(f"accumulation/{name}", "ACC", summary, made, "tl.atomic_add")


def _of_one_program(name: str, batch: int, rows: range, t: TileScope) -> Tensor:
    own = ((t.i >= rows.start) & (t.i < rows.stop)).double() * (t.tile.batch == batch)
    given = {"dT": own * t.P * t.spread, "dP": own * t.dP, "delta": own[:, 0] * t.delta}
    return TOTALS[name].summed(t.x, t.tile, vars(t), given[TOTALS[name].of])


def exchanged(seen: Observed) -> Iterator[Hypothesis]:
    """One gradient in another's place, too or instead."""
    for pair in combinations([name for name in ("dQ", "dK", "dV") if name in seen.actual], 2):
        if seen.actual[pair[0]].shape != seen.actual[pair[1]].shape:
            continue
        # Only the one that is wrong stands where the other belongs.
        here, of = sorted(pair, key=seen.wrong, reverse=True) if not all(map(seen.wrong, pair)) else pair
        if seen.wrong(of):
            fault, places, summary = f"swap/{here}-{of}", {here: of, of: here}, f"{here} and {of} have changed places"
            fix = "return each gradient in its own place"
        else:
            fault, places, summary = f"twice/{of}", {here: of}, f"{of} stands in the place of {here} too"
            fix = f"return {here} in its own place"
        yield Hypothesis(fault, "H1", summary, fix=fix, wrong=tuple(places), finish=partial(_placed, places))


def _placed(places: Mapping[str, str], values: Results) -> Results:
    return {here: values[of] for here, of in places.items()} if {*places.values()} <= values.keys() else {}
