"""The constants that a factor too many or too few may be."""

from __future__ import annotations

import math

from ..model.case import Case


def constants(case: Case) -> dict[str, float]:
    """What backwards are off by, each value once, by name."""
    scale, group = case.scale, case.heads // case.kv_heads
    found = {
        "2": 2.0, "1/2": 0.5, "-1": -1.0, "ln 2": math.log(2), "log2 e": 1 / math.log(2),
        "scale": scale, "1/scale": 1 / scale if scale else 1.0, "sqrt(D)": math.sqrt(case.head_dim),
        "1/sqrt(D)": 1 / math.sqrt(case.head_dim), "D": float(case.head_dim), "1/D": 1 / case.head_dim,
        "the group's size": float(group), "1 over the group's size": 1 / group, "scale^2": scale**2,
    }  # fmt: skip
    if case.dropout:
        found |= {"1 - p": 1 - case.dropout, "1 / (1 - p)": 1 / (1 - case.dropout)}
    kept: dict[str, float] = {}
    for words, factor in found.items():
        if factor != 1.0 and all(abs(factor - one) > 1e-9 * abs(one) for one in kept.values()):
            kept[words] = factor
    return kept
