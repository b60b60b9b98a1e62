"""ACC: sums over the heads of a group, or over programs, that add something twice or keep one of their terms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller

import torch
from torch import Tensor

from ..numerics.totals import TOTALS
from ..reference.attention import BY_HEAD
from .hypothesis import Hypothesis, Observed, making
from .variant import TileScope


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Sums over the heads of a group; and sums over a head as one program alone would leave them: not added."""
    yield from _of_groups(seen)
    case = seen.case
    for name in BY_HEAD:
        for size in dict.fromkeys((case.block_m, 16, 32, 64, 128)) if name in seen.own else ():
            last = (case.seqlen_q - 1) // size
            for batch, tile in dict.fromkeys(((case.batch - 1, last), (case.batch - 1, 0), (0, last), (0, 0))):
                share = f"of batch {batch}, rows {tile * size} to {tile * size + size - 1}"
                summary = f"{name} holds the share {share} alone: it is stored, where it is to be added"
                alone = partial(_of_one_program, name, batch, tile * size, size)
                yield making(f"accumulation/{name}", "ACC", summary, {name: alone}, fix="tl.atomic_add")


def _of_one_program(name: str, batch: int, first: int, size: int, value: Tensor, scope: TileScope) -> Tensor:
    i, _ = scope.x.positions(scope.tile)
    own = ((i >= first) & (i < first + size)).double() * (scope.tile.batch == batch)
    p, dp, delta = (scope.used[each] for each in ("P", "dP", "delta"))
    given = {"dT": own * p * (dp - delta[..., None]), "dP": own * dp, "delta": own[:, 0] * delta}
    return TOTALS[name].summed(scope.x, scope.tile, scope.used, given[TOTALS[name].of])


def _of_groups(seen: Observed) -> Iterator[Hypothesis]:
    """One member of a group kept, or one added in every member's place."""
    case, group = seen.case, seen.case.heads // seen.case.kv_heads
    for member in range(group) if group > 1 else ():
        share = torch.zeros(case.kv_heads, case.heads, dtype=torch.float64, device=seen.x.q.device)
        for head in range(case.kv_heads):
            share[head, head * group + member] = 1.0
        ways = {
            f"of each group only query head {member} is added to dK and dV": share,
            f"query head {member} of each group is added in every member's place": share * group,
        }
        for summary, shared in ways.items():
            alter, fix = methodcaller("sharing", shared), "add every query head of the group once"
            yield Hypothesis("accumulation/dK", "ACC", summary, alter, frozenset({"dK", "dV"}), fix=fix)
