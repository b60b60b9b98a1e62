"""Visibility against the rules taken word by word, one row and key at a time."""

import itertools

import pytest
import torch

from gradprobe.targets.adapters.sdpa import Visibility

CPU = torch.device("cpu")


def expected(view, batch, i, j):
    """Whether row i sees key j, and the distance of j before the diagonal; None for a distance between sequences."""
    rows, keys, row, key = view.rows, view.keys, i, j
    sequence = 0
    if view.cu_seqlens_q is not None:
        of = {}
        for index, ends in ((i, view.cu_seqlens_q), (j, view.cu_seqlens_k)):
            pairs = list(itertools.pairwise(ends.tolist()))
            of[id(ends)] = next(s for s, (start, end) in enumerate(pairs) if start <= index < end)
        sequence = of[id(view.cu_seqlens_q)]
        if of[id(view.cu_seqlens_k)] != sequence:
            return False, None
        starts = view.cu_seqlens_q.tolist(), view.cu_seqlens_k.tolist()
        rows, keys = (start[sequence + 1] - start[sequence] for start in starts)
        row, key = i - starts[0][sequence], j - starts[1][sequence]
    diagonal = row + keys - rows if view.align == "bottom-right" else row
    left, right = view.window or (-1, -1)
    sees = not view.causal or key <= diagonal
    sees &= left < 0 or diagonal - left <= key
    sees &= right < 0 or key <= diagonal + right
    sees &= view.mask is None or bool(
        view.mask.expand(2, 1, view.rows, view.keys)[batch, 0, i, j]
    )
    sees &= view.seqlens is None or max(i, j) < int(view.seqlens[batch])
    return sees, diagonal - key


PACKED = {"cu_seqlens_q": torch.tensor([0, 4, 4, 9]), "cu_seqlens_k": torch.tensor([0, 0, 5, 12])}
RULES = [
    {}, {"causal": True}, {"window": (2, 1)}, {"window": (-1, 0)}, {"window": (3, -1), "causal": True},
    {"mask": torch.rand(2, 1, 1, 12, generator=torch.Generator().manual_seed(1)) < 0.6},
    {"seqlens": torch.tensor([5, 0])}, PACKED, {**PACKED, "causal": True, "window": (2, -1)},
]  # fmt: skip


@pytest.mark.parametrize("align", ["bottom-right", "top-left"])
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules) or "nothing")
def test_rows_see_the_keys_that_the_rules_say(rules, align):
    view = Visibility(9, 12, CPU, align=align, **rules)
    seen = view.visible()
    seen = torch.ones(1, dtype=torch.bool) if seen is None else seen
    assert (view.visible() is None) == (not rules)
    seen, distance = seen.expand(2, 1, 9, 12), view.distance()
    for batch, i, j in itertools.product(range(2), range(9), range(12)):
        sees, before = expected(view, batch, i, j)
        assert bool(seen[batch, 0, i, j]) == sees, (batch, i, j)
        assert before is None or int(distance[i, j]) == before, (i, j)
