"""Scripts: tensors and guard bands are those of a run, to the bit."""

import pytest
import torch

from gradprobe.commands.shrink.program import LAYING, literal
from gradprobe.inputs.guard_bands import guard_values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_literal_gives_the_very_bits(dtype):
    tensor = (torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    for one in (tensor, tensor[:0], torch.full((2, 2), 0.1).to(dtype)):
        again = eval(literal(one), {"torch": torch})
        assert (again.dtype, again.shape) == (dtype, one.shape)
        assert torch.equal(again, one)


def test_a_script_lays_a_tensor_and_guard_bands_as_a_run_does():
    space = {"torch": torch, "DEVICE": "cpu", "STORAGES": {}}
    exec(LAYING, space)
    for dtype in (torch.float32, torch.float16, torch.int32):
        of_a_run = guard_values(3000, dtype, torch.device("cpu"))
        assert torch.equal(space["guarded"](3000, dtype), of_a_run)
    value = torch.arange(6.0).reshape(2, 3)
    laid = space["laid"](value, 0, 40, (7, 2), 11)
    assert (laid.stride(), laid.storage_offset()) == ((7, 2), 11)
    assert torch.equal(laid, value)
    assert torch.equal(space["laid"](torch.ones(2, 3), 1, 12, (0, 0), 3), torch.ones(2, 3))
