"""What the budget allows at least is never more than what it allows, whatever the problem and the arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from gradprobe.inputs.draw import draw
from gradprobe.numerics import least
from gradprobe.numerics.budget import Whole, tile_budget
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.precision import precision_of
from gradprobe.reference import Tile, evaluate
from gradprobe.reference.attention import BY_KEY, MATRICES
from gradprobe.runtime.trace import expected_shapes
from tests.emulated import case_of
from tests.sampling import DRAWS, tries

ROUNDED = 1 + 1e-12
PRECISIONS = [
    ("float32", "ieee"),
    ("float32", "tf32"),
    ("float32", "tf32x3"),
    ("float16", "ieee"),
    ("bfloat16", "ieee"),
]
OPTIONS = (
    {}, {"causal": True}, {"window": (5, 0)}, {"window": (9, 4)}, {"causal": True, "window": (7, -1)}, {"softcap": 1.5},
    {"alibi": True}, {"sinks": True}, {"dropout": 0.3}, {"mask": "random"}, {"mask": "dead-rows"}, {"kv_heads": 1},
    {"causal": True, "align": "top-left"}, {"bias": True},
)  # fmt: skip
PATTERNS = ("normal", "small", "large", "negative", "offset", "lowrank")


def problem_of(random):
    """A problem of one batch, its precision, and a tile of it with the keys that it sees."""
    dtype, dots = random.choice(PRECISIONS)
    options = {**random.choice(OPTIONS), **random.choice(OPTIONS)}
    lengths = {"seqlen_q": random.randint(1, 40), "seqlen_k": random.randint(1, 40)}
    case = case_of(
        "softmax", batch=1, heads=2, head_dim=random.choice([4, 16]), dtype=dtype, seed=random.randint(0, 1 << 20),
        pattern=random.choice(PATTERNS), **lengths, **{"kv_heads": 2, **options},
    )  # fmt: skip
    values = draw(case)
    for name in ("q", "k", "v", "do"):
        values[name] = values[name] * 10.0 ** random.choice([-12, -4, 0, 0, 0, 2])
        if random.random() < 0.2:
            values[name][..., random.randrange(values[name].shape[2]), :] = 0.0
    x = attention_of(case, values)
    first = random.randrange(case.seqlen_q)
    tile = Tile(0, slice(0, 2), slice(first, random.randint(first + 1, case.seqlen_q)))
    return case, x, replace(tile, keys=x.seen_keys(tile)), precision_of(dtype, dots)


@tries(push=150)
@given(random=DRAWS)
def test_no_term_is_kinder_than_the_whole_budget(random):
    _, x, tile, precision = problem_of(random)
    every, values = replace(tile, keys=slice(None)), evaluate(x, tile)
    allowed = tile_budget(x, every, evaluate(x, every), precision)
    of_tile = least.Least(x, tile, values, precision)
    for name in ("LSE", "O", "delta", "dQ"):
        assert bool((of_tile.of_row(name) <= allowed.rows[name] * ROUNDED).all()), name
    for name in MATRICES:
        assert bool((of_tile.of_matrix(name) <= allowed.rows[name][..., tile.keys] * ROUNDED).all()), name


@tries(push=60)
@given(random=DRAWS)
def test_nor_is_what_sums_over_rows_are_allowed(random):
    case, x, tile, precision = problem_of(random)
    whole = Whole(x, {name: expected_shapes(case)[name] for name in BY_KEY})
    sums = least.LeastSums(x, BY_KEY, precision)
    for first in range(0, case.seqlen_q, 16):
        rows = Tile(0, tile.heads, slice(first, min(first + 16, case.seqlen_q)))
        values = evaluate(x, rows)
        whole.add(rows, values, tile_budget(x, rows, values, precision))
        seen = replace(rows, keys=x.seen_keys(rows))
        least.Least(x, seen, evaluate(x, seen), precision).add_sums(sums)
    for name in BY_KEY:
        allowed = whole.bound(name, whole.values[name], precision)
        assert bool((sums.bound(name, whole.values[name]) <= allowed * ROUNDED).all()), name


@tries(push=100)
@given(random=DRAWS)
def test_a_tile_of_the_keys_that_are_seen_has_the_values_of_a_tile_of_all(random):
    _, x, tile, _ = problem_of(random)
    of_all, of_seen = evaluate(x, replace(tile, keys=slice(None))), evaluate(x, tile)
    hidden = torch.ones(x.n_key, dtype=torch.bool)
    hidden[tile.keys] = False
    for name in ("LSE", "O", "delta", "dQ", "P", "dS", "dP"):
        of_tile = of_all[name][..., tile.keys] if name in MATRICES else of_all[name]
        torch.testing.assert_close(
            of_seen[name], of_tile, rtol=1e-9, atol=1e-12 * float(of_tile.abs().nan_to_num().max())
        )
        assert name not in MATRICES or not of_all[name][..., hidden].any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18])
def test_a_product_of_float32_is_a_lower_bound(scale):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(2, 50, 50, dtype=torch.double, generator=generator) * scale for _ in range(2))
    product = least.at_least(least.sizes(a, 2), least.sizes(b, 2))
    assert bool((product <= a**2 @ b**2).all())
    assert scale != 1.0 or bool((product >= 0.999 * (a**2 @ b**2)).all())
