"""Functions of the host that launch kernels, called from Python: templates, memory of their own, errors."""

import pytest
import torch

from gradprobe.frontends import Launches
from gradprobe.model.failures import KernelStopped, TargetFailure
from gradprobe.model.memory_finding import OUTSIDE, UNWRITTEN
from tests.cuda.written import Watch, at, loaded, watched

SOURCE = r"""
#include <cuda_runtime.h>
#include <torch/extension.h>
#include <stdio.h>
struct Problem { const float* in; float* out; int n; float by; };
namespace {
__device__ float product(float one, float other) { return one * other; }
}  // namespace
template <int BLOCK, class T> __global__ void times(T* out, const T* in, int n, T by) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = product(in[i], by);  // times
}
__global__ void add(Problem p) {
    extern __shared__ float room[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    room[threadIdx.x] = i < p.n ? p.in[i] : 0.0f;
    __syncthreads();
    if (i < p.n) p.out[i] += room[threadIdx.x] * p.by;  // add
}
static inline int blocks(int n, int block) { return (n + block - 1) / block; }
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) return e; } while (0)
static cudaError_t doubled(const float* in, float* out, int n, cudaStream_t stream) {
    times<32, float><<<blocks(n, 32), 32, 0, stream>>>(out, in, n, 2);
    return cudaGetLastError();
}
extern "C" cudaError_t twice_and_more(const float* in, float* out, int n, float more, cudaStream_t stream) {
    CHECK(doubled(in, out, n, stream));
    Problem p{in, out, n, more};
    dim3 grid(blocks(n, 16)), block(16);
    CHECK(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 64));
    add<<<grid, block, 16 * sizeof(float), stream>>>(p);
    return cudaGetLastError();
}
cudaError_t through_memory(const float* in, float* out, int n, bool is_set) {
    float* own;
    CHECK(cudaMalloc(&own, n * sizeof(float)));
    if (is_set) CHECK(cudaMemsetAsync(own, 0, n * sizeof(float)));
    add<<<blocks(n, 32), 32, 32 * sizeof(float)>>>({in, own, n, 3.0f});
    CHECK(cudaMemcpy(out, own, n * sizeof(float), cudaMemcpyDeviceToDevice));
    return cudaFree(own);
}
void too_many(float* out) { add<<<1, 2048>>>(Problem{nullptr, out, 1, 1.0f}); }
cudaError_t fails(float* out) { return cudaErrorInvalidValue; }
cudaError_t fails_later(float* out) {
    if (out) return cudaErrorInvalidValue;
    add<<<1, 1>>>(Problem{});
    return cudaSuccess;
}
#define CHECK_GPU(x) TORCH_CHECK(x.is_cuda(), "not on a GPU")
torch::Tensor of_torch(torch::Tensor in) { CHECK_GPU(in); add<<<1, 1>>>(Problem{}); return in; }
void calls_torch(float* out) { of_torch(torch::Tensor()); add<<<1, 1>>>(Problem{}); }
template <class T> void of_any(T* out) { add<<<1, 1>>>(Problem{}); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("of_torch", &of_torch); }
int main() { float* rows; cudaMalloc(&rows, 64 * sizeof(float)); add<<<1, 1>>>(Problem{}); return 0; }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("launchers"), SOURCE)


def test_those_that_launch_and_take_values_of_c_are_found(module):
    found = module.source.launchers
    assert {*found} == {"doubled", "twice_and_more", "through_memory", "too_many", "fails_later"}
    assert found["doubled"].line == 1 + SOURCE[: SOURCE.index("doubled(")].count("\n")
    parameters = found["twice_and_more"].parameters
    assert [one.name for one in parameters if one.is_const] == ["in"]
    types = ["float*", "float*", "int", "float", "cudaStream_t"]
    assert [one.type for one in parameters] == types


def test_a_call_runs_all_that_it_launches(module):
    values, out = torch.randn(50), torch.zeros(50)
    with watched(Watch(Launches(tensors={"given": values}))) as watch:
        module.twice_and_more(values, out, 50, 0.5)
    assert torch.equal(out, values * 2 + values * 0.5)
    assert [launch.entry.name for launch in watch.of.started] == ["times<32, float>", "add"]
    assert (watch.findings, {each.backend for each in watch.of.started}) == ([], {"cuda-on-cpu"})


def test_what_a_kernel_does_wrong_ends_the_call(module):
    with (
        watched(Watch(Launches(tensors={"given": (values := torch.zeros(50))}))) as watch,
        pytest.raises(KernelStopped) as stopped,
    ):
        module.twice_and_more(values, torch.zeros(50), 51, 0.5)
    assert "times<32, float>: thread (18, 0, 0) of block (1, 0, 0) reads outside given" in str(
        stopped.value
    )
    assert len(watch.of.started) == 1


def test_memory_of_its_own_is_watched(module):
    values, out = torch.randn(40), torch.zeros(40)
    with watched(Watch()) as watch:
        module.through_memory(values, out, 40, True)
    assert (torch.equal(out, values * 3), watch.findings) == (True, [])
    with watched(Watch()) as watch:
        module.through_memory(values, out, 40, False)
    (found,) = watch.findings
    assert (found.kind, found.array) == (UNWRITTEN, "allocated_2")
    assert at(found.now, module, "add")


def test_what_lies_beside_an_argument_is_not_its_own(module):
    values, out = torch.zeros(80), torch.zeros(50)
    with watched(Watch()) as watch:
        module.doubled(values[:50:2], out, 25)
    assert {(found.kind, found.array) for found in watch.findings} == {(OUTSIDE, "in")}


ONE = torch.zeros(1)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [("doubled", (ONE, ONE), "doubled of my.cu takes 3 arguments, got 2"),
     ("doubled", (ONE.double(), ONE, 1), "'in' is float*, got a tensor of torch.float64"),
     ("too_many", (ONE,), "kernel add is launched with 2,048 threads a block; 1,024 fit"),
     ("fails_later", (ONE,), "fails_later of my.cu gives the error 1 of CUDA")],
)  # fmt: skip
def test_what_cannot_be_called_is_told(module, name, arguments, words):
    with pytest.raises(TargetFailure) as failed:
        module[name](*arguments)
    assert words in str(failed.value)
