"""Which keys each row sees, drawn out: a line is a row, # a key that it sees."""

import pytest
import torch

from gradprobe.reference import Attention, Tile, evaluate, manual_attention_backward
from tests.reference.independent import lazy_inputs, softmax_inputs

CUT = {"cu_seqlens_q": torch.tensor([0, 2, 2, 5]), "cu_seqlens_k": torch.tensor([0, 1, 3, 5])}
TOP = {"align": "top-left"}
MASK = torch.tensor([[1, 0, 1], [0, 0, 0]]).bool()
HIDING = torch.tensor([0.0, -torch.inf, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("m", "n", "options", "rows"),
    [
        (3, 5, {"causal": True}, "###.. ####. #####"),
        (5, 3, {"causal": True}, "... ... #.. ##. ###"),
        (4, 4, {"window": (0, -1)}, "#### .### ..## ...#"),
        (4, 4, {"window": (1, 2)}, "###. #### .### ..##"),
        (4, 4, {"causal": True, "window": (1, 2)}, "#... ##.. .##. ..##"),
        (4, 4, {"seqlens": torch.tensor([3]), "causal": True}, "#... ##.. ###. ...."),
        (3, 5, {"causal": True, **TOP}, "#.... ##... ###.."),
        (4, 2, {"window": (1, 0), **TOP}, "#. ## .# .."),
        (2, 3, {"mask": MASK, "causal": True}, "#.. ..."),
        (2, 3, {"bias": HIDING}, "#.# #.#"),
        (5, 5, {**CUT, "causal": True}, "..... #.... ..... ...#. ...##"),
        (5, 5, {**CUT, "causal": True, **TOP}, "#.... #.... ...#. ...## ...##"),
    ],
    ids=str,
)
def test_what_each_row_sees(m, n, options, rows):
    q, k = (torch.zeros(1, 1, size, 1, dtype=torch.float64) for size in (m, n))
    x = Attention("softmax", q, k, k, q, 1.0, **{"causal": False} | options)
    for first in (0, 1):  # whole, and a tile that begins at row 1
        values = evaluate(x, Tile(0, slice(0, 1), slice(first, m)))
        assert torch.equal(values["valid"], values["S"] > -torch.inf)
        assert torch.equal(values["valid"], values["P"] > 0)
        seen = ["".join(".#"[bit] for bit in row) for row in values["valid"][0].int().tolist()]
        assert seen == rows.split()[first:]


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
