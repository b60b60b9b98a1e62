"""The arithmetic of emulated kernels is read as it was written; of a wrong kernel none is."""

from functools import partial

import pytest

from gradprobe.commands.contract_request import Contract, contract_of
from tests.emulated import Arithmetic, case_of, softmax, target_of


def contract(how: Arithmetic, dtype: str, *, change=None, **options) -> Contract:
    shape = {"batch": 1, "heads": 1, "seqlen": 64, "head_dim": 16} | options
    case = case_of("softmax", pattern="dyadic", dtype=dtype, bias=False, **shape)

    def kernel(q, k, v, do, *, causal=False, scale=None):
        made = softmax(q, k, v, do, how=how, causal=causal, scale=scale)
        made = made if change is None else change(made, q, k, scale)
        return {name: made[name] for name in ("O", "dQ", "dK", "dV")}

    return contract_of(target_of(kernel), case)


READ = [
    (Arithmetic(tensor_core=True, exp2=True), "bfloat16", ""), (Arithmetic(), "float32", "ieee"),
    (Arithmetic(tf32="cut", tensor_core=True), "float32", "tf32"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "dtype", "dots"), READ)
def test_how_dots_multiply_and_that_sums_are_float32_is_read(how, dtype, dots):
    found = contract(how, dtype)
    assert (found.unread, found.sums, found.operand, found.dots) == ((), {}, "", dots)


def _kept(made, q, k, scale, *, tile, backwards=False):
    """dK added up tile by tile in q's dtype."""
    ds, total = made["dS"].to(q.dtype).float(), k.float() * 0
    firsts = list(range(0, q.shape[2], tile))
    for first in firsts[::-1] if backwards else firsts:
        rows = slice(first, first + tile)
        added = (ds[:, :, rows].mT @ q[:, :, rows].float()) * scale
        total = (total + added).to(q.dtype).float()
    return made | {"dK": total.to(q.dtype)}


def test_the_tile_and_order_of_a_sum_in_16_bits_are_read():
    change = partial(_kept, tile=16, backwards=True)
    found = contract(Arithmetic(), "bfloat16", change=change, seqlen=96, head_dim=64)
    assert found.unread == ()
    assert found.sums == {"dK": "bfloat16, rounded after each 16 query rows, from the last"}


def _rows_lost(made, q, k, scale):  # noqa: ARG001
    lost = made["dS"].to(q.dtype).float()[:, :, -16:].mT @ q[:, :, -16:].float() * scale
    return made | {"dK": (made["dK"].float() - lost).to(q.dtype)}


def test_of_a_wrong_kernel_the_result_is_not_read():
    assert contract(Arithmetic(), "bfloat16", change=_rows_lost).unread == ("dK",)
