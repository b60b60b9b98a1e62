"""Which rows and keys of a long case its one-hot problems show."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from torch import Tensor

from ...model.case import Case
from ...reference import Tile
from ..block import block_at
from ..compare import attention_of
from ..evidence import Measured
from .onehot import ProbePlan, Sample, plan

# Probes of one look: the fewest that show so many rows, and no more.
MOST_PROBES = 4
_ROWS, _ROWS_WHERE_WRONG = 16, 32
# Elements of each recovered matrix, all of which are held; and the rows that are shown whatever they take.
MOST_ELEMENTS = 1 << 25
_LEAST_ROWS = 4


def sampled(case: Case, values: Mapping[str, Tensor], own: Measured) -> Sample:
    """Rows of the first, a middle, the last full and the partial tile, and drawn ones; keys also along their diagonal.

    Up to half of them lie where the gradients are wrong.

    Args:
        values: its inputs.
        own: the ordinary run.
    """
    everything = plan(case)
    assert everything is not None
    n_rows, n_keys = _counts(case, everything, _ROWS if own.comparison.matches else _ROWS_WHERE_WRONG)
    draws = random.Random(case.seed)
    of_rows = _landmarks(case.seqlen_q, case.block_m, case.cu_seqlens_q or case.seqlens or ())
    rows = _chosen(draws, case.seqlen_q, n_rows, _wrong(own, "dQ"), of_rows)
    block = block_at(0, 0, case.heads // case.kv_heads)  # the diagonal is the same in all heads
    x = attention_of(block.case(case), block.inputs(case, values))
    every = x.diagonal(Tile(0, slice(0, 1), slice(0, case.seqlen_q))).flatten()
    diagonal = [key for key in every[list(rows)].tolist() if 0 <= key < case.seqlen_k]
    of_keys = _landmarks(case.seqlen_k, case.block_n, case.cu_seqlens_k or ())
    draws.shuffle(diagonal)
    keys = _chosen(
        draws, case.seqlen_k, n_keys, _wrong(own, "dK", "dV"), of_keys[: n_keys // 4], diagonal[: n_keys // 2]
    )
    return Sample(rows, keys)


def _counts(case: Case, everything: ProbePlan, wanted: int) -> tuple[int, int]:
    """How many rows and keys the fewest probes show that show as many rows as are wanted."""
    group, of_keys = case.heads // case.kv_heads, max(1, len(everything.free) // 4)
    # Each row takes a dim of q for dS, and one of dO for P, in each head of its group.
    of_rows = min(len(everything.free) - of_keys, len(everything.free_v))
    probes = next((n for n in range(1, MOST_PROBES) if n * of_rows >= wanted * group), MOST_PROBES)
    held = max(_LEAST_ROWS, MOST_ELEMENTS // (case.batch * case.heads * case.seqlen_k))
    rows = max(1, min(probes * of_rows // group, case.seqlen_q, held))
    return rows, min(probes * of_keys, case.seqlen_k)


def _landmarks(length: int, block: int, ends: Iterable[int]) -> list[int]:
    """Both ends of the first tile, of the middle, of the last full tile and of the partial one; and of sequences."""
    last = (length - 1) // block * block
    found = (0, length - 1, last, block - 1, block, last - 1, length // 2, *sorted({*ends})[:2], *sorted({*ends})[-2:])
    return [at for at in dict.fromkeys(found) if 0 <= at < length]


def _wrong(own: Measured, *names: str) -> list[int]:
    """The rows or keys of gradients that are wrong in any head."""
    found = [own.comparison.findings[name].wrong_rows for name in names if name in own.comparison.findings]
    return sorted({at for wrong in found for at in wrong.any(0).any(0).nonzero().flatten().tolist()})


def _chosen(draws: random.Random, length: int, count: int, wrong: list[int], *known: Iterable[int]) -> tuple[int, ...]:
    """So many places, ascending: up to half where something is wrong, those that are known, and drawn ones.

    These are one from each of as many equal parts, so that a tile of few rows in a long case is not missed by chance.
    """
    first = [*wrong[:1], *wrong[-1:], *draws.sample(wrong, min(count // 2, len(wrong)))][: count // 2]
    found = dict.fromkeys([*first, *(at for some in known for at in some)])
    while len(found) < count:
        parts = count - len(found)
        found |= dict.fromkeys(
            draws.randrange(length * n // parts, max(length * (n + 1) // parts, length * n // parts + 1))
            for n in range(parts)
        )
    return tuple(sorted(list(found)[:count]))
