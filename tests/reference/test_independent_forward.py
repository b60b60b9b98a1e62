"""The tests' own forward where its options reduce to a problem without them."""

import pytest
import torch

from tests.reference.independent import assert_same, by_autograd, draw, softmax_inputs


@pytest.mark.parametrize("align", ["bottom-right", "top-left"])
def test_packed_sequences_of_3_0_4_rows_are_each_answered_as_if_alone(align):
    ends_q, ends_k = [0, 3, 3, 7], [0, 2, 6, 9]
    inputs = {name: t[:1] for name, t in softmax_inputs(7, 9).items()}
    options = {
        "causal": True,
        "window": (2, -1),
        "align": align,
        "alibi": torch.tensor([0.5, 0.25]).double(),
    }
    packed = by_autograd(
        **inputs, **options, cu_seqlens_q=torch.tensor(ends_q), cu_seqlens_k=torch.tensor(ends_k)
    )  # fmt: skip
    of_slopes = torch.zeros(2, dtype=torch.float64)
    for s in (0, 2):
        rows, keys = slice(ends_q[s], ends_q[s + 1]), slice(ends_k[s], ends_k[s + 1])
        own = {name: t[:, :, rows if name in ("q", "do") else keys] for name, t in inputs.items()}
        part = {name: packed[name][:, :, rows] for name in ("O", "LSE", "delta", "dQ")}
        part |= {name: packed[name][:, :, keys] for name in ("dK", "dV")}
        part |= {name: packed[name][:, :, rows, keys] for name in ("P", "dP", "dS")}
        alone = by_autograd(**own, **options)
        of_slopes += alone.pop("dAlibi")
        assert_same(part, alone)
    assert_same({"dAlibi": packed["dAlibi"]}, {"dAlibi": of_slopes})
    assert packed["P"].count_nonzero() == packed["P"][:, :, :3, :2].count_nonzero() + (
        packed["P"][:, :, 3:, 6:].count_nonzero()
    )
    assert packed["dK"][:, :, 2:6].eq(0).all()


def test_a_sink_is_a_key_of_value_0_and_its_logit_taken_from_a_bias():
    inputs, sinks = softmax_inputs(5, 6), draw(2, seed=7)
    widened = {name: torch.nn.functional.pad(inputs[name], (0, 0, 0, 1)) for name in ("k", "v")}
    bias = torch.zeros(1, 2, 5, 7, dtype=torch.float64)
    bias[..., 6] = sinks[:, None]
    expected = by_autograd(**inputs | widened, bias=bias)
    actual = by_autograd(**inputs, sinks=sinks)
    expected |= {name: expected[name][..., :6] for name in ("P", "dP", "dS")}
    expected |= {name: expected[name][:, :, :6] for name in ("dK", "dV")}
    assert_same(actual, expected | {"dSink": expected.pop("dBias")[0, :, :, 6].sum(-1)})


def test_a_row_without_a_key_has_its_sink_for_lse_and_gives_it_no_gradient():
    mask = torch.ones(1, 1, 5, 1, dtype=torch.bool)
    mask[:, :, 2] = False
    sinks = draw(2, seed=7)
    actual = by_autograd(**softmax_inputs(5, 6), sinks=sinks, mask=mask)
    torch.testing.assert_close(actual["LSE"][:, :, 2], sinks.expand(2, 2))
    assert all(actual[name][:, :, 2].eq(0).all() for name in ("P", "O", "dP", "delta", "dS", "dQ"))
    alive = {
        name: t[:, :, [0, 1, 3, 4]] if name in ("q", "do") else t
        for name, t in softmax_inputs(5, 6).items()
    }
    assert_same({"dSink": actual["dSink"]}, {"dSink": by_autograd(**alive, sinks=sinks)["dSink"]})


def test_alibi_is_a_bias_by_distance_from_the_diagonal_of_either_corner():
    inputs, slopes = softmax_inputs(4, 7), torch.tensor([0.5, -0.25], dtype=torch.float64)
    for align, shift in (("bottom-right", 3), ("top-left", 0)):
        distance = (torch.arange(4)[:, None] + shift - torch.arange(7)).abs()
        actual = by_autograd(**inputs, alibi=slopes, align=align)
        expected = by_autograd(**inputs, bias=-slopes[:, None, None] * distance)
        of_slopes = -(expected.pop("dBias") * distance).sum((1, 2))
        assert_same(actual, expected | {"dAlibi": of_slopes})


def test_a_mask_that_is_a_causal_band_is_causal_in_both_alignments():
    inputs = softmax_inputs(7, 4)
    for align, shift in (("bottom-right", -3), ("top-left", 0)):
        band = torch.ones(7, 4, dtype=torch.bool).tril(shift)
        assert_same(
            by_autograd(**inputs, causal=True, align=align), by_autograd(**inputs, mask=band)
        )


def test_dropout_of_a_half_doubles_what_is_kept_and_p_stays_whole():
    inputs = softmax_inputs(5, 6)
    keep = draw(2, 2, 5, 6, seed=7) > 0
    actual, whole = by_autograd(**inputs, dropout=0.5, keep=keep), by_autograd(**inputs)
    assert_same({"P": actual["P"], "LSE": actual["LSE"]}, {"P": whole["P"], "LSE": whole["LSE"]})
    assert_same(
        {"O": actual["O"], "dP": actual["dP"], "delta": actual["delta"]},
        {
            "O": (2 * keep * whole["P"]) @ inputs["v"],
            "dP": 2 * keep * whole["dP"],
            "delta": (inputs["do"] * actual["O"]).sum(-1),
        },
    )
