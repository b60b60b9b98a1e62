from dataclasses import replace

import pytest
import torch

from gradprobe.reference import Attention, Tile, manual_attention_backward
from tests.reference.independent import Inputs, assert_same, draw, lazy_inputs, softmax_inputs

LENGTHS = torch.tensor([9, 13])


def problems() -> dict[str, Inputs]:
    grouped = softmax_inputs(13, 13, heads=4, kv_heads=2)
    packed = {
        "cu_seqlens_q": torch.tensor([0, 5, 5, 13]),
        "alibi": draw(4, seed=9),
        "causal": True,
    }
    return {
        "softmax causal": softmax_inputs(13, 9, heads=4, kv_heads=1) | {"causal": True},
        "softmax bias 4 13 1": grouped
        | {"causal": True, "bias": draw(4, 13, 1, seed=9), "seqlens": LENGTHS},
        "softmax packed": {name: t[:1] for name, t in grouped.items()} | packed,
        "lazy W 5": lazy_inputs(13, window=5),
        "lazy W 20": lazy_inputs(13, window=20) | {"seqlens": LENGTHS},
    }


@pytest.mark.parametrize("name", problems())
def test_tiles_of_rows_and_heads_add_up_to_the_whole_and_without_matrices_the_rest_is_the_same(
    name,
):
    problem = problems()[name]
    whole = manual_attention_backward(**problem)
    for head_tile, row_tile in ((1, 1), (2, 7), (3, None), (None, 13)):
        cut = {"row_tile": row_tile, "head_tile": head_tile}
        actual = manual_attention_backward(**problem, **cut)
        assert_same(actual, whole)
        rest = manual_attention_backward(**problem, **cut, matrices=False)
        assert whole.keys() - rest.keys() == {"P", "dP", "dS"}
        assert all(torch.equal(value, actual[name]) for name, value in rest.items())


def test_a_padded_tile_sees_no_key_beyond_its_length_and_one_where_it_sees_none():
    x = Attention("softmax", **softmax_inputs(13, 13), scale=0.5, causal=False, seqlens=LENGTHS)
    seen = [x.seen_keys(Tile(batch, slice(0, 2), slice(4, 13))) for batch in (0, 1)]
    assert seen == [slice(0, 9), slice(0, 13)]
    none = replace(x, seqlens=torch.tensor([0, 13]))
    assert none.seen_keys(Tile(0, slice(0, 2), slice(4, 13))) == slice(0, 1)
