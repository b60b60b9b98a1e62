"""What Attention and manual_attention_backward refuse, in which words: the subject, the rule, what came."""

import re

import pytest
import torch

from gradprobe.reference import Attention, manual_attention_backward
from tests.reference.independent import Inputs, draw, lazy_inputs, softmax_inputs


def assert_refused(words: str, inputs: Inputs, **options) -> None:
    """In exactly these words, by both ways in."""
    exactly = f"^{re.escape(words)}$"
    with pytest.raises(ValueError, match=exactly):
        manual_attention_backward(**inputs, **options)
    family = options.get("family", inputs.get("family", "softmax"))
    defaults: Inputs = {"family": family, "scale": 1.0, "causal": family == "lazy"}
    with pytest.raises(ValueError, match=exactly):
        Attention(**defaults | inputs | options)


def test_a_family_called_linear():
    assert_refused(
        "family must be lazy or softmax, got 'linear'", softmax_inputs(), family="linear"
    )


def test_3_key_heads_for_4_query_heads():
    assert_refused(
        "the heads of k must divide those of q, got 3 and 4", softmax_inputs(heads=4, kv_heads=3)
    )


def test_4_key_heads_for_2_query_heads():
    assert_refused(
        "the heads of k must divide those of q, got 4 and 2", softmax_inputs(heads=2, kv_heads=4)
    )


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("v", (2, 2, 6, 3), [2, 2, 7, 3]),
        ("v", (2, 1, 7, 3), [2, 2, 7, 3]),
        ("v", (1, 2, 7, 3), [2, 2, 7, 3]),
        ("k", (3, 2, 7, 3), [2, 2, 7, 3]),
        ("k", (2, 2, 7, 4), [2, 2, 7, 3]),
        ("do", (2, 2, 9, 3), [2, 2, 7, 3]),
        ("do", (2, 2, 7, 4), [2, 2, 7, 3]),
    ],
    ids=str,
)
def test_a_tensor_that_does_not_fit_q(name, shape, expected):
    words = f"{name} must be {expected} beside q [2, 2, 7, 3], got {list(shape)}"
    assert_refused(words, softmax_inputs() | {name: draw(*shape, seed=0)})


def test_a_q_of_three_axes():
    words = "q must have four axes, [B, H, L, D], got [2, 7, 3]"
    assert_refused(words, softmax_inputs() | {"q": draw(2, 7, 3, seed=0)})


def test_seqlens_with_4_rows_of_7_keys():
    words = "seqlens (right padding) needs as many keys as query rows, got 7 and 4"
    assert_refused(words, softmax_inputs(4, 7), seqlens=torch.tensor([3, 4]))


@pytest.mark.parametrize("lengths", [[3, 9], [3, -1]], ids=str)
def test_a_length_outside_the_rows(lengths):
    assert_refused(
        f"seqlens must lie in 0 to 7, got {lengths}",
        softmax_inputs(),
        seqlens=torch.tensor(lengths),
    )


def test_3_lengths_for_2_batches():
    words = "seqlens must be [B] = [2], got [3]"
    assert_refused(words, softmax_inputs(), seqlens=torch.tensor([3, 4, 5]))


@pytest.mark.parametrize("softcap", [0.0, -1.0])
def test_a_softcap_that_caps_everything(softcap):
    assert_refused(f"softcap must be above 0, got {softcap}", softmax_inputs(), softcap=softcap)


def test_softmax_with_tau():
    assert_refused("the softmax family has no tau", softmax_inputs(), tau=draw(2, seed=0))


@pytest.mark.parametrize("shape", [(6, 7), (8, 7, 7), (5, 1, 1, 7), (1, 1, 1, 7, 7)], ids=str)
def test_a_bias_that_does_not_broadcast(shape):
    words = f"bias must broadcast to [B, H, M, N] = [2, 2, 7, 7], got {list(shape)}"
    assert_refused(words, softmax_inputs(), bias=draw(*shape, seed=0))


