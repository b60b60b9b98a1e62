"""The values of a large case are the same bits on a GPU as on the CPU, in every pattern."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from tests.cases import softmax_case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "pattern", ["normal", "small", "large", "negative", "positive", "offset", "lowrank"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_are_those_of_the_cpu(pattern, dtype):
    sizes = {"batch": 1, "heads": 4, "kv_heads": 1, "seqlen": 8192, "head_dim": 129}
    case = softmax_case(**sizes, dtype=dtype, pattern=pattern)
    here, there = draw(case), draw(case, "cuda")
    assert there["q"].is_cuda
    for name, value in here.items():
        assert torch.equal(value, there[name].cpu()), name
