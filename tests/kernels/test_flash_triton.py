"""The softmax kernels of kernels/triton against float64 autograd, with every option, at awkward sizes."""

from itertools import product

import pytest
import torch

from gradprobe.frontends.triton import interpreter, interpreting
from tests.kernels.flash_errors import allowed
from tests.reference.independent import by_autograd
from tests.sampling import sampled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
TILES = ("block_m", "block_n")
if interpreting():
    interpreter.mend_interpreter()
    interpreter.make_bfloat16_right()


def draw(*shape, seed=0):
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def problem(
    m=33, n=None, *, batch=1, heads=1, kv_heads=None, d=8, dv=None, dtype="float32", q_times=1.0
):
    """q, k, v, do."""
    n, kv_heads, dv = n or m, kv_heads or heads, dv or d
    shapes = {
        "q": (heads, m, d),
        "k": (kv_heads, n, d),
        "v": (kv_heads, n, dv),
        "do": (heads, m, dv),
    }
    values = {
        name: draw(batch, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())
    }
    values["q"] *= q_times
    return {name: value.to(DTYPES[dtype]) for name, value in values.items()}


def assert_right(tensors, **options):
    """Every element as near to float64 autograd as rounding allows, and exactly 0 where nothing is seen."""
    from gradprobe.kernels.triton.flash import flash_intermediates

    there = {
        name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x
        for name, x in (tensors | options).items()
    }
    actual = {
        name: value.cpu()
        for name, value in flash_intermediates(**{"block_m": 16, "block_n": 16} | there).items()
    }
    given = {"scale": tensors["q"].shape[3] ** -0.5} | tensors | options
    expected = by_autograd(**{name: widened(x) for name, x in given.items() if name not in TILES})
    expected.pop("dAlibi", None)  # to this kernel slopes are constants
    assert actual.keys() == expected.keys()
    dtype = tensors["q"].dtype
    errors = allowed(given, expected)
    for name, value in actual.items():
        assert value.dtype == (dtype if name in ("O", "dQ", "dK", "dV") else torch.float32), name
        assert value.shape == expected[name].shape, name
        wrong = (value.double() != expected[name]) & ~(
            (value.double() - expected[name]).abs() <= errors[name]
        )
        assert not wrong.any(), (
            f"{name}: {int(wrong.sum())} wrong, first at {wrong.nonzero()[0].tolist()}"
        )
    hidden = expected["P"] == 0
    assert all(actual[name][hidden].eq(0).all() for name in ("P", "dP", "dS"))
    return actual


def widened(value):
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


ALIGNS = ("bottom-right", "top-left")
LENGTHS = [(1, 1), (1, 17), (17, 1), (15, 15), (17, 33), (33, 17), (50, 72), (72, 50)]


@sampled(
    "size, dtype",
    product([(1, 8, 8), (15, 1, 80), (17, 24, 24), (33, 80, 1), (72, 24, 16)], DTYPES),
    push=4,
)
def test_every_intermediate_is_right_in_every_dtype_at_awkward_lengths_and_dims(size, dtype):
    m, d, dv = size
    assert_right(problem(m, d=d, dv=dv, dtype=dtype), causal=True)


@sampled(
    "lengths, align",
    product(LENGTHS, ALIGNS),
    push=[(each, ALIGNS[at % 2]) for at, each in enumerate(LENGTHS)],
)
def test_causal_rows_of_another_number_than_keys_are_aligned_to_either_corner(lengths, align):
    assert_right(problem(*lengths), causal=True, align=align, block_n=32)


@pytest.mark.parametrize(("m", "n"), [(1, 17), (17, 1), (50, 72), (72, 50)])
def test_every_row_sees_every_key_without_a_mask(m, n):
    assert_right(problem(m, n), block_m=32)


@sampled(
    "window, lengths, align, tile",
    product(
        [(5, 0), (0, 3), (40, 7)],
        [(72, 72), (50, 72), (72, 50)],
        ["bottom-right", "top-left"],
        [(16, 16), (16, 64), (64, 16)],
    ),
    push=5,
)
def test_a_window_in_tiles_of_any_two_sizes_misses_no_key_that_is_seen(
    window, lengths, align, tile
):
    assert_right(
        problem(*lengths, heads=1),
        window=window,
        align=align,
        **dict(zip(TILES, tile, strict=True)),
    )


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (16, 32), (32, 16)])
def test_a_window_that_reaches_1_key_into_the_tile_on_either_side_misses_no_key(block_m, block_n):
    assert_right(problem(72, heads=1), window=(1, 1), block_m=block_m, block_n=block_n)


