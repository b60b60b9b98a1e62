import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.model.failures import TargetFailure, UsageFailure
from gradprobe.sharded.shards import division
from tests.cases import softmax_case


def shards(**options):
    return division(softmax_case(ranks=2, **options))


def test_each_way_divides_the_sequence_as_its_users_do():
    assert shards(seqlen=8, shards="zigzag").held["m"] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert shards(seqlen=8, shards="striped").held["m"] == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("name", ["zigzag", "heads"])
def test_what_is_cut_and_joined_is_as_before(name):
    divided = shards(shards=name, heads=4, kv_heads=2, seqlen_k=80)
    whole = draw(divided.case)
    parts = [divided.cut(whole, divided.case.input_axes, rank) for rank in range(2)]
    for tensor in ("q", "k", "v", "do"):
        axes = divided.case.input_axes(tensor)
        assert torch.equal(divided.joined([part[tensor] for part in parts], axes), whole[tensor])
        assert parts[1][tensor].is_contiguous()
    case = divided.of_case(1)
    assert parts[1]["k"].shape == (case.batch, case.kv_heads, case.seqlen_k, case.head_dim)


# fmt: off
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seqlen": 70, "shards": "zigzag"}, "zigzag shards of 2 ranks need a multiple of 4, got 70"),
        ({"heads": 3, "shards": "heads"}, "--heads: heads shards of 2 ranks need a multiple of 2"),
        ({"bias": True}, "--bias: it is not divided among ranks"),
        ({"shards": "zickzack"}, "--shards zickzack: no such way"),
    ],
)
# fmt: on
def test_what_cannot_be_divided_is_refused(options, words):
    with pytest.raises(UsageFailure, match=words):
        shards(**options)


def test_shards_of_two_dtypes_are_refused():
    part = torch.zeros(1, 1, 2, 3)
    with pytest.raises(TargetFailure, match="several dtypes: bfloat16, float32"):
        shards(seqlen=4).joined([part, part.bfloat16()], "bhmd")
