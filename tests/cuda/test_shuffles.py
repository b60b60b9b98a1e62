"""What lanes of a warp exchange: of lanes that give no value, by masks that leave a caller out, with ended threads."""

from __future__ import annotations

import pytest
import torch

from gradprobe.model.memory_finding import SHUFFLE
from tests.cuda.written import at, clean, findings, loaded

SOURCE = r"""
__global__ void down(float* out, unsigned mask, int by, int width) {
    if (threadIdx.x < __popc(mask)) out[threadIdx.x] = __shfl_down_sync(mask, float(threadIdx.x), by, width);  // down
}
__global__ void up(float* out, unsigned mask, int by, int width) {
    out[threadIdx.x] = __shfl_up_sync(mask, float(threadIdx.x), by, width);
}
__global__ void across(float* out, unsigned mask, int by, int width) {
    out[threadIdx.x] = __shfl_xor_sync(mask, float(threadIdx.x), by, width);
}
__global__ void from(float* out, unsigned mask, int lane, int width) {
    out[threadIdx.x] = __shfl_sync(mask, float(threadIdx.x), lane, width);
}
__global__ void left_out(float* out) {
    if (threadIdx.x < 24) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, float(threadIdx.x), 1);  // left-out
}
__global__ void sum_of_rows(float* out, const float* in, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = in[row];
    int is_any = __any_sync(0xffffffffu, in[row] > 0.0f), are_all = __all_sync(0xffffffffu, in[row] > 0.0f);
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);  // sum-of-rows
    __syncwarp();
    if (threadIdx.x == 0) out[0] = sum, out[1] = is_any, out[2] = are_all, out[3] = __ballot_sync(1u, 1);
}
"""
WHOLE = 0xFFFFFFFF


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("shuffles"), SOURCE)


def one(module, kernel, threads, *arguments):
    (found,) = findings(module, kernel, 1, threads, 0, *arguments)
    assert found.kind == SHUFFLE
    return found


def test_a_read_of_lanes_outside_the_mask_names_them_and_its_line(module):
    out = torch.zeros(24)
    found = one(module, "down", 24, out, (1 << 24) - 1, 16, 32)
    assert found.where == "lanes 8-23 read lanes outside the mask 0x00ffffff"
    assert at(found.now, module, "down")
    assert (found.now.thread, found.now.block, found.before) == ((8, 0, 0), (0, 0, 0), None)
    assert out[:8].tolist() == [*range(16, 24)]
    assert out[8:16].isinf().all()
    assert out[16:].tolist() == [*range(16, 24)]  # beyond the warp a lane keeps its own


@pytest.mark.parametrize(
    ("kernel", "threads", "by", "width"),
    [("down", 32, 16, 32), ("down", 32, 5, 8), ("up", 24, 3, 32), ("across", 32, 31, 32), ("across", 32, 8, 8),
     ("from", 24, 23, 32), ("from", 24, 9, 8), ("down", 16, 8, 16), ("across", 48, 15, 32)],
)  # fmt: skip
def test_reads_of_lanes_that_are_there_and_of_none_are_right(module, kernel, threads, by, width):
    mask = WHOLE if kernel != "down" else (1 << threads) - 1
    clean(module, kernel, 1, threads, 0, torch.zeros(threads), mask, by, width)


def test_each_kind_of_shuffle_is_judged(module):
    assert (
        "lanes 0-19 read lane 25, where no thread runs"
        in one(module, "from", 20, torch.zeros(20), WHOLE, 25, 32).where
    )
    assert "lane 8 calls" in one(module, "up", 32, torch.zeros(32), WHOLE ^ 1 << 8, 0, 32).where


def test_a_mask_that_leaves_out_who_calls(module):
    out = torch.zeros(32)
    found = one(module, "left_out", 32, out)
    assert found.where == "lanes 16-23 call with the mask 0x0000ffff, which leaves out who calls"
    assert at(found.now, module, "left-out")
    assert out[:16].tolist() == [lane ^ 1 for lane in range(16)]


def test_threads_that_have_ended_hold_up_no_warp(module):
    out, values = torch.zeros(4), torch.arange(-1.0, 31)
    found = one(module, "sum_of_rows", 32, out, values, 20)
    assert "where no thread runs" in found.where
    assert at(found.now, module, "sum-of-rows")
    assert out[1:].tolist() == [1, 0, 1]
    clean(module, "sum_of_rows", 1, 32, 0, out, values, 32)
    assert out.tolist() == [values.sum(), 1, 0, 1]
