"""Stores of one value to one place: right within a warp, a note between warps, and a race where one value differs."""

from __future__ import annotations

import pytest
import torch

from gradprobe.frontends.cuda.watch import EQUAL
from gradprobe.model.memory_finding import RACE
from tests.cuda.written import Watch, at, findings, loaded, watched

SOURCE = r"""
__global__ void lanes(float* out, float by) {
    __shared__ float largest[4];
    float value = 7.0f;
    for (int lanes = 16; lanes; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    largest[threadIdx.x / 32] = value + by * threadIdx.x;  // lanes
    __syncthreads();
    out[threadIdx.x] = largest[threadIdx.x / 32];
}
__global__ void everyone(float* out, int differs) {
    __shared__ float bound;
    bound = threadIdx.x == differs ? 2.0f : 1.0f;  // everyone
    __syncthreads();
    out[threadIdx.x] = bound;
}
__global__ void signs(float* out) {
    if (threadIdx.x < 2) out[0] = threadIdx.x ? -0.0f : 0.0f;  // signs
}
__global__ void blocks(int* length) { length[0] = 40; }  // blocks
__global__ void fours(float4* out, int differs) {
    out[0] = make_float4(1.0f, 2.0f, threadIdx.x == differs ? 4.0f : 3.0f, 0.0f);  // fours
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("equal"), SOURCE)


def launch(module, kernel, grid, block, *arguments):
    with watched(Watch()) as watch:
        module[kernel](grid, block, 0, *arguments)
    return watch


def test_lanes_of_one_warp_that_store_one_value_are_right(module):
    watch = launch(module, "lanes", 1, 96, torch.zeros(96), 0.0)
    assert (watch.findings, watch.equal_stores) == ([], [])


def test_lanes_of_one_warp_that_store_several_values_race(module):
    (race,) = launch(module, "lanes", 1, 96, torch.zeros(96), 1.0).findings
    assert race.kind == RACE
    assert at(race.now, module, "lanes")
    assert race.now.thread[0] // 32 == race.before.thread[0] // 32


def test_one_value_stored_by_several_warps_is_told_and_no_fault(module):
    watch = launch(module, "everyone", 1, 64, torch.zeros(64), -1)
    (stores,) = watch.equal_stores
    assert watch.findings == []
    assert (stores.kind, stores.array, stores.is_shared) == (EQUAL, "bound", True)
    assert at(stores.now, module, "everyone")
    assert "store the same value to shared bound at my.cu:" in stores.sentence


@pytest.mark.parametrize("differs", [0, 31, 32, 63])
def test_one_other_value_among_them_is_a_race(module, differs):
    (race,) = findings(module, "everyone", 1, 64, 0, torch.zeros(64), differs)
    assert (race.kind, race.array) == (RACE, "bound")
    assert differs in (race.now.thread[0], race.before.thread[0] + 1, race.before.thread[0])


def test_values_are_compared_by_their_bits(module):
    assert [race.kind for race in findings(module, "signs", 1, 32, 0, torch.ones(1))] == [RACE]


@pytest.mark.parametrize(("differs", "kinds"), [(-1, []), (3, [RACE])])
def test_each_element_of_a_wide_store_is_compared(module, differs, kinds):
    out = torch.zeros(4)
    found = findings(module, "fours", 1, 32, 0, out, differs)
    assert [race.kind for race in found] == kinds
    assert [race.where for race in found] == ["[2]"] * len(kinds)