@pytest.mark.parametrize("shape", [(8, 3), (3,), (3, 0)], ids=str)
def test_a_lazy_bias_of_another_form_than_heads_by_distance(shape):
    words = f"lazy bias must be [H, W] with H = 3 and W > 0, got {list(shape)}"
    assert_refused(words, lazy_inputs() | {"bias": draw(*shape, seed=0)})


@pytest.mark.parametrize("shape", [(8,), (), (3, 1)], ids=str)
def test_a_tau_of_another_form_than_one_a_head(shape):
    words = f"the lazy family needs tau [H] = [3], got {list(shape)}"
    assert_refused(words, lazy_inputs() | {"tau": draw(*shape, seed=0)})


def test_lazy_without_tau():
    assert_refused("the lazy family needs tau [H] = [3], got None", lazy_inputs() | {"tau": None})


@pytest.mark.parametrize("tile", [{"row_tile": 0}, {"row_tile": -1}, {"head_tile": 0}], ids=str)
def test_a_tile_of_nothing(tile):
    with pytest.raises(ValueError, match="tiles must have at least one row and one head, got"):
        manual_attention_backward(**softmax_inputs(), **tile)


@pytest.mark.parametrize("option", [{"window": (2, 0)}, {"softcap": 0.5}], ids=str)
def test_lazy_with_a_window_or_a_softcap(option):
    words = "the lazy family is always causal and has neither window nor softcap"
    assert_refused(words, lazy_inputs(), **option)


def test_lazy_that_is_not_causal():
    words = "the lazy family is always causal and has neither window nor softcap"
    with pytest.raises(ValueError, match=f"^{words}$"):
        Attention(**lazy_inputs(), scale=1.0, causal=False)


@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (2, 1, 7, 3), (2, 3, 7, 4)], ids=str)
def test_lazy_with_fewer_keys_or_key_heads_or_a_wider_k_than_q(shape):
    inputs = lazy_inputs() | {"k": draw(*shape, seed=1), "v": draw(*shape, seed=2)}
    if shape[3] == 4:  # the width is compared first, in either family
        assert_refused("k must be [2, 3, 7, 3] beside q [2, 3, 7, 3], got [2, 3, 7, 4]", inputs)
    elif shape[2] == 5:
        inputs["v"] = draw(2, 3, 5, 3, seed=2)
        assert_refused(
            "the lazy family needs q and k of one shape, got [2, 3, 7, 3] and [2, 3, 5, 3]", inputs
        )
    else:
        inputs["v"] = draw(2, 1, 7, 3, seed=2)
        assert_refused(
            "the lazy family needs q and k of one shape, got [2, 3, 7, 3] and [2, 1, 7, 3]", inputs
        )


def test_an_align_called_middle():
    assert_refused(
        "align must be bottom-right or top-left, got 'middle'", softmax_inputs(), align="middle"
    )


def test_a_mask_of_floats():
    words = "mask must be bool, True where a row attends, got torch.float64"
    assert_refused(words, softmax_inputs(), mask=draw(7, 7, seed=0))


