"""What CUDA kernels compute on the CPU, against torch and numpy."""

import os

import numpy as np
import pytest
import torch

from gradprobe.cuda import load
from gradprobe.frontends import Launches
from tests.cuda.written import Watch, clean, findings, loaded, watched

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#ifndef SCALE
#define SCALE 1
#endif

struct Pair { float first; int second; };
typedef unsigned short bits_t;

extern "C" __global__ void places(int* out) {
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int* own = out + (block * blockDim.x * blockDim.y * blockDim.z + thread) * 12;
    own[0] = threadIdx.x; own[1] = threadIdx.y; own[2] = threadIdx.z;
    own[3] = blockIdx.x; own[4] = blockIdx.y; own[5] = blockIdx.z;
    own[6] = blockDim.x; own[7] = blockDim.y; own[8] = blockDim.z;
    own[9] = gridDim.x; own[10] = gridDim.y; own[11] = gridDim.z;
}
__global__ void transposed(float* __restrict__ out, const float* __restrict__ in) {
    __shared__ alignas(16) float tile[8][9];
    extern __shared__ __align__(16) float room[];
    tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * 8 + threadIdx.x];
    room[threadIdx.y * 8 + threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.y * 8 + threadIdx.x] = tile[threadIdx.x][threadIdx.y] + room[threadIdx.x * 8 + threadIdx.y];
}
__global__ void shuffles(float* out, const float* in, int width) {
    int t = threadIdx.x, n = blockDim.x;
    float x = in[t];
    out[t] = __shfl_sync(0xffffffffu, x, 3, width);
    out[n + t] = __shfl_up_sync(0xffffffffu, x, 2, width);
    out[2 * n + t] = __shfl_down_sync(0xffffffffu, x, 2, width);
    out[3 * n + t] = __shfl_xor_sync(0xffffffffu, x, 1, width);
}
__global__ void ballots(unsigned* out) {
    int t = threadIdx.x;
    unsigned* own = out + t * 5;
    own[0] = __ballot_sync(0xffffffffu, t % 3 == 0);
    own[1] = __any_sync(0xffffffffu, t == 33);
    own[2] = __all_sync(0xffffffffu, t < 32);
    __syncwarp();
    own[3] = __activemask();
    own[4] = t % 32 < 4 ? __ballot_sync(0xfu, t % 2) : 0u;
}
__global__ void atomics(int* i, unsigned* u, float* f, double* d, half* h, __nv_bfloat16* b, unsigned long long* l) {
    int t = threadIdx.x + blockIdx.x * blockDim.x;
    atomicAdd(&i[0], t); atomicMax(&i[1], t * 7 % 31 - 5); atomicMin(&i[2], t * 7 % 31 - 5); atomicSub(&i[3], 1);
    atomicAdd(&u[0], 3u); atomicMax(&u[1], unsigned(t)); atomicOr(&u[2], 1u << t % 32); atomicXor(&u[3], 1u << t % 32);
    atomicInc(&u[4], 6u);
    atomicAdd(&f[0], 0.5f); atomicAdd(&d[0], 0.25); atomicAdd(&h[0], __float2half(0.5f));
    atomicAdd(&b[0], __float2bfloat16(0.5f)); atomicAdd(&l[0], 1ull << 33);
    atomicExch(&f[1], 2.0f);
    // A float maximum by compare and swap.
    int* at = reinterpret_cast<int*>(&f[2]);
    int old = *(volatile int*)at * 0, assumed;
    old = atomicCAS(at, -1, -1);
    do {
        assumed = old;
        if (__int_as_float(assumed) >= t % 13) break;
        old = atomicCAS(at, assumed, __float_as_int(t % 13));
    } while (old != assumed);
}
__global__ void locked(int* lock, float* sum) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence();
        sum[0] += blockIdx.x;
        __threadfence();
        atomicExch(lock, 0);
    }
}
template <int N, typename T = float>
__global__ void __launch_bounds__(64, 2) filled(T* out) { out[threadIdx.x] = T(N); }
__global__ void half_bits(bits_t* out, const float* in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = __half_as_ushort(__float2half(in[i]));
}
__global__ void bfloat_bits(bits_t* out, const float* in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        __nv_bfloat16 b = __float2bfloat16(in[i]);
        memcpy(&out[i], &b, 2);
    }
}
__global__ void values(float* out, const half* h, const nv_bfloat16* b, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        out[i] = __half2float(h[i]); out[n + i] = __bfloat162float(b[i]);
    }
}
__global__ void mathematics(float* out, const float* in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float x = in[i];
        out[i] = expf(x); out[n + i] = __expf(-fabsf(x)); out[2 * n + i] = logf(fabsf(x)); out[3 * n + i] = tanhf(x);
        out[4 * n + i] = rsqrtf(fabsf(x)); out[5 * n + i] = fmaf(x, x, 1.0f); out[6 * n + i] = fmaxf(x, 0.5f);
        out[7 * n + i] = exp2f(x); out[8 * n + i] = sqrtf(fabsf(x)); out[9 * n + i] = floorf(x);
        out[10 * n + i] = __fdividef(1.0f, x); out[11 * n + i] = erff(x); out[12 * n + i] = max(x, 0) + min(x, 2.0);
        out[13 * n + i] = isinf(x) || isnan(x);
    }
}
__global__ void nan_and_the_rest(float* out) {
    out[0] = max(NAN, 1.0f); out[1] = max(1.0f, NAN); out[2] = min(NAN, 1.0f); out[3] = fmaxf(-INFINITY, -CUDART_INF_F);
    out[4] = max(3u, 2); out[5] = __popc(0xf0f0u); out[6] = __clz(1); out[7] = __ffs(8);
    out[8] = __float2int_rn(2.5f); out[9] = max(2ll, 3); out[10] = warpSize; out[11] = __umulhi(1u << 31, 4u);
}
__global__ void scaled(float* out, const float* in, long long stride, bool is_doubled, double by, unsigned char plus) {
    out[threadIdx.x] = in[threadIdx.x * stride] * SCALE * (is_doubled ? 2 : 1) * by + plus;
}
__global__ void shared_struct(float* out) {
    __shared__ Pair pairs[32];
    __shared__ float3 threes[8];
    __shared__ half halves[32];
    pairs[threadIdx.x] = {threadIdx.x * 0.5f, int(threadIdx.x)};
    if (threadIdx.x < 8) threes[threadIdx.x] = make_float3(1, 2, 3);
    halves[threadIdx.x] = __int2half_rn(threadIdx.x);
    __syncthreads();
    Pair other = pairs[31 - threadIdx.x];
    out[threadIdx.x] = other.first + other.second + threes[threadIdx.x % 8].z + __half2float(halves[31 - threadIdx.x]);
}
namespace {
__global__ void hidden_room(float* out) {
    extern __shared__ float hidden_floats[];
    hidden_floats[threadIdx.x] = 2.0f;
    out[threadIdx.x] = hidden_floats[threadIdx.x];
}
}
namespace inner { struct Other {}; }
namespace outer { namespace inner {
__device__ float three() { return 3.0f; }
struct Three { static constexpr int value = 3; };
__global__ void in_a_namespace(float* out) {
    extern __shared__ float inner_floats[];
    inner_floats[threadIdx.x] = three();
    out[threadIdx.x] = inner_floats[threadIdx.x];
}
template <class T> __global__ void of_a_namespace(float* out) { out[threadIdx.x] = T::value; }
} }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("running"), SOURCE)


