"""The arithmetic of emulated kernels is read as it was written, twice alike; of a wrong kernel none is."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gradprobe.commands.contract_request import Contract, contract_of
from tests.emulated import Arithmetic, case_of, lazy, softmax, target_of
from tests.sampling import sampled


def contract(
    how: Arithmetic, dtype: str, *, seed=0, change=None, family="softmax", **options
) -> Contract:
    shape = {"batch": 1, "heads": 1, "seqlen": 64, "head_dim": 16} | options
    case = case_of(family, pattern="dyadic", dtype=dtype, seed=seed, bias=False, **shape)

    def kernel(q, k, v, do, *, causal=False, scale=None):
        made = softmax(q, k, v, do, how=how, causal=causal, scale=scale)
        made = made if change is None else change(made, q, k, scale)
        return {name: made[name] for name in ("O", "dQ", "dK", "dV")}

    def lazy_kernel(q, k, v, do, *, tau, scale=None):
        return lazy(q, k, v, do, tau=tau, how=how, scale=scale)

    return contract_of(target_of(kernel if family == "softmax" else lazy_kernel, family), case)


def part_of(found: Contract, name: str, part: str) -> list[str]:
    """What is known of a part of a result; [] where it was not read."""
    if name in found.unread:
        return []
    if part == "sums":
        return [found.sums.get(name, "float32")]
    parts = {one.of: one.parts for one in found.roundings}
    return list(parts.get(name, {}).get(part, ()))


KNOWN = {
    "bfloat16": (
        Arithmetic(tensor_core=True, exp2=True),
        {("O", "P"): "bfloat16", ("dV", "P"): "bfloat16", ("dQ", "dS"): "bfloat16, scaled after",
         ("dQ", "delta"): "from O as it is stored", ("dQ", "sums"): "float32"},
    ),
    "float16, from P, folded": (
        Arithmetic(folded=True, delta_from_o=False, backwards=True),
        {("dK", "dS"): "float16, scaled before", ("dV", "P"): "float16", ("dQ", "dS"): "float16, scaled before"},
    ),
    "float32": (Arithmetic(), {}),
    "float32, cut": (Arithmetic(tf32="cut", tensor_core=True), {}),
    "float32, rounded": (Arithmetic(tf32="nearest"), {}),
}  # fmt: skip


@sampled("name", KNOWN, push=2)
def test_what_is_rounded_and_how_dots_multiply_is_read(name):
    how, parts = KNOWN[name]
    found = contract(how, name.partition(",")[0])
    assert found.unread == ()
    assert {key: part_of(found, *key)[0] for key in parts} == parts
    dots = {"float32": "ieee", "float32, cut": "tf32", "float32, rounded": "tf32"}
    assert found.dots == dots.get(name, "")


@pytest.mark.nightly
def test_delta_of_the_lazy_family_is_read():
    how = Arithmetic(delta_from_o=False)
    found = contract(how, "bfloat16", family="lazy")
    assert found.unread == ()
    assert part_of(found, "dK", "delta") == ["the row sum of P dP"]


def _kept(made, q, k, scale, *, tile, backwards=False):
    """dK added up tile by tile in q's dtype."""
    ds, total = made["dS"].to(q.dtype).float(), torch.zeros_like(k).float()
    firsts = list(range(0, q.shape[2], tile))
    for first in firsts[::-1] if backwards else firsts:
        rows = slice(first, first + tile)
        added = (ds[:, :, rows].mT @ q[:, :, rows].float()) * scale
        total = (total + added).to(q.dtype).float()
    return made | {"dK": total.to(q.dtype)}


@sampled(
    "how, words",
    [
        ({"tile": 32}, "rounded after each 32 query rows, from the first"),
        ({"tile": 16, "backwards": True}, "rounded after each 16 query rows, from the last"),
    ],
    push=1,
)
def test_the_tile_and_order_of_a_sum_in_16_bits_are_read(how, words):
    found = contract(
        Arithmetic(), "bfloat16", change=partial(_kept, **how), seqlen=96, head_dim=64
    )
    assert found.unread == ()
    assert f"bfloat16, {words}" in part_of(found, "dK", "sums")
    assert all("float32" not in word for word in part_of(found, "dK", "sums"))
    assert (part_of(found, "dV", "sums"), part_of(found, "dQ", "sums")) == (
        ["float32"],
        ["float32"],
    )


def _last_row_lost(made, q, k, scale):  # noqa: ARG001
    lost = made["dS"].to(q.dtype).float()[:, :, -1:].mT @ q[:, :, -1:].float() * scale
    return made | {"dK": (made["dK"].float() - lost).to(q.dtype)}


def test_of_a_wrong_kernel_none_is_read_and_the_nearest_is_told():
    found = contract(Arithmetic(), "bfloat16", change=_last_row_lost)
    assert found.unread == ("dK",)
    nearest = next(one for one in found.roundings if one.of == "dK")
    assert nearest.parts["dS"][0].startswith("bfloat16")
    assert nearest.left > 2
    assert part_of(found, "dK", "dS") == []
