"""Repeated runs: what differs is told by tiles and atomics, and what is wrong alike in all of them as no noise."""

import json

import pytest

from gradprobe.source.pointers import cuda_atomics, named_after
from tests.cli.command import run

pytestmark = pytest.mark.usefixtures("without_causes")

KERNEL = '''
import itertools
import torch, triton, triton.language as tl

calls = itertools.count()

@triton.jit
def add_tile(pointers, tile):
    tl.atomic_add(pointers, tile)

@triton.jit
def dq_kernel(ds_ptr, k_ptr, dq_ptr, n, L: tl.constexpr, D: tl.constexpr, FLIP: tl.constexpr):
    t = n - 1 - tl.program_id(1) if FLIP else tl.program_id(1)
    i, d, j = tl.arange(0, L), tl.arange(0, D), t * 16 + tl.arange(0, 16)
    ds = tl.load(ds_ptr + tl.program_id(0) * L * L + i[:, None] * L + j[None, :])
    k = tl.load(k_ptr + tl.program_id(0) * L * D + j[:, None] * D + d[None, :])
    place = dq_ptr + tl.program_id(0) * L * D + i[:, None] * D + d[None, :]
    add_tile(place, tl.dot(ds, k, input_precision="ieee"))

def backward(q, k, v, do, *, scale):
    """Its programs run in the other order in every second call, as a GPU's may."""
    call, (batch, heads, length, dim) = next(calls), q.shape
    p = (scale * q @ k.mT).softmax(-1)
    o = p @ v
    ds = scale * p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    dq, dk = torch.zeros(q.shape), ds.mT @ q
    dq_kernel[(batch * heads, length // 16)](ds, k.contiguous(), dq, length // 16, length, dim, call % 2 == 1)
    WRONG
    return {"O": o, "dQ": dq, "dK": dk, "dV": p.mT @ do}
'''
CASE = "--batch 1 --heads 3 --seqlen 64 --head-dim 16 --runs contiguous --no-recover"


def repeated(folder, wrong="pass", more="--repeat 4"):
    (folder / "kernel.py").write_text(KERNEL.replace("WRONG", wrong))
    ran = run(f"check {folder}/kernel.py:backward {CASE} {more} --json {folder}/r.json")
    made, *_ = json.loads((folder / "r.json").read_text())["runs"]
    return " ".join(ran.out.split()), {one["name"]: one for one in made["repeated"]}, made


def test_the_order_of_atomics_is_told_with_its_line_and_what_is_wrong_alike_in_every_run_as_no_noise(
    tmp_path,
):
    words, found, made = repeated(tmp_path, "dk[:, 2] *= 1.5", "--repeat 3")
    assert made["repeats"] == 3
    assert list(found) == ["dQ", "dK"]
    dq, dk = found["dQ"], found["dK"]
    assert (dq["runs"], dq["wrong_in"], dq["tiles"], dq["block"]) == (3, 0, [[0, 1]], 32)
    assert 0 < dq["spread"] < 0.5
    assert 0 < dq["differing"] < dq["total"]
    assert [(at["kernel"], at["code"]) for at in dq["atomics"]] == [
        ("add_tile", "tl.atomic_add(pointers, tile)")
    ]
    assert "heads 0-2, by up to 0.0" in words
    assert "the order of the atomics at kernel.py:9, which is rounding" in words
    told = [dk[name] for name in ("wrong_in", "wrong_heads", "wrong_spread", "differing")]
    assert told == [3, [[0, 2]], 0, 0]
    assert "dK is wrong in head 2 in each of 3 runs, by the same numbers: not noise" in words


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("wrong", "name", "wrong_in", "said"),
    [
        ("dq[:, 2] *= 1.5", "dQ", 4, "dQ is wrong in head 2 in each of 4 runs"),
        ("dk[:, 2] *= 1 + call % 2", "dK", 2, "dK is wrong in 2 of 4 runs only: a race"),
        ("dk[:, 2] *= 2 + call % 2", "dK", 4, "dK is wrong in head 2 in each of 4 runs"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_some_runs_or_by_other_numbers_is_told_as_that(
    wrong, name, wrong_in, said, tmp_path
):
    words, found, _ = repeated(tmp_path, wrong)
    assert found[name]["wrong_in"] == wrong_in
    assert said in words
    assert (
        "dk[:, 2] *= 2" not in wrong or "no atomic was found that adds into it; a race" in words
    )


@pytest.mark.nightly
def test_runs_with_the_same_bits_say_so(tmp_path):
    words, found, made = repeated(tmp_path, "dq = ds @ k", "--repeat 2")
    assert (found, made["repeats"], "2 runs gave the same bits" in words) == ({}, 2, True)


def test_atomics_of_cuda_belong_to_what_their_address_is_named_after():
    text = "// atomicAdd(&dk[0], x);\natomicAdd(&d_q[i * n + d], x);\n  atomicAdd(dv + j, y);\natomicMax(&flag, 1);\n"
    found = [(name, at.line, at.code) for name, at in cuda_atomics("k.cu", text)]
    assert found == [
        ("dQ", 2, "atomicAdd(&d_q[i * n + d], x);"),
        ("dV", 3, "atomicAdd(dv + j, y);"),
        ("", 4, "atomicMax(&flag, 1);"),
    ]
    names = {
        "DQ": "dQ", "p_dK": "dK", "d_bias_ptr": "dBias", "grad_query": "dQ", "k_ptr": "",
        "delta": "delta",
    }  # fmt: skip
    assert {word: named_after(word) for word in names} == names
