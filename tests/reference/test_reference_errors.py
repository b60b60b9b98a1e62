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


KEEP = torch.ones(1, 2, 7, 7, dtype=torch.bool)
BESIDE = "must be [2, 2, 7, 3] beside q [2, 2, 7, 3], got"
BROADCAST = "must broadcast to [B, H, M, N] = [2, 2, 7, 7], got"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (f"v {BESIDE} [2, 1, 7, 3]", {"v": draw(2, 1, 7, 3, seed=0)}),
        (f"k {BESIDE} [2, 2, 7, 4]", {"k": draw(2, 2, 7, 4, seed=0)}),
        ("family must be lazy or softmax, got 'linear'", {"family": "linear"}),
        ("q must have four axes, [B, H, L, D], got [2, 7, 3]", {"q": draw(2, 7, 3, seed=0)}),
        ("the heads of k must divide those of q, got 3 and 4", softmax_inputs(heads=4, kv_heads=3)),
        ("seqlens must lie in 0 to 7, got [3, -1]", {"seqlens": torch.tensor([3, -1])}),
        (
            "seqlens (right padding) needs as many keys as query rows, got 7 and 4",
            softmax_inputs(4, 7) | {"seqlens": torch.tensor([3, 4])},
        ),
        ("the softmax family has no tau", {"tau": draw(2, seed=0)}),
        ("align must be bottom-right or top-left, got 'middle'", {"align": "middle"}),
        (f"bias {BROADCAST} [3, 1, 7, 7]", {"bias": draw(3, 1, 7, 7, seed=0)}),
        ("mask must be bool, True where a row attends, got torch.float64", {"mask": draw(7, 7, seed=0)}),
        ("alibi must be [H] = [2], got [1]", {"alibi": draw(1, seed=0)}),
        ("dropout must be at least 0 and below 1, got nan", {"dropout": float("nan")}),
        ("dropout needs keep, what it kept, got None beside a dropout of 0.5", {"dropout": 0.5}),
        ("keep must be [B, H, M, N] = [2, 2, 7, 7], got [1, 2, 7, 7]", {"dropout": 0.5, "keep": KEEP}),
        (
            "cu_seqlens needs a batch of 1, which holds every packed sequence, got 2",
            {"cu_seqlens_q": torch.tensor([0, 7])},
        ),
        ("cu_seqlens_k needs cu_seqlens_q, got None", {"cu_seqlens_k": torch.tensor([0, 7])}),
    ],
)  # fmt: skip
def test_softmax(words, options):
    assert_refused(words, softmax_inputs() | options)


@pytest.mark.parametrize("tile", [{"row_tile": 0}, {"head_tile": 0}], ids=str)
def test_a_tile_of_nothing(tile):
    with pytest.raises(ValueError, match="tiles must have at least one row and one head, got"):
        manual_attention_backward(**softmax_inputs(), **tile)


@pytest.mark.parametrize(
    ("words", "n", "options"),
    [
        ("cu_seqlens_q must ascend from 0 to 7, got [0, 5, 3, 7]", 7, {"q": [0, 5, 3, 7]}),
        ("cu_seqlens_k must ascend from 0 to 9, got [0, 3, 7]", 9, {"q": [0, 3, 7]}),
        (
            "cu_seqlens_q and cu_seqlens_k must have as many entries as each other, got 3 and 2",
            9, {"q": [0, 3, 7], "k": [0, 9]},
        ),
        ("cu_seqlens_q must be [n + 1] integers for n sequences, got torch.int64 [1]", 7, {"q": [7]}),
        (
            "seqlens (right padding) and cu_seqlens (packed sequences) exclude each other, got both",
            7, {"q": [0, 7], "seqlens": torch.tensor([7])},
        ),
    ],
)  # fmt: skip
def test_packed_sequences(words, n, options):
    given = {
        f"cu_seqlens_{name}" if name in "qk" else name: torch.as_tensor(value)
        for name, value in options.items()
    }
    assert_refused(words, {name: t[:1] for name, t in softmax_inputs(7, n).items()}, **given)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("lazy bias must be [H, W] with H = 3 and W > 0, got [8, 3]", {"bias": draw(8, 3, seed=0)}),
        ("the lazy family needs tau [H] = [3], got [3, 1]", {"tau": draw(3, 1, seed=0)}),
        ("the lazy family is always causal and has neither window nor softcap", {"window": (2, 0)}),
        ("the lazy family has no align, got 'top-left'", {"align": "top-left"}),
        *(
            (f"the lazy family has no {name}, got [3]", {name: draw(3, seed=0)})
            for name in ("alibi", "mask", "sinks", "keep", "cu_seqlens_q", "cu_seqlens_k")
        ),
        (
            "the lazy family needs q and k of one shape, got [2, 3, 7, 3] and [2, 1, 7, 3]",
            {"k": draw(2, 1, 7, 3, seed=1), "v": draw(2, 1, 7, 3, seed=2)},
        ),
    ],
)  # fmt: skip
def test_lazy(words, options):
    assert_refused(words, lazy_inputs() | options)


def test_lazy_that_is_not_causal():
    words = "^the lazy family is always causal and has neither window nor softcap$"
    with pytest.raises(ValueError, match=words):
        Attention(**lazy_inputs(), scale=1.0, causal=False)
