"""H1, ACC: results that come in one another's place, not at all, or as one share of a sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from ..model.intermediates import GRADIENT_OF
from ..model.number import listed
from ..reference.attention import BY_HEAD
from .hypothesis import Hypothesis, Observed


def zeros(seen: Observed) -> Iterator[Hypothesis]:
    """Gradients that are 0 throughout, together where there are several: one kernel may have left them."""
    found = [name for name in GRADIENT_OF.values() if name in seen.own and not bool(seen.actual[name].any())]
    if found:
        are, there = (" are", "in them") if len(found) > 1 else (" is", "there")
        summary = f"{listed(found)}{are} 0 throughout: nothing was stored {there}, or None was returned"
        made = {name: f"{name} * 0" for name in found}
        yield Hypothesis(f"zero/{found[0]}", "H1", summary, made, is_plain=True)


def shares(seen: Observed) -> Iterator[Hypothesis]:
    """Sums over the heads of a group that keep one of their terms; over programs, what the last one adds."""
    case, group = seen.case, seen.case.heads // seen.case.kv_heads
    heads = torch.arange(case.heads, device=seen.x.q.device)
    for member in range(group) if group > 1 else ():
        share = (heads == heads[: case.kv_heads, None] * group + member).double()
        summary = f"of each group only query head {member} is added to dK and dV"
        fix = "add every query head of the group once"
        yield Hypothesis("accumulation/dK", "M2", summary, fix=fix, wrong=("dK", "dV"), share=share)
    for name in set(BY_HEAD).intersection(seen.own):
        for size in dict.fromkeys((case.block_m, 16, 32, 64, 128)):
            first = (case.seqlen_q - 1) // size * size
            share_of = f"of batch {case.batch - 1}, rows {first} to {first + size - 1}"
            summary = f"{name} holds the share {share_of} alone: it is stored, where it is to be added"
            made = {name: f"of_one_program('{name}', {case.batch - 1}, {first}, {size})"}
            yield Hypothesis(f"accumulation/{name}", "ACC", summary, made, "tl.atomic_add")


def exchanged(seen: Observed) -> Iterator[Hypothesis]:
    """One gradient in another's place, too or instead."""
    for pair in combinations([name for name in ("dQ", "dK", "dV") if name in seen.actual], 2):
        if seen.actual[pair[0]].shape != seen.actual[pair[1]].shape:
            continue
        # Only the one that is wrong stands where the other belongs.
        here, of = sorted(pair, key=seen.wrong, reverse=True) if not all(map(seen.wrong, pair)) else pair
        places = {here: of}
        row = f"twice/{of}", "H1", f"{of} stands in the place of {here} too"
        if seen.wrong(of):
            places[of] = here
            row = f"swap/{here}-{of}", "H1", f"{here} and {of} have changed places"
        fix = "return each gradient in its own place"
        yield Hypothesis(*row, fix=fix, wrong=tuple(places), finish=partial(_placed, places))


def _placed(places: Mapping[str, str], values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {here: values[of] for here, of in places.items()} if {*places.values()} <= values.keys() else {}
