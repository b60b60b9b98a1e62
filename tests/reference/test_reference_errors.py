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


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("v", (2, 2, 6, 3)), ("v", (2, 1, 7, 3)), ("k", (3, 2, 7, 3)), ("k", (2, 2, 7, 4)),
        ("do", (2, 2, 7, 4)),
    ],
    ids=str,
)  # fmt: skip
def test_a_tensor_that_does_not_fit_q(name, shape):
    words = f"{name} must be [2, 2, 7, 3] beside q [2, 2, 7, 3], got {list(shape)}"
    assert_refused(words, softmax_inputs() | {name: draw(*shape, seed=0)})


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("family must be lazy or softmax, got 'linear'", {"family": "linear"}),
        ("q must have four axes, [B, H, L, D], got [2, 7, 3]", {"q": draw(2, 7, 3, seed=0)}),
        ("seqlens must lie in 0 to 7, got [3, 9]", {"seqlens": torch.tensor([3, 9])}),
        ("seqlens must lie in 0 to 7, got [3, -1]", {"seqlens": torch.tensor([3, -1])}),
        ("seqlens must be [B] = [2], got [3]", {"seqlens": torch.tensor([3, 4, 5])}),
        ("softcap must be above 0, got 0.0", {"softcap": 0.0}),
        ("the softmax family has no tau", {"tau": draw(2, seed=0)}),
        ("align must be bottom-right or top-left, got 'middle'", {"align": "middle"}),
        ("mask must be bool, True where a row attends, got torch.float64", {"mask": draw(7, 7, seed=0)}),
        ("dropout must be at least 0 and below 1, got -0.1", {"dropout": -0.1}),
        ("dropout must be at least 0 and below 1, got 1.0", {"dropout": 1.0}),
        ("dropout must be at least 0 and below 1, got nan", {"dropout": float("nan")}),
        ("dropout needs keep, what it kept, got None beside a dropout of 0.5", {"dropout": 0.5}),
        (
            "keep must be [B, H, M, N] = [2, 2, 7, 7], got [1, 2, 7, 7]",
            {"dropout": 0.5, "keep": torch.ones(1, 2, 7, 7, dtype=torch.bool)},
        ),
        (
            "keep must be bool, True where P is kept, got torch.float64",
            {"dropout": 0.5, "keep": draw(2, 2, 7, 7, seed=0)},
        ),
        (
            "cu_seqlens needs a batch of 1, which holds every packed sequence, got 2",
            {"cu_seqlens_q": torch.tensor([0, 7])},
        ),
        ("cu_seqlens_k needs cu_seqlens_q, got None", {"cu_seqlens_k": torch.tensor([0, 7])}),
    ],
)  # fmt: skip
def test_an_option_of_softmax(words, options):
    assert_refused(words, softmax_inputs() | options)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 3), (2, 4)])
def test_key_heads_that_do_not_divide_the_query_heads(heads, kv_heads):
    words = f"the heads of k must divide those of q, got {kv_heads} and {heads}"
    assert_refused(words, softmax_inputs(heads=heads, kv_heads=kv_heads))


def test_seqlens_with_4_rows_of_7_keys():
    words = "seqlens (right padding) needs as many keys as query rows, got 7 and 4"
    assert_refused(words, softmax_inputs(4, 7), seqlens=torch.tensor([3, 4]))


@pytest.mark.parametrize("shape", [(6, 7), (3, 1, 7, 7), (1, 1, 1, 7, 7)], ids=str)
def test_a_bias_or_mask_that_does_not_broadcast(shape):
    words = f"must broadcast to [B, H, M, N] = [2, 2, 7, 7], got {list(shape)}"
    assert_refused(f"bias {words}", softmax_inputs(), bias=draw(*shape, seed=0))
    assert_refused(f"mask {words}", softmax_inputs(), mask=draw(*shape, seed=0) > 0)


@pytest.mark.parametrize("shape", [(3,), (1,), (), (2, 1)], ids=str)
def test_slopes_or_sinks_of_another_form_than_one_a_head(shape):
    for name in ("alibi", "sinks"):
        words = f"{name} must be [H] = [2], got {list(shape)}"
        assert_refused(words, softmax_inputs(), **{name: draw(*shape, seed=0)})


