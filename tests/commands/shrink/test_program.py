"""Scripts: their formulas are those of the reference, their tensors and guard bands those of a run."""

import pytest
import torch

from gradprobe.commands.shrink.program_text import LAYING, OF_BYTES, formula, literal
from gradprobe.inputs.draw import draw
from gradprobe.inputs.guard_bands import guard_values
from gradprobe.model.case import Case
from gradprobe.model.intermediates import names
from gradprobe.reference import manual_attention_backward
from tests.commands.shrink.cases import ALL


def evaluated(case: Case, values):
    space = {"torch": torch, "VALUES": values}
    exec(formula(case), space)
    return space["expected"](torch.float64)


@pytest.mark.parametrize("case", ALL)
def test_the_formulas_of_a_script_give_what_the_reference_gives(case):
    values = draw(case)
    found, free = evaluated(case, values)
    known = manual_attention_backward(
        **values, family=case.family, causal=case.causal, scale=case.scale, window=case.window, softcap=case.softcap,
        align=case.align, dropout=case.dropout,
    )  # fmt: skip
    assert found.keys() == known.keys() & set(names())
    for name, value in found.items():
        known_one = known[name].reshape(value.shape)
        compared = ~free.get(name, torch.zeros((), dtype=torch.bool)).expand(value.shape)
        torch.testing.assert_close(
            value[compared], known_one[compared], rtol=1e-9, atol=1e-11, msg=name
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_literal_gives_the_very_bits(dtype, as_bytes):
    tensor = (torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    space = {"torch": torch}
    exec("import base64\n" + OF_BYTES, space)
    again = eval(literal(tensor, as_bytes=as_bytes), space)
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


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
