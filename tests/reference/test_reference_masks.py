"""Which keys each row sees, drawn out: a line is a row, # a key that it sees."""

import pytest
import torch

from gradprobe.reference import Attention, Tile, evaluate, manual_attention_backward
from tests.reference.independent import lazy_inputs, softmax_inputs


def seen(
    m: int, n: int, *, causal: bool = False, rows: slice | None = None, **options
) -> list[str]:
    q, k = (torch.zeros(1, 1, size, 1, dtype=torch.float64) for size in (m, n))
    x = Attention("softmax", q, k, k, q, 1.0, causal, **options)
    values = evaluate(x, Tile(0, slice(0, 1), rows or slice(0, m)))
    assert torch.equal(values["valid"], values["S"] > -torch.inf)
    assert torch.equal(values["valid"], values["P"] > 0)
    return ["".join(".#"[bit] for bit in row) for row in values["valid"][0].int().tolist()]


def test_3_causal_rows_of_5_keys_are_aligned_to_the_bottom_right():
    assert seen(3, 5, causal=True) == ["###..", "####.", "#####"]


def test_5_causal_rows_of_3_keys_begin_with_2_dead_rows():
    assert seen(5, 3, causal=True) == ["...", "...", "#..", "##.", "###"]


@pytest.mark.parametrize(
    ("window", "rows"),
    [
        ((1, 0), ["#...", "##..", ".##.", "..##"]),
        ((0, 0), ["#...", ".#..", "..#.", "...#"]),
        ((0, -1), ["####", ".###", "..##", "...#"]),
        ((1, 2), ["###.", "####", ".###", "..##"]),
    ],
)
def test_a_window_counts_keys_left_and_right_of_the_diagonal_of_4_rows(window, rows):
    assert seen(4, 4, window=window) == rows


def test_causal_cuts_what_a_window_of_2_to_the_right_lets_through():
    assert seen(4, 4, causal=True, window=(1, 2)) == ["#...", "##..", ".##.", "..##"]


def test_a_length_of_3_ends_both_the_rows_and_the_keys():
    assert seen(4, 4, seqlens=torch.tensor([3])) == ["###.", "###.", "###.", "...."]
    assert seen(4, 4, seqlens=torch.tensor([3]), causal=True) == ["#...", "##..", "###.", "...."]
    assert seen(2, 2, seqlens=torch.tensor([0])) == ["..", ".."]


def test_a_tile_of_rows_2_and_3_sees_what_these_rows_see():
    assert seen(5, 5, causal=True, rows=slice(2, 4)) == ["###..", "####."]


def test_top_left_causal_rows_begin_at_key_0_whatever_the_shape():
    assert seen(3, 5, causal=True, align="top-left") == ["#....", "##...", "###.."]
    assert seen(5, 3, causal=True, align="top-left") == ["#..", "##.", "###", "###", "###"]


def test_a_top_left_window_of_1_left_and_0_right_leaves_the_last_row_of_4_without_a_key_of_2():
    assert seen(4, 2, window=(1, 0), align="top-left") == ["#.", "##", ".#", ".."]
    assert seen(2, 4, window=(1, 0), align="top-left") == ["#...", "##.."]


def test_a_mask_hides_where_it_is_false_and_by_its_own_head():
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]]).bool()
    assert seen(2, 3, mask=mask) == ["#.#", "..."]
    assert seen(2, 3, mask=mask, causal=True) == ["#..", "..."]
    q = torch.zeros(1, 2, 2, 1, dtype=torch.float64)
    x = Attention(
        "softmax", q, q, q, q, 1.0, False, mask=torch.tensor([True, False]).view(2, 1, 1)
    )
    assert x.valid(Tile(0, slice(0, 2), slice(0, 1)))[:, 0].expand(2, 2).tolist() == [
        [True, True],
        [False, False],
    ]
    assert not x.valid(Tile(0, slice(1, 2), slice(0, 1))).any()


def test_a_bias_of_minus_infinity_hides_its_key():
    bias = torch.tensor([0.0, -torch.inf, 0.0], dtype=torch.float64)
    assert seen(2, 3, bias=bias) == ["#.#", "#.#"]


def test_packed_sequences_of_2_0_and_3_rows_with_1_2_and_2_keys():
    ends = [0, 2, 2, 5], [0, 1, 3, 5]
    cu_seqlens = {
        f"cu_seqlens_{name}": torch.tensor(one) for name, one in zip("qk", ends, strict=True)
    }
    assert seen(5, 5, **cu_seqlens) == ["#....", "#....", "...##", "...##", "...##"]
    assert seen(5, 5, **cu_seqlens, causal=True) == [".....", "#....", ".....", "...#.", "...##"]
    top_left = ["#....", "#....", "...#.", "...##", "...##"]
    assert seen(5, 5, **cu_seqlens, causal=True, align="top-left") == top_left
    assert seen(5, 5, **cu_seqlens, window=(0, 0), rows=slice(3, 5)) == ["...#.", "....#"]


@pytest.mark.parametrize("family", ["softmax", "lazy"])
def test_a_nan_in_the_padding_reaches_nothing(family):
    inputs = lazy_inputs() if family == "lazy" else softmax_inputs()
    lengths = torch.tensor([5, 7])
    expected = manual_attention_backward(**inputs, seqlens=lengths)
    for name in ("q", "k", "v", "do"):
        inputs[name][0, :, 5:] = float("nan")
    actual = manual_attention_backward(**inputs, seqlens=lengths)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