@pytest.mark.parametrize("tile", [{"row_tile": 0}, {"row_tile": -1}, {"head_tile": 0}], ids=str)
def test_a_tile_of_nothing(tile):
    with pytest.raises(ValueError, match="tiles must have at least one row and one head, got"):
        manual_attention_backward(**softmax_inputs(), **tile)


def packed_inputs(n: int = 7) -> Inputs:
    return {name: t[:1] for name, t in softmax_inputs(7, n).items()}


@pytest.mark.parametrize(
    ("words", "n", "ends"),
    [
        *((f"cu_seqlens_q must ascend from 0 to 7, got {ends}", 7, [ends]) for ends in ([1, 7], [0, 6], [0, 5, 3, 7])),
        ("cu_seqlens_k must ascend from 0 to 9, got [0, 3, 7]", 9, [[0, 3, 7]]),
        (
            "cu_seqlens_q and cu_seqlens_k must have as many entries as each other, got 3 and 2",
            9, [[0, 3, 7], [0, 9]],
        ),
        *(
            (f"cu_seqlens_q must be [n + 1] integers for n sequences, got torch.{came}", 7, [ends])
            for ends, came in (([7], "int64 [1]"), ([[0, 7]], "int64 [1, 2]"), ([0.0, 7.0], "float32 [2]"))
        ),
    ],
)  # fmt: skip
def test_cu_seqlens_that_cut_nothing(words, n, ends):
    names = ("cu_seqlens_q", "cu_seqlens_k")
    given = {name: torch.tensor(one) for name, one in zip(names, ends, strict=False)}
    assert_refused(words, packed_inputs(n), **given)


def test_packed_sequences_that_are_padded_too():
    words = (
        "seqlens (right padding) and cu_seqlens (packed sequences) exclude each other, got both"
    )
    both = {"cu_seqlens_q": torch.tensor([0, 7]), "seqlens": torch.tensor([7])}
    assert_refused(words, packed_inputs(), **both)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        *(("bias", of, "lazy bias must be [H, W] with H = 3 and W > 0") for of in ((8, 3), (3,), (3, 0))),
        *(("tau", of, "the lazy family needs tau [H] = [3]") for of in ((8,), (3, 1))),
    ],
)  # fmt: skip
def test_a_lazy_bias_or_tau_of_another_form(name, shape, words):
    inputs = lazy_inputs() | {name: draw(*shape, seed=0)}
    assert_refused(f"{words}, got {list(shape)}", inputs)


def test_lazy_without_tau():
    assert_refused("the lazy family needs tau [H] = [3], got None", lazy_inputs() | {"tau": None})


def test_lazy_with_what_only_softmax_has():
    words = "the lazy family is always causal and has neither window nor softcap"
    for option in ({"window": (2, 0)}, {"softcap": 0.5}):
        assert_refused(words, lazy_inputs(), **option)
    with pytest.raises(ValueError, match=f"^{words}$"):
        Attention(**lazy_inputs(), scale=1.0, causal=False)
    assert_refused(
        "the lazy family has no align, got 'top-left'", lazy_inputs(), align="top-left"
    )
    assert_refused("the lazy family has no dropout, got 0.5", lazy_inputs(), dropout=0.5)
    for name in ("alibi", "mask", "sinks", "keep", "cu_seqlens_q", "cu_seqlens_k"):
        words = f"the lazy family has no {name}, got [3]"
        assert_refused(words, lazy_inputs(), **{name: draw(3, seed=0)})


@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (2, 1, 7, 3)], ids=str)
def test_lazy_with_fewer_keys_or_key_heads_than_q(shape):
    inputs = lazy_inputs() | {"k": draw(*shape, seed=1), "v": draw(*shape, seed=2)}
    words = f"the lazy family needs q and k of one shape, got [2, 3, 7, 3] and {list(shape)}"
    assert_refused(words, inputs)
