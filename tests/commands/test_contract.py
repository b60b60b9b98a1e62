"""The arithmetic of emulated kernels is read as it was written, twice alike; of a wrong kernel none is."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gradprobe.commands.contract_request import contract_of
from gradprobe.model.kernel_contract import Contract
from gradprobe.targets.find import find_target
from tests.emulated import Arithmetic, case_of, lazy, softmax, target_of
from tests.sampling import sampled


def contract(how: Arithmetic, dtype: str, *, seed=0, change=None, family="softmax", **options) -> Contract:
    shape = {"batch": 1, "heads": 1, "seqlen": 64, "head_dim": 16} | options
    case = case_of(family, pattern="dyadic", dtype=dtype, seed=seed, bias=False, **shape)

    def kernel(q, k, v, do, *, causal=False, scale=None):
        made = softmax(q, k, v, do, how=how, causal=causal, scale=scale)
        made = made if change is None else change(made, q, k, scale)
        return {name: made[name] for name in ("O", "dQ", "dK", "dV")}

    def lazy_kernel(q, k, v, do, *, tau, scale=None):
        return lazy(q, k, v, do, tau=tau, how=how, scale=scale)

    return contract_of(target_of(kernel if family == "softmax" else lazy_kernel, family), case)


KNOWN = {
    "bfloat16": (
        Arithmetic(tensor_core=True, exp2=True),
        {("O", "P"): "bfloat16, divided by its sum", ("dV", "P"): "bfloat16", ("dQ", "dS"): "bfloat16, scaled after",
         ("dQ", "delta"): "from O as it is stored", ("dQ", "sums"): "float32"},
    ),
    "float16, from P, folded": (
        Arithmetic(folded=True, delta_from_o=False, backwards=True),
        {("dK", "dS"): "float16, scaled before", ("dV", "P"): "float16", ("dQ", "dS"): "float16, scaled before"},
    ),
    "float32": (Arithmetic(), {("O", "P"): "float32", ("dV", "P"): "float32", ("dQ", "scores"): "float32"}),
    "float32, cut": (
        Arithmetic(tf32="cut", tensor_core=True),
        {("O", "P"): "TF32, cut, divided by its sum", ("dQ", "dP"): "TF32, cut", ("dK", "dS"): "TF32, cut",
         ("dV", "scores"): "TF32, cut"},
    ),
    "float32, rounded": (
        Arithmetic(tf32="nearest"),
        {("O", "scores"): "TF32, rounded", ("dQ", "dS"): "TF32, rounded", ("dV", "P"): "TF32, rounded"},
    ),
}  # fmt: skip


@sampled("name", KNOWN, push=2)
def test_what_is_rounded_and_how_dots_multiply_is_read(name):
    how, parts = KNOWN[name]
    found = contract(how, name.partition(",")[0])
    assert found.is_read
    assert {key: found.of(*key)[0] for key in parts} == parts
    # float16 has TF32's bits.
    assert all({*found.of(*key)[1:]} <= {"float16"} for key in parts)
    assert found.dots == {"float32": "ieee", "float32, cut": "tf32", "float32, rounded": "tf32"}.get(name, "")


@pytest.mark.nightly
def test_two_other_seeds_give_the_same():
    how = KNOWN["bfloat16"][0]
    first, second = (contract(how, "bfloat16", seed=seed, causal=True) for seed in (0, 40))
    assert [one.parts for one in first.readings] == [one.parts for one in second.readings]


@pytest.mark.nightly
def test_delta_of_the_lazy_family_is_read():
    how = Arithmetic(delta_from_o=False)
    found = contract(how, "bfloat16", family="lazy")
    assert found.is_read
    assert "the row sum of P dP" in found.of("dK", "delta")
    assert "from O as it is stored" not in found.of("dK", "delta")


def _kept(made, q, k, scale, *, tile, apart=False, backwards=False):
    """dK added up tile by tile in q's dtype."""
    ds, total = made["dS"].to(q.dtype).float(), torch.zeros_like(k).float()
    firsts = list(range(0, q.shape[2], tile))
    for first in firsts[::-1] if backwards else firsts:
        rows = slice(first, first + tile)
        added = (ds[:, :, rows].mT @ q[:, :, rows].float()) * scale
        total = total + added.to(q.dtype).float() if apart else (total + added).to(q.dtype).float()
    return made | {"dK": total.to(q.dtype)}


@sampled(
    "how, words",
    [
        ({"tile": 32}, "rounded after each 32 query rows, from the first"),
        ({"tile": 16, "backwards": True}, "rounded after each 16 query rows, from the last"),
        ({"tile": 16, "apart": True}, "each 16 query rows rounded alone, from the first"),
    ],
    push=1,
)
def test_the_tile_and_order_of_a_sum_in_16_bits_are_read(how, words):
    found = contract(Arithmetic(), "bfloat16", change=partial(_kept, **how), seqlen=96, head_dim=64)
    assert found.is_read
    assert f"bfloat16, {words}" in found.of("dK", "sums")
    assert all("float32" not in word for word in found.of("dK", "sums"))
    assert (found.of("dV", "sums"), found.of("dQ", "sums")) == (["float32"], ["float32"])


def _last_row_lost(made, q, k, scale):  # noqa: ARG001
    lost = made["dS"].to(q.dtype).float()[:, :, -1:].mT @ q[:, :, -1:].float() * scale
    return made | {"dK": (made["dK"].float() - lost).to(q.dtype)}


def test_of_a_wrong_kernel_none_is_read_and_the_nearest_is_told():
    found = contract(Arithmetic(), "bfloat16", change=_last_row_lost)
    assert not found.is_read
    assert {one.of for one in found.readings if not one.fits} == {"dK"}
    rounded = next(one for one in found.readings if one.of == "dK")
    assert rounded.nearest["dS"].startswith("bfloat16")
    assert 0 < rounded.differing < rounded.elements
    assert found.of("dK", "dS") == []


@pytest.mark.nightly
def test_pytorchs_flash_attention_keeps_dk_in_16_bits():
    """Tiles of 64 rows to N = 767, and of 256 from there on, as its source says."""
    target = find_target("sdpa-flash")
    for length, tile in ((512, 64), (1024, 256)):
        case = case_of("softmax", pattern="dyadic", dtype="bfloat16", batch=1, heads=1, seqlen=length, head_dim=64)
        found = contract_of(target, case)
        assert found.is_read
        for name in ("dK", "dV"):
            assert found.of(name, "sums") == [f"bfloat16, rounded after each {tile} query rows, from the first"]
