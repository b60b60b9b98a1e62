"""What kernels did to memory on the CPU, and lanes exchanged: each fault with its lines, and no other."""

import pytest
import torch

from gradprobe.frontends import Launches
from gradprobe.inputs.memory import UnwrittenElements
from gradprobe.model.failures import KernelStopped, TargetFailure
from gradprobe.model.memory_finding import OUTSIDE, RACE, SHUFFLE, UNWRITTEN
from tests.cuda.written import Watch, at, clean, findings, loaded, watched

SOURCE = r"""
#include <cuda_fp16.h>

__global__ void write_write(float* out, int is_right) {
    __shared__ float cell[8];
    if (threadIdx.x == 3) cell[5] = 1.0f;  // ww-3
    if (is_right) __syncthreads();
    if (threadIdx.x == 7) cell[5] = 2.0f;  // ww-7
    __syncthreads();
    if (threadIdx.x == 0) out[0] = cell[5];
}
__global__ void halves_and_word(half* out) {
    __shared__ half near[64];
    if (threadIdx.x == 0) near[7] = __float2half(1.0f);  // word-half
    if (threadIdx.x == 1) *(half2*)&near[6] = __floats2half2_rn(1.0f, 2.0f);  // word-half2
    __syncthreads();
    if (threadIdx.x == 0) out[0] = near[7];
}
__global__ void atomics(float* out, int* ints) {
    atomicAdd(&out[0], 1.0f);
    atomicMax(&ints[1], int(threadIdx.x));
    atomicAdd(&ints[1], 1);
}
__global__ void atomic_and_plain(float* out) {
    if (threadIdx.x == 1) atomicAdd(&out[3], 1.0f);  // plain-atomic
    if (threadIdx.x == 2) out[3] = 1.0f;  // plain-write
}
__global__ void read_at(float* out, const float* in, int at) { out[0] = in[at]; }  // read-at
__global__ void write_at(float* out, int at) {
    if (threadIdx.x == 1) out[at] = 1.0f;  // write-at
}
__global__ void next_array(float* out, int at) {
    __shared__ float first[32 * 32];
    __shared__ float second[32 * 32];
    second[threadIdx.x] = 0.0f;
    first[threadIdx.x] = 0.0f;
    __syncthreads();
    out[threadIdx.x] = first[at];  // next-array
    out[threadIdx.x] += second[0];
}
__global__ void behind_dynamic(float* out, int at) {
    extern __shared__ float room[];
    room[threadIdx.x] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 2) room[at] = 2.0f;  // behind-dynamic
    out[threadIdx.x] = room[threadIdx.x];
}
__global__ void never_written(float* out) {
    __shared__ float some[32];
    if (threadIdx.x != 9) some[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = some[threadIdx.x];  // never-written
}
__global__ void copy(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }  // copy
__global__ void copied(float* out, const float* in, int n) {
    __shared__ float taken[32];
    if (threadIdx.x == 0) memcpy(taken, in, n * sizeof(float));  // copied
    __syncthreads();
    out[threadIdx.x] = taken[threadIdx.x];
}
__global__ void by_float4(float* out, const float* in) {
    float4 four = *reinterpret_cast<const float4*>(in);  // float4-load
    *reinterpret_cast<float4*>(out) = four;  // float4-store
}
__device__ float of_half(__half x) { return __half2float(x); }
__device__ float of_half2(__half2 x) { return __half2float(x.x) + __half2float(x.y); }
__global__ void by_value(float* out, const __half* in, int at) {
    *out = of_half(in[0]) + of_half2(*reinterpret_cast<const __half2*>(in));
    if (at >= 8) *out += of_half(in[at]);  // half-by-value
    if (at < 0) *out += of_half2(*reinterpret_cast<const __half2*>(in + at));  // half2-by-value
}
__global__ void matmul(float* c, const float* a, const float* b, int n) {
    __shared__ float left[16][17], right[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 16) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
__global__ void reduce(float* out, const float* in, int n) {
    extern __shared__ float room[];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[blockIdx.x * n + i];
    room[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) { out[blockIdx.x] = room[0]; atomicAdd(&out[gridDim.x], room[0]); }
}
__global__ void reduce_by_warps(float* out, const float* in) {
    __shared__ float sums[32];
    float sum = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int by = 16; by; by >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0.0f;
        for (int by = 16; by; by >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}
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
__global__ void fours(float4* out, int differs) {
    out[0] = make_float4(1.0f, 2.0f, threadIdx.x == differs ? 4.0f : 3.0f, 0.0f);  // fours
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("memory"), SOURCE)


def zeros(size):
    return lambda: torch.zeros(size)


def part(size, every, dtype=torch.float32):
    return lambda: torch.ones(size, dtype=dtype)[every]


HALF, WHOLE = torch.float16, 0xFFFFFFFF
HALVES, APART = part(16, slice(4, 12), HALF), part(16, slice(0, 16, 2))
# A kernel, its threads and arguments; the kind of what is found, where, and the lines of the access and the one before.
FOUND = [
    ("write_write", 8, (zeros(1), 0), RACE, "cell [5]", "ww-7", "ww-3"),
    ("atomic_and_plain", 4, (zeros(4),), RACE, "out [3]", "plain-write", "plain-atomic"),
    ("halves_and_word", 2, (part(1, slice(1), HALF),), RACE, "near [7]", "word-half2", "word-half"),
    ("signs", 32, (zeros(1),), RACE, "out [0]", "signs", "signs"),
    ("fours", 32, (zeros(4), 3), RACE, "out [2]", "fours", "fours"),
    ("never_written", 32, (zeros(32),), UNWRITTEN, "some [9]", "never-written", ""),
    ("copied", 32, (zeros(32), part(32, slice(16)), 32), OUTSIDE, "elements after its end", "copied", ""),
    ("by_value", 1, (zeros(1), HALVES, 8), OUTSIDE, "in 1 element after its end", "half-by-value", ""),
    ("read_at", 1, (zeros(1), part(10, slice(2, 6)), 5), OUTSIDE, "in 2 elements after its end", "read-at", ""),
    ("write_at", 2, (part(10, slice(2, 6)), -1), OUTSIDE, "out 1 element before its start", "write-at", ""),
    ("left_out", 32, (zeros(32),), SHUFFLE, "lanes 16-23 called with the mask 0x0000ffff, which leaves out who calls",
     "left-out", ""),
    ("down", 24, (zeros(24), (1 << 24) - 1, 16, 32), SHUFFLE, "lanes 8-23 read lanes outside the mask 0x00ffffff",
     "down", ""),
    ("from", 20, (zeros(20), WHOLE, 25, 32), SHUFFLE, "lanes 0-19 read lane 25, where no thread runs", "", ""),
    ("sum_of_rows", 32, (zeros(4), zeros(32), 20), SHUFFLE, "where no thread runs", "sum-of-rows", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "threads", "given", "kind", "where", "now", "before"), FOUND,
    ids=[f"{row[0]}-{row[4]}" for row in FOUND],
)  # fmt: skip
def test_a_fault_is_told_once_with_its_kind_place_and_lines(
    module, kernel, threads, given, kind, where, now, before
):
    arguments = [each() if callable(each) else each for each in given]
    (found,) = findings(module, kernel, 1, threads, 0, *arguments)
    assert (found.kind, found.kernel) == (kind, kernel)
    assert f"{found.array or ''} {found.where}".strip().endswith(where)
    assert not now or at(found.now, module, now)
    assert at(found.before, module, before) if before else found.before is None


def test_a_race_says_who_accesses_what_and_how_and_a_barrier_between_is_none(module):
    (race,) = findings(module, "atomic_and_plain", 1, 4, 0, torch.zeros(4))
    assert race.sentence == (
        "atomic_and_plain: race on out[3]: thread (2, 0, 0) of block (0, 0, 0) writes it at "
        f"{race.now.place}, thread (1, 0, 0) of block (0, 0, 0) changes atomically it at "
        f"{race.before.place}, with no barrier between"
    )
    clean(module, "write_write", 1, 8, 0, torch.zeros(1), 1)
    with pytest.warns(RuntimeWarning, match="race on shared cell"):  # outside a watch
        module.write_write(1, 8, 0, torch.zeros(1), 0)


@pytest.mark.parametrize("far", [1 << 20, -(1 << 30)])
def test_memory_that_is_nobodys_stops_the_kernel(module, far):
    with (
        watched(Watch()) as watch,
        pytest.raises(TargetFailure, match=r"read_at.*outside.*my\.cu:"),
    ):
        module.read_at(1, 1, 0, torch.zeros(1), torch.zeros(4), far)
    assert not watch.findings
    with watched(Watch()), pytest.raises(TargetFailure, match="read_at.*my.cu"):
        module.read_at(1, 1, 0, torch.zeros(1), None, 0)
    clean(module, "copy", 1, 4, 0, torch.zeros(4), torch.zeros(4))


def test_shared_arrays_end_where_they_are_declared_to_and_where_the_launch_says(module):
    for element in (32 * 32, -1):
        told = findings(module, "next_array", 1, 32, 0, torch.zeros(32), element)
        assert {found.kind for found in told} == {OUTSIDE}
        assert all(at(found.now, module, "next-array") for found in told)
    clean(module, "next_array", 1, 32, 0, torch.zeros(32), 31)
    clean(module, "behind_dynamic", 1, 32, 33 * 4, torch.zeros(32), 32)
    told = findings(module, "behind_dynamic", 1, 32, 32 * 4, torch.zeros(32), 32)
    (wrote,) = (one for one in told if (one.kind, one.now.how) == (OUTSIDE, "write"))
    assert "writes outside shared room, 1 element after its end" in wrote.sentence


def test_allocated_memory_has_no_value_before_it_is_stored_to(module):
    empty, out = torch.empty(4, 2), torch.empty(8)
    unwritten = UnwrittenElements()
    unwritten.allocated(empty)
    unwritten.allocated(out)
    with watched(Watch(Launches(unwritten=unwritten))) as watch:
        module.copy(1, 8, 0, out, empty)
        module.copy(1, 8, 0, torch.zeros(8), out)  # the kernel has stored to it
        unwritten.written(empty[:3])
        module.copy(1, 6, 0, torch.zeros(8), empty)
        module.copy(1, 8, 0, torch.zeros(8), empty)
    told = [(found.kind, found.where, found.count) for found in watch.findings]
    assert told == [(UNWRITTEN, "[0, 0]", 8), (UNWRITTEN, "[3, 0]", 2)]


@pytest.mark.parametrize("seed", [0, 7])
def test_a_right_matmul_and_right_reductions_have_no_finding(module, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 48, 48, generator=generator)
    c = torch.full((48, 48), float("nan"))
    clean(module, "matmul", (3, 3), (16, 16), 0, c, a, b, 48, seed=seed)
    torch.testing.assert_close(c, a @ b)
    rows, out = torch.randn(3, 100, generator=generator), torch.zeros(4)
    clean(module, "reduce", 3, 64, 64 * 4, out, rows, 100, seed=seed)
    torch.testing.assert_close(out, torch.cat([rows.sum(1), rows.sum()[None]]))
    clean(module, "reduce_by_warps", 3, 96, 0, out, rows := torch.randn(3, 96), seed=seed)
    torch.testing.assert_close(out[:3], rows.sum(1))
    total, ints = torch.zeros(1), torch.zeros(2, dtype=torch.int32)
    clean(module, "atomics", 4, 40, 0, total, ints, seed=seed)
    assert total.item() == 160
    clean(module, "copied", 1, 32, 0, out := torch.zeros(32), values := torch.arange(32.0), 32)
    assert torch.equal(out, values)


@pytest.mark.parametrize(
    ("starts", "words"), [((0, 3), "reads in[0] by a type wider"), ((1, 0), "writes out[0] by a type wider")]
)  # fmt: skip
def test_a_vector_load_off_its_alignment_stops_the_kernel_at_the_line(module, starts, words):
    out, given = (torch.zeros(64)[start:] for start in starts)
    with watched(Watch()), pytest.raises(KernelStopped) as stopped:
        module.by_float4(1, 1, 0, out, given)
    assert words in str(stopped.value)
    assert f"float4-{'store' if starts[0] else 'load'}" in str(stopped.value)
    clean(module, "by_float4", 1, 1, 0, torch.zeros(4), torch.zeros(4))


@pytest.mark.parametrize(
    ("kernel", "threads", "by", "width"),
    [("down", 32, 5, 8), ("up", 24, 3, 32), ("across", 32, 31, 32), ("from", 24, 23, 32), ("from", 24, 9, 8),
     ("down", 16, 8, 16), ("across", 48, 15, 32)],
)  # fmt: skip
def test_reads_of_lanes_that_are_there_and_of_none_are_right(module, kernel, threads, by, width):
    mask = WHOLE if kernel != "down" else (1 << threads) - 1
    clean(module, kernel, 1, threads, 0, torch.zeros(threads), mask, by, width)


@pytest.mark.parametrize(
    ("kernel", "threads", "right", "wrong"),
    [("lanes", 96, 0.0, 1.0), ("everyone", 64, -1, 31), ("fours", 32, -1, 3)],
)
def test_stores_of_one_value_are_right_and_of_several_race(
    module, kernel, threads, right, wrong
):
    out = torch.zeros(96)
    clean(module, kernel, 1, threads, 0, out, right)
    (race,) = findings(module, kernel, 1, threads, 0, out, wrong)
    assert (race.kind, at(race.now, module, kernel)) == (RACE, True)