@sampled("window", [(-1, -1), (-1, 3), (3, -1), (0, 0), (100, 100)], push=3)
def test_minus_1_is_no_limit_and_causal_takes_off_what_a_window_leaves_on_the_right(window):
    assert_right(problem(33, 40), window=window)
    both = assert_right(problem(33, 40), window=window, causal=True)
    assert both["P"].triu(8).eq(0).all()


@sampled("heads, kv_heads", [(6, 2), (3, 1), (4, 4)], push=[(6, 2)])
def test_query_heads_share_key_heads_in_groups_of_3_3_and_1(heads, kv_heads):
    assert_right(
        problem(17, 18, batch=2, heads=heads, kv_heads=kv_heads),
        softcap=3.0,
        alibi=draw(heads).abs(),
    )


@sampled("softcap, dtype", product([0.5, 3.0, 50.0], DTYPES), push=3)
def test_scores_capped_hard_softly_and_hardly(softcap, dtype):
    assert_right(
        problem(33, q_times=4.0, dtype=dtype),
        softcap=softcap,
        bias=draw(33, 33, seed=9),
        causal=True,
    )


BIAS_SHAPES = [
    (),
    (18,),
    (17, 1),
    (4, 1, 1),
    (4, 17, 18),
    (1, 1, 1, 1),
    (2, 1, 1, 18),
    (1, 4, 17, 1),
    (2, 4, 17, 18),
]


@sampled("shape", BIAS_SHAPES, push=[(), (4, 1, 1), (2, 1, 1, 18), (1, 4, 17, 1)])
def test_a_bias_broadcasts_to_2_4_17_18_and_its_gradient_is_summed_back(shape):
    actual = assert_right(
        problem(17, 18, batch=2, heads=4, kv_heads=2),
        bias=draw(*shape, seed=9),
        causal=True,
        softcap=2.0,
    )
    assert actual["dBias"].shape == shape


def test_a_bias_of_minus_infinity_hides_its_keys_and_row_2_altogether():
    from gradprobe.kernels.triton.flash import flash_intermediates

    inputs, bias = (
        {name: value.to(DEVICE) for name, value in problem(17).items()},
        draw(17, 17).to(DEVICE),
    )
    bias[:, 3] = bias[2] = -torch.inf
    actual = flash_intermediates(**inputs, bias=bias, block_m=16, block_n=16)
    assert actual["P"][..., 3].eq(0).all()
    assert actual["LSE"][:, :, 2].eq(-torch.inf).all()
    assert all(actual[name][:, :, 2].eq(0).all() for name in ("P", "dS", "O", "dQ"))
    assert all(value.isfinite().all() for name, value in actual.items() if name != "LSE")


@sampled("align, lengths", product(ALIGNS, [(33, 33), (17, 50), (50, 17)]), push=2)
def test_alibi_counts_from_the_diagonal_of_either_corner_to_both_sides(align, lengths):
    assert_right(problem(*lengths, heads=3), alibi=torch.tensor([0.5, 0.0625, -0.1]), align=align)


MASK_SHAPES = [
    (18,),
    (17, 1),
    (4, 1, 18),
    (1, 1, 17, 18),
    (2, 1, 1, 18),
    (1, 4, 17, 1),
    (2, 4, 17, 18),
]


@sampled("shape", MASK_SHAPES, push=[(17, 1), (4, 1, 18), (2, 1, 1, 18)])
def test_a_mask_broadcasts_to_2_4_17_18_and_leaves_rows_dead(shape):
    actual = assert_right(
        problem(17, 18, batch=2, heads=4, kv_heads=2),
        mask=draw(*shape, seed=9) > 0.5,
        window=(-1, 0),
    )
    dead = actual["LSE"] == -torch.inf
    assert all(actual[name][dead].eq(0).all() for name in ("O", "P", "dP", "delta", "dS", "dQ"))