@pytest.mark.parametrize("shape", [(6, 7), (3, 1, 7, 7), (1, 1, 1, 7, 7)], ids=str)
def test_a_mask_that_does_not_broadcast(shape):
    words = f"mask must broadcast to [B, H, M, N] = [2, 2, 7, 7], got {list(shape)}"
    assert_refused(words, softmax_inputs(), mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("name", ["alibi", "sinks"])
@pytest.mark.parametrize("shape", [(3,), (1,), (), (2, 1)], ids=str)
def test_slopes_or_sinks_of_another_form_than_one_a_head(name, shape):
    assert_refused(
        f"{name} must be [H] = [2], got {list(shape)}",
        softmax_inputs(),
        **{name: draw(*shape, seed=0)},
    )


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_dropout_that_is_no_probability_below_1(dropout):
    assert_refused(
        f"dropout must be at least 0 and below 1, got {dropout}", softmax_inputs(), dropout=dropout
    )


def test_a_dropout_without_what_it_kept():
    words = "dropout needs keep, what it kept, got None beside a dropout of 0.5"
    assert_refused(words, softmax_inputs(), dropout=0.5)


def test_a_keep_that_broadcasts():
    words = "keep must be [B, H, M, N] = [2, 2, 7, 7], got [1, 2, 7, 7]"
    assert_refused(
        words, softmax_inputs(), dropout=0.5, keep=torch.ones(1, 2, 7, 7, dtype=torch.bool)
    )


def test_a_keep_of_floats():
    words = "keep must be bool, True where P is kept, got torch.float64"
    assert_refused(words, softmax_inputs(), dropout=0.5, keep=draw(2, 2, 7, 7, seed=0))


def packed_inputs(m: int = 7, n: int = 7) -> Inputs:
    return {name: t[:1] for name, t in softmax_inputs(m, n).items()}


def test_packed_keys_without_packed_queries():
    words = "cu_seqlens_k needs cu_seqlens_q, got None"
    assert_refused(words, packed_inputs(), cu_seqlens_k=torch.tensor([0, 7]))


def test_packed_sequences_that_are_padded_too():
    words = "seqlens (right padding) and cu_seqlens (packed sequences) exclude each other, got both"
    assert_refused(
        words, packed_inputs(), cu_seqlens_q=torch.tensor([0, 7]), seqlens=torch.tensor([7])
    )


def test_packed_sequences_in_two_batches():
    words = "cu_seqlens needs a batch of 1, which holds every packed sequence, got 2"
    assert_refused(words, softmax_inputs(), cu_seqlens_q=torch.tensor([0, 7]))


@pytest.mark.parametrize("ends", [[1, 7], [0, 6], [0, 8], [0, 5, 3, 7]], ids=str)
def test_cu_seqlens_that_do_not_ascend_from_0_to_7(ends):
    words = f"cu_seqlens_q must ascend from 0 to 7, got {ends}"
    assert_refused(words, packed_inputs(), cu_seqlens_q=torch.tensor(ends))


def test_cu_seqlens_of_7_queries_for_9_keys_too():
    words = "cu_seqlens_k must ascend from 0 to 9, got [0, 3, 7]"
    assert_refused(words, packed_inputs(7, 9), cu_seqlens_q=torch.tensor([0, 3, 7]))


def test_2_packed_sequences_of_queries_and_1_of_keys():
    words = "cu_seqlens_q and cu_seqlens_k must have as many entries as each other, got 3 and 2"
    ends = {"cu_seqlens_q": torch.tensor([0, 3, 7]), "cu_seqlens_k": torch.tensor([0, 9])}
    assert_refused(words, packed_inputs(7, 9), **ends)


@pytest.mark.parametrize("ends", [[7], [[0, 7]], [0.0, 7.0], [False, True]], ids=str)
def test_cu_seqlens_that_are_no_ascending_integers(ends):
    tensor = torch.tensor(ends)
    words = f"cu_seqlens_q must be [n + 1] integers for n sequences, got {tensor.dtype} {list(tensor.shape)}"
    assert_refused(words, packed_inputs(), cu_seqlens_q=tensor)


def test_lazy_with_what_only_softmax_has():
    assert_refused("the lazy family has no align, got 'top-left'", lazy_inputs(), align="top-left")
    assert_refused("the lazy family has no dropout, got 0.5", lazy_inputs(), dropout=0.5)
    for name in ("alibi", "mask", "sinks", "keep", "cu_seqlens_q", "cu_seqlens_k"):
        assert_refused(
            f"the lazy family has no {name}, got [3]", lazy_inputs(), **{name: draw(3, seed=0)}
        )
