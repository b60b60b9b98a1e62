"""A .cu file as it stands in an extension of PyTorch: its kernels run."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import run

FILE = r"""#include <torch/extension.h>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(x) TORCH_CHECK(x.is_cuda(), "not on a GPU")
using torch::Tensor;
constexpr int THREADS = 32;

namespace {
__device__ float product(float one, float other) { return one * other; }
int blocks_of(int rows) { return (rows + THREADS - 1) / THREADS; }

template <typename T>
__global__ void delta_kernel(const T* grad, const T* o, T* delta, int rows, int dim) {
    int row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int d = 0; d < dim; ++d) sum += product(grad[row * dim + d], o[row * dim + d]);
    delta[row] = sum;
}

__global__ void unmasked_kernel(const float* grad, const float* o, float* delta, int rows, int dim) {
    int row = blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;
    for (int d = 0; d < dim; ++d) sum += grad[row * dim + d] * o[row * dim + d];
    if (row < rows) delta[row] = sum;
}

template <typename T>
void launched(const T* grad, const T* o, T* delta, int rows, int dim) {
    delta_kernel<T><<<blocks_of(rows), THREADS>>>(grad, o, delta, rows, dim);
}
}  // namespace

Tensor delta(Tensor grad, Tensor o) {
    CHECK(grad);
    auto found = torch::empty({grad.size(0)}, grad.options());
    launched(grad.data_ptr<float>(), o.data_ptr<float>(), found.data_ptr<float>(), grad.size(0), grad.size(1));
    return found;
}

void timed() { for (int i = 0; i < 3; ++i) launched<float>(nullptr, nullptr, nullptr, 0, 0); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("delta", &delta); }

int main() {
    float* rows;
    cudaMalloc(&rows, 64 * sizeof(float));
    timed();
    return 0;
}
"""
TARGETS = """
import torch
import gradprobe.cuda

kernels = gradprobe.cuda.load("delta.cu")

def launch(kernel, do, o):
    do, o = do.contiguous(), o.contiguous()
    delta = do.new_empty(do.shape[:3])
    kernel((-(-delta.numel() // 32),), (32,), 0, do, o, delta, delta.numel(), do.shape[-1])
    return {"delta": delta}

def right(q, k, v, do, *, o):
    return launch(kernels["delta_kernel<float>"], do, o)

def unmasked(q, k, v, do, *, o):
    return launch(kernels["unmasked_kernel"], do, o)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "delta.cu").write_text(FILE)
    (tmp_path / "targets.py").write_text(TARGETS)
    return tmp_path


def test_kernels_beside_host_code_run():
    ran = run("check targets.py:right --runs contiguous --json -")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"]) == (0, "match")


def test_lines_of_a_fault_are_those_of_the_file_with_its_host_code():
    ran = run("check targets.py:unmasked --runs contiguous")
    line = next(
        at for at, text in enumerate(FILE.splitlines(), 1) if "grad[row * dim + d] * o" in text
    )
    assert ran.code == 1
    assert f"delta.cu:{line}" in ran.out


def test_a_launch_in_a_kernel_is_no_host_code_and_refused(folder):
    text = FILE.replace(
        "float sum = 0.0f;",
        "float sum = 0.0f; if (dim < 0) unmasked_kernel<<<1, 1>>>(o, o, delta, 1, 1);",
        1,
    )
    (folder / "delta.cu").write_text(text)
    ran = run("check targets.py:right --runs contiguous")
    assert ran.code == 3
    assert "delta.cu:17: a launch <<<...>>>" in ran.err