def test_a_mask_that_hides_everything_leaves_every_result_0():
    actual = assert_right(problem(17), mask=torch.zeros(17, 17, dtype=torch.bool))
    assert all(value.eq(-torch.inf if name == "LSE" else 0).all() for name, value in actual.items())


@sampled("dtype", DTYPES, push=1)
def test_a_sink_is_counted_once_and_is_the_lse_of_a_row_without_a_key(dtype):
    sinks = torch.tensor([1.5, -120.0, 20.0])
    mask = torch.ones(33, 1, dtype=torch.bool)
    mask[[0, 20]] = False
    actual = assert_right(problem(33, 17, batch=2, heads=3, dtype=dtype), sinks=sinks, mask=mask)
    assert actual["LSE"][:, :, [0, 20]].eq(sinks[:, None]).all()


def test_a_sink_of_minus_infinity_is_none():
    from gradprobe.kernels.triton.flash import flash_intermediates

    inputs = {name: value.to(DEVICE) for name, value in problem(17, 9).items()}
    actual = flash_intermediates(
        **inputs, sinks=torch.full((1,), -torch.inf).to(DEVICE), causal=True
    )
    assert actual.pop("dSink").eq(0).all()
    expected = flash_intermediates(**inputs, causal=True)
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


@sampled(
    "lengths, dtype", product([(0, 1, 33), (33, 33, 33), (16, 17, 32), (0, 0, 0)], DTYPES), push=3
)
def test_right_padding_to_0_1_and_full_length_leaves_zeros_beyond(lengths, dtype):
    inputs = problem(33, batch=3, dtype=dtype)
    for b, length in enumerate(lengths):  # what the padding holds is nobody's business
        for value in inputs.values():
            value[b, :, length:] = 7.0
    actual = assert_right(inputs, seqlens=torch.tensor(lengths, dtype=torch.int32), causal=True)
    for b, length in enumerate(lengths):
        assert all(
            actual[name][b, :, length:].eq(0).all() for name in ("O", "delta", "dQ", "dK", "dV")
        )
        assert actual["LSE"][b, :, length:].eq(-torch.inf).all()


@sampled(
    "ends, align",
    product(
        [
            ((0, 17, 17, 33), (0, 1, 20, 50)),
            ((0, 0, 32, 33), (0, 16, 16, 50)),
            ((0, 33), (0, 50)),
            ((0, 20, 33, 33), (0, 9, 50, 50)),
        ],
        ["bottom-right", "top-left"],
    ),
    push=3,
)
def test_packed_sequences_of_0_1_and_more_rows_and_keys_do_not_see_each_other(ends, align):
    ends_q, ends_k = ends
    assert_right(
        problem(33, 50, heads=4, kv_heads=2), causal=True, align=align, window=(9, -1), alibi=draw(4).abs(),
        bias=draw(4, 33, 50, seed=9), mask=draw(33, 50, seed=8) > -1, sinks=draw(4, seed=7),
        cu_seqlens_q=torch.tensor(ends_q, dtype=torch.int32), cu_seqlens_k=torch.tensor(ends_k, dtype=torch.int32),
    )  # fmt: skip


def test_everything_at_once_with_padding():
    assert_right(
        problem(35, batch=2, heads=4, kv_heads=2, d=24, dv=5), causal=True, window=(20, 7), softcap=2.0, scale=0.7,
        alibi=draw(4).abs(), bias=draw(4, 1, 35, seed=9), mask=draw(2, 1, 35, 35, seed=8) > -1, sinks=draw(4, seed=7),
        seqlens=torch.tensor([35, 20]), block_n=32,
    )  # fmt: skip


@pytest.mark.parametrize("times", [4.0, 16.0, -0.5])
def test_scores_of_some_and_of_dozens(times):
    assert_right(problem(33, q_times=times), scale=1.0, causal=True)


def test_rows_whose_scores_all_lie_at_minus_120_keep_their_softmax():
    inputs = problem(33, d=8)
    inputs["q"][..., 0], inputs["k"][..., 0] = 12.0, -10.0
    actual = assert_right(inputs, scale=1.0)
    assert actual["LSE"].max() < -100


def test_a_scale_of_0_and_a_negative_one_are_scales():
    assert_right(problem(17), scale=0.0)
    assert_right(problem(17), scale=-0.5)
