import pytest
import torch

from gradprobe.cuda import load
from gradprobe.model.failures import TargetFailure
from tests.cuda.written import Watch, watched

pytestmark = pytest.mark.gpu

SOURCE = """
#include <cuda_fp16.h>
#include "scaled.cuh"
typedef long long index_t;
using number = float;

extern "C" __global__ void all_types(
    float* __restrict__ out, const __half* half_in, const int* flags, index_t n, number a, double b, unsigned c, bool d,
    size_t e, short f
) {
    const index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float tensors = i < n ? scaled(__half2float(half_in[i])) + (flags ? flags[i] : 0) : 0.0f;
    if (i < n) out[i] = tensors + a + (float)b + c + (d ? 1000 : 0) + e + f;
}
template <int TIMES, class T>
__global__ void times(T* out) {
    out[threadIdx.x] *= TIMES * FACTOR;
}
"""
LAUNCHED = """
#include <cuda_runtime.h>
struct Problem { const float* in; float* out; float by; int n; };
template <int TIMES> __global__ void times(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] *= TIMES;
}
__global__ void add(Problem p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.out[i] += p.in[i] * p.by;
}
cudaError_t thrice(const float* in, float* out, float by, int n, cudaStream_t stream) {
    float* own;
    cudaError_t failed = cudaMalloc(&own, n * sizeof(float));
    if (failed != cudaSuccess) return failed;
    cudaMemsetAsync(own, 0, n * sizeof(float), stream);
    add<<<(n + 31) / 32, 32, 0, stream>>>({in, own, by, n});
    times<3><<<(n + 31) / 32, 32, 0, stream>>>(own, n);
    cudaMemcpyAsync(out, own, n * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    return cudaFree(own);
}
"""
ONCE = {"FACTOR": 1}
HEADER = "__device__ float scaled(float x) { return 2.0f * x; }\n"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "scaled.cuh").write_text(HEADER)
    (tmp_path / "my.cu").write_text(SOURCE)
    return tmp_path / "my.cu"


def test_every_type_of_number_and_a_null_pointer_arrive_as_they_are(source):
    kernels = load(source, defines={"FACTOR": 1})
    flags = torch.arange(100, device="cuda", dtype=torch.int32)
    values = flags.half()
    for given in (flags, None):
        out = torch.empty(100, device="cuda")
        kernels.all_types(4, 32, 0, out, values, given, 100, 0.5, 0.25, 7, True, 1 << 20, -3)
        expected = (
            2 * values.float() + (0 if given is None else flags) + 0.75 + 1007 + (1 << 20) - 3
        )
        assert torch.equal(out, expected)


def test_an_instance_of_a_template_is_compiled_when_it_is_named(source):
    kernels = load(source, defines={"FACTOR": 5})
    cases = ("times<3, float>", torch.float32, 15), ("times<2, int>", torch.int32, 10)
    for name, dtype, factor in cases:
        out = torch.arange(32, device="cuda", dtype=dtype)
        kernels[name](1, 32, 0, out)
        assert torch.equal(out, factor * torch.arange(32, device="cuda", dtype=dtype))


def test_a_launch_goes_to_torchs_current_stream(source):
    kernels, stream = load(source, defines={"FACTOR": 2}), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out = torch.ones(32, device="cuda")
        torch.cuda._sleep(10_000_000)
        out.fill_(3.0)
        kernels["times<1, float>"](1, 32, 0, out)
    stream.synchronize()
    assert torch.equal(out, torch.full((32,), 6.0, device="cuda"))


def test_an_error_has_the_files_own_line(source):
    source.write_text(SOURCE.replace("out[i] = tensors + a", "out[i] = nothing_known + a"))
    words = r"my\.cu does not compile for the GPU: my\.cu:13: .*nothing_known"
    kernel, out = load(source, defines=ONCE).all_types, torch.empty(1, device="cuda")
    with pytest.raises(TargetFailure, match=words):
        kernel(1, 32, 0, out, None, None, 0, 0.0, 0.0, 0, False, 0, 0)


def test_too_much_shared_memory_is_said(source):
    words = "1,000,000 bytes of shared memory a block, more than this GPU has"
    kernel, out = load(source, defines=ONCE)["times<1, float>"], torch.ones(32, device="cuda")
    with pytest.raises(TargetFailure, match=words):
        kernel(1, 32, 1_000_000, out)


def test_host_code_launches_on_a_gpu(tmp_path):
    (tmp_path / "my.cu").write_text(LAUNCHED)
    values, out = torch.arange(100.0, device="cuda"), torch.zeros(100, device="cuda")
    with watched(Watch()) as watch:
        load(tmp_path / "my.cu").thrice(values, out, 0.5, 100)
    assert torch.equal(out, values * 1.5)
    started = [(each.entry.name, each.backend) for each in watch.of.started]
    assert started == [("add", "cuda"), ("times<3>", "cuda")]