def test_places_in_three_dimensions(module):
    grid, block = (2, 3, 2), (4, 2, 3)
    out = torch.zeros(12, 24, 12, dtype=torch.int32)
    clean(module, "places", grid, block, 0, out, seed=3)
    for b, own in enumerate(out.tolist()):
        for t, got in enumerate(own):
            thread, at = [t % 4, t // 4 % 2, t // 8], [b % 2, b // 2 % 3, b // 6]
            assert got == [*thread, *at, *block, *grid]


def test_shared_memory_static_and_dynamic(module):
    values, out = torch.arange(64.0).reshape(8, 8), torch.zeros(8, 8)
    clean(module, "transposed", 1, (8, 8), 64 * 4, out, values)
    assert torch.equal(out, values.T + torch.arange(8.0)[:, None])
    line = torch.zeros(32)
    clean(module, "shared_struct", 1, 32, 0, line)
    assert torch.equal(line, torch.arange(31, -1, -1) * 2.5 + 3)


def test_namespaces(module):
    assert module.source.using == "using namespace outer::inner;\n"
    out = torch.zeros(32)
    kernels = {"hidden_room": 2, "in_a_namespace": 3, "of_a_namespace<Three>": 3}
    for kernel, value in kernels.items():
        clean(module, kernel, 1, 32, 32 * 4, out)
        assert out.tolist() == [value] * 32
    found = findings(module, "in_a_namespace", 1, 32, 31 * 4, out)
    assert {(each.kind, each.array) for each in found} == {("outside", "inner_floats")}


@pytest.mark.parametrize(("width", "threads"), [(32, 64), (16, 45), (8, 32)])
def test_shuffles(module, width, threads):
    values, out = torch.randn(threads), torch.zeros(4, threads)
    with watched(Watch(Launches(schedule=width))) as watch:
        module.shuffles(1, threads, 0, out, values, width)
    assert bool(watch.findings) == (threads % 32 > 0)
    for t in range(threads):
        first = t // width * width

        def lane(at, first=first, t=t):
            return values[at] if first <= at < first + width else values[t]

        for got, source in zip(out[:, t], (first + 3, t - 2, t + 2, t ^ 1), strict=True):
            if source < threads:  # of lanes that are not there a GPU gives anything
                assert got == lane(source)


def test_ballots(module):
    out = torch.zeros(40, 5, dtype=torch.int32)
    clean(module, "ballots", 1, 40, 0, out)
    for t, got in enumerate(out.numpy().view(np.uint32)):
        lanes = [other for other in range(40) if other // 32 == t // 32]
        bits = sum(1 << lane % 32 for lane in lanes if lane % 3 == 0)
        present = sum(1 << lane % 32 for lane in lanes)
        some = 0b1010 if t % 32 < 4 else 0
        assert got[[0, 1, 2, 4]].tolist() == [bits, 33 in lanes, t < 32, some]
        assert int(got[3]) & ~present == 0
        assert got[3] >> t % 32 & 1


@pytest.mark.parametrize("seed", [0, 9])
def test_atomics(module, seed):
    i, u = torch.zeros(4, dtype=torch.int32), torch.zeros(5, dtype=torch.uint32)
    f, d = torch.tensor([0, 0, -1.0]), torch.zeros(1, dtype=torch.float64)
    h, b = torch.zeros(1, dtype=torch.float16), torch.zeros(1, dtype=torch.bfloat16)
    wide = torch.zeros(1, dtype=torch.int64)
    with watched(Watch(Launches(schedule=seed))) as watch:
        module.atomics(2, 50, 0, i, u, f, d, h, b, wide)
    assert {finding.now.line.code for finding in watch.findings} <= {
        "int old = *(volatile int*)at * 0, assumed;", "old = atomicCAS(at, assumed, __float_as_int(t % 13));",
        "old = atomicCAS(at, -1, -1);",
    }  # fmt: skip
    mixed = [t * 7 % 31 - 5 for t in range(100)]
    assert i.tolist() == [sum(range(100)), max(mixed), min(0, *mixed), -100]
    assert u.tolist()[:3] == [300, 99, 0xFFFFFFFF]
    assert u.tolist()[3] == sum(1 << k for k in range(32) if len(range(k, 100, 32)) % 2)
    assert u.tolist()[4] == 100 % 7
    assert f.tolist() == [50, 2, 12]
    assert (d.item(), h.item(), b.item(), wide.item()) == (25, 50, 50, 100 << 33)


def test_a_lock_between_blocks(module):
    lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    clean(module, "locked", 5, 40, 0, lock, total, seed=4)
    assert total.item() == 10


def test_sixteen_bits_to_float_for_every_pattern(module):
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    out = torch.zeros(2, 1 << 16)
    halves = (bits.view(torch.float16), bits.view(torch.bfloat16))
    clean(module, "values", 1, 64, 0, out, *halves, 1 << 16)
    for got, dtype in zip(out, (torch.float16, torch.bfloat16), strict=True):
        wanted = bits.view(dtype).float()
        is_nan = wanted.isnan()
        assert torch.equal(got.isnan(), is_nan)
        assert torch.equal(got[~is_nan].view(torch.int32), wanted[~is_nan].view(torch.int32))


def edges() -> torch.Tensor:
    """Each 16-bit value as float32, its neighbours, the ties between them, and what overflows."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = torch.cat([bits.view(torch.float16).float(), bits.view(torch.bfloat16).float()])
    ties = [values.view(torch.int32) + half for half in (0x1000, 0x8000)]
    tiny = torch.arange(-4096, 4097).float() * 2.0**-26
    bits = torch.cat([values.view(torch.int32), *ties, tiny.view(torch.int32)])
    return torch.cat([bits + step for step in (-1, 0, 1)]).view(torch.float32)


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("half_bits", torch.float16), ("bfloat_bits", torch.bfloat16)]
)
def test_float_to_sixteen_bits_at_every_edge(module, kernel, dtype):
    values = edges()
    out = torch.zeros(len(values), dtype=torch.int16)
    clean(module, kernel, 1, 64, 0, out, values, len(values))
    wanted = values.to(dtype)
    is_nan = wanted.isnan()
    assert torch.equal(out.view(dtype).isnan(), is_nan)
    assert torch.equal(out[~is_nan], wanted.view(torch.int16)[~is_nan])


def test_mathematics(module):
    special = torch.tensor([1e-30, -80.0, 80.0, torch.inf, -torch.inf, torch.nan])
    values = torch.cat([torch.linspace(-5, 5, 41), special])
    n, x = len(values), values.double()
    out = torch.zeros(14, n)
    clean(module, "mathematics", 1, 32, 0, out, values, n)
    wanted = (
        x.exp(), (-x.abs()).exp(), x.abs().log(), x.tanh(), x.abs().rsqrt(), x * x + 1,
        torch.where(x.isnan(), 0.5, x.clamp_min(0.5)), x.exp2(), x.abs().sqrt(), x.floor(), 1 / x, x.erf(),
        torch.where(x.isnan(), 2.0, x.clamp_min(0) + x.clamp_max(2)), (x.isinf() | x.isnan()).double(),
    )  # fmt: skip
    for row, (got, right) in enumerate(zip(out, wanted, strict=True)):
        near = {"rtol": 1e-6, "atol": 1e-12, "equal_nan": True, "msg": f"row {row}"}
        torch.testing.assert_close(got, right.float(), **near)
    rest = torch.zeros(12)
    clean(module, "nan_and_the_rest", 1, 1, 0, rest)
    assert rest.tolist() == [1, 1, 1, -torch.inf, 3, 8, 31, 4, 2, 3, 32, 2]


def test_views_and_numbers(module):
    whole = torch.randn(3, 40)
    out = torch.zeros(10)
    clean(module, "scaled", 1, 10, 0, out, whole[1, 5::3], 3, True, 0.5, 255)
    torch.testing.assert_close(out, whole[1, 5:35:3] + 255)
    clean(module, "scaled", 1, 5, 0, out[5:], whole.T[2:], 1, 0, 1, 0)
    assert torch.equal(out[5:], whole.flatten()[2:7])


def test_defines_and_a_changed_header(tmp_path):
    source = (
        "#include <common.h>\n__global__ void k(float* out) { out[0] = common() * SCALE; }\n"
    )
    (tmp_path / "headers").mkdir()
    common = tmp_path / "headers" / "common.h"
    (tmp_path / "my.cu").write_text(source)
    out = torch.zeros(1)
    for number in (1, 2):
        common.write_text(f"__device__ float common() {{ return {number}.0f; }}\n")
        os.utime(common, (0, 0))  # what counts is what it says
        load(tmp_path / "my.cu", defines={"SCALE": 10}, include=[common.parent]).k(1, 1, 0, out)
        assert out.item() == 10 * number
