"""What the budget allows at least is never more than what it allows, whatever the problem and the arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given

from gradprobe.inputs.draw import draw
from gradprobe.numerics import least
from gradprobe.numerics.block import blocks
from gradprobe.numerics.budget import Whole, tile_budget
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.large_run import KEPT
from gradprobe.numerics.totals import TOTALS, Totals
from gradprobe.reference import Tile, evaluate
from gradprobe.reference.attention import BY_KEY, MATRICES, add_tile
from gradprobe.runtime.trace import expected_shapes
from tests.emulated import case_of
from tests.numerics.rounded import agree, let_through_alike, rounded
from tests.sampling import DRAWS, tries

ROUNDED = 1 + 1e-12
PRECISIONS = [
    ("float32", "ieee"), ("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee"),
]  # fmt: skip
OF_SOFTMAX = (
    {}, {"causal": True}, {"window": (5, 0)}, {"window": (9, 4)}, {"causal": True, "window": (7, -1)}, {"softcap": 1.5},
    {"alibi": True}, {"sinks": True}, {"dropout": 0.3}, {"mask": "random"}, {"mask": "dead-rows"}, {"kv_heads": 1},
    {"causal": True, "align": "top-left"}, {"bias": True}, {"bias": True, "bias_axes": "m"},
    {"bias": True, "bias_axes": "bhmn", "softcap": 1.5}, {"bias": True, "bias_axes": "n", "causal": True},
    {"bias": True, "sinks": True, "bias_axes": "bhm"},
)  # fmt: skip
OF_LAZY = ({"bias": True}, {"bias": True, "bias_window": 7}, {"bias": False})
TAUS = ((-1.0, -0.5), (-1.0, -1.0), (0.0, 2.0), (-1e-3, -1.0))
PACKED = (
    {"cu_seqlens": (0, 7, 7, 30)}, {"cu_seqlens": (0, 7, 7, 30), "cu_seqlens_k": (0, 3, 21, 25)},
)  # fmt: skip
PATTERNS = ("normal", "small", "large", "negative", "offset", "lowrank")


def options_of(random, family):
    """Options, and lengths."""
    if family == "lazy":
        length = random.randint(1, 40)
        padded = {"seqlens": (random.randint(0, length),)} if random.random() < 0.3 else {}
        return random.choice(OF_LAZY) | {"tau": random.choice(TAUS)} | padded | {"seqlen": length}
    options = {"kv_heads": 2, **random.choice(OF_SOFTMAX), **random.choice(OF_SOFTMAX)}
    if random.random() < 0.2:
        return options | random.choice(PACKED)
    return options | {"seqlen_q": random.randint(1, 40), "seqlen_k": random.randint(1, 40)}


def problem_of(random):
    """A problem of one batch, its precision, and a tile of it with the keys that it sees."""
    (dtype, dots), family = random.choice(PRECISIONS), random.choice(["softmax", "lazy"])
    case = case_of(
        family, batch=1, heads=2, head_dim=random.choice([4, 16]), dtype=dtype, seed=random.randint(0, 1 << 20),
        pattern=random.choice(PATTERNS), **options_of(random, family),
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


def least_of(x, tile, precision):
    values = evaluate(x, tile)
    return least.Least(x, tile, values, precision, least.least_kink(x, tile, values, precision))


@tries(push=100)
@given(random=DRAWS)
def test_no_term_is_kinder_than_the_whole_budget(random):
    _, x, tile, precision = problem_of(random)
    every = replace(tile, keys=slice(None))
    allowed = tile_budget(x, every, evaluate(x, every), precision)
    of_tile = least_of(x, tile, precision)
    for name in ("LSE", "O", "delta", "dQ"):
        assert bool((of_tile.of_row(name) <= allowed.rows[name] * ROUNDED).all()), name
    for name in MATRICES:
        expected, whole = of_tile.values[name], allowed.rows[name][..., tile.keys]
        # That of the target's own dtype, which is added to the whole budget.
        for rounding in (0.0, 2.0**-9):
            own = of_tile.of_matrix(name, expected, rounding).double() * KEPT
            assert bool((own <= (whole + rounding * expected.abs()) * ROUNDED).all()), name
    if of_tile.kink is not None:
        assert bool(allowed.undecided[..., tile.keys][of_tile.kink.at].all())


@tries(push=50)
@given(random=DRAWS)
def test_nor_is_what_sums_over_rows_are_allowed(random):
    case, x, tile, precision = problem_of(random)
    shapes = expected_shapes(case)
    summed = {name: shapes[name] for name in (*BY_KEY, *TOTALS) if name in shapes}
    whole, totals, block = Whole(x, summed), Totals(case, summed, like=x.q), next(blocks(case, 2))
    sums = least.LeastSums(x, BY_KEY, precision)
    errors = {name: torch.zeros_like(one) for name, one in totals.expected.items()}
    for first in range(0, case.seqlen_q, 16):
        rows = Tile(0, tile.heads, slice(first, min(first + 16, case.seqlen_q)))
        values, seen = evaluate(x, rows), replace(rows, keys=x.seen_keys(rows))
        whole.add(rows, values, tile_budget(x, rows, values, precision))
        of_tile = least_of(x, seen, precision)
        assume(let_through_alike(values, of_tile.values, seen))
        of_tile.add_sums(sums)
        totals.add(block, of_tile)
        add_tile(x, errors, rows, rounded(x, rows, values))
    for name, expected in whole.values.items():
        allowed = whole.bound(name, expected, precision)
        of_sums = sums.bound(name, expected) if name in BY_KEY else totals.bound(name, precision)
        assert bool((of_sums <= allowed * ROUNDED).all()), name
        assert name not in TOTALS or agree(totals.expected[name], expected, errors[name]), name


@tries(push=60)
@given(random=DRAWS)
def test_a_tile_of_the_keys_that_are_seen_has_the_values_of_a_tile_of_all(random):
    _, x, tile, _ = problem_of(random)
    every = replace(tile, keys=slice(None))
    of_all, of_seen = evaluate(x, every), evaluate(x, tile)
    assume(let_through_alike(of_all, of_seen, tile))
    hidden = torch.ones(x.n_key, dtype=torch.bool)
    hidden[tile.keys] = False
    errors = rounded(x, every, of_all)
    for name in ("LSE", "O", "delta", "dQ", "P", "dS", "dP"):
        is_matrix, both = name in MATRICES, (of_all, errors)
        one, error = (of[name][..., tile.keys] if is_matrix else of[name] for of in both)
        assert agree(of_seen[name], one, error), name
        assert not is_matrix or not of_all[name][..., hidden].any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18])
def test_a_product_of_float32_is_a_lower_bound(scale):
    generator = torch.Generator().manual_seed(0)
    a, b = scale * torch.rand(2, 2, 50, 50, dtype=torch.double, generator=generator)
    product = least.at_least(least.sizes(a, 2), least.sizes(b, 2))
    assert bool((product <= a**2 @ b**2).all())
    assert scale != 1.0 or bool((product >= 0.999 * (a**2 @ b**2)).all())
