"""What cannot be run, would end a process or never ends is told with its line, and the way out where there is one."""

import os
import signal
import threading

import numpy as np
import pytest
import torch

from gradprobe.model.failures import KernelStopped, TargetFailure
from gradprobe.model.memory_finding import BARRIER, RACE
from gradprobe.processes.child import WHERE
from tests.cuda.written import Watch, at, clean, findings, loaded, watched

SOURCE = r"""
#include <cuda_fp16.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct Sizes { int m, n; };
__global__ void numbers(float* out, const half* in, int n, bool is_causal, float scale, unsigned char small,
                        unsigned u) {
    out[0] = n + is_causal + scale + small + u;
}
__global__ void longs(long long* out, long long n) { out[0] = n; }
__global__ void by_value(float* out, Sizes sizes) { out[0] = sizes.m; }
template <int N> __global__ void many(float* out) { out[threadIdx.x] = N; }
__global__ void dynamic(float* out) { extern __shared__ float room[]; room[0] = 1; out[0] = room[0]; }
__global__ void returned_early(float* out, int n) {
    if (threadIdx.x >= n) return;
    out[threadIdx.x] = 1.0f;
    __syncthreads();  // early-barrier
    out[threadIdx.x] = 2.0f;
}
__global__ void elsewhere(float* out) {
    if (threadIdx.x < 2) __syncthreads();  // if-barrier
    else __syncthreads();  // else-barrier
    out[threadIdx.x] = 1.0f;
}
__global__ void warp_apart(float* out) {
    if (threadIdx.x < 16) __syncwarp();  // warp-apart
    else __syncthreads();
    out[threadIdx.x] = 1.0f;
}
__global__ void unrolled(float* out) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) { out[threadIdx.x] += i; __syncthreads(); }
}
__global__ void asserts(int n) { assert(n == 3); }  // asserts
__global__ void traps(float* out) {
    out[0] = threadIdx.x;  // traps-race
    if (threadIdx.x == 1) __trap();
}
__global__ void divides(int* out, int n) { out[0] = out[1] / n; }  // divides
__device__ int deeper(volatile int* out, int n) {
    volatile int room[64];
    room[n % 64] = out[0];
    return deeper(out, n + 1) + room[3];  // deeper
}
__global__ void recurses(int* out, int n) { out[0] = deeper(out, n); }
__global__ void aborts(int* out, int n) { if (n == 0) abort(); }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("errors"), SOURCE)


def failure(call, *arguments) -> TargetFailure:
    with watched(Watch()), pytest.raises(TargetFailure) as caught:
        call(*arguments)
    return caught.value


OUT, HALVES = torch.zeros(8), torch.zeros(8, dtype=torch.float16)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((OUT, HALVES, 1), "kernel numbers of my.cu takes 7 arguments, got 3"),
     ((OUT, OUT, 1, True, 1.0, 1, 1), "parameter 'in' is half*, got a tensor of torch.float32"),
     ((1.0, HALVES, 1, True, 1.0, 1, 1), "parameter 'out' is float*, got 1.0"),
     ((OUT, HALVES, 1.5, True, 1.0, 1, 1), "parameter 'n' is int, got 1.5"),
     ((OUT, HALVES, 1 << 31, True, 1.0, 1, 1), "parameter 'n' is int, got 2147483648"),
     ((OUT, HALVES, 1, 2, 1.0, 1, 1), "parameter 'is_causal'"),
     ((OUT, HALVES, 1, True, 10**400, 1, 1), "parameter 'scale'"),
     ((OUT, HALVES, 1, True, 1e60, 1, 1), "parameter 'scale'"),
     ((OUT, HALVES, 1, True, 1.0, 1, -1), "parameter 'u' is unsigned, got -1")],
)  # fmt: skip
def test_arguments_that_do_not_fit(module, arguments, words):
    assert words in str(failure(module.numbers, 1, 1, 0, *arguments))


def test_numbers_of_numpy_and_infinities_fit(module):
    out, wide = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    numbers = (np.int64(4), np.bool_(True), np.float32(0.5), np.uint8(2), 0)
    clean(module, "numbers", 1, 1, 0, out, None, *numbers)
    assert out.item() == 7.5
    clean(module, "numbers", 1, 1, 0, out, None, 1, False, float("inf"), 2, (1 << 32) - 1)
    assert out.item() == float("inf")
    clean(module, "longs", 1, 1, 0, wide, -(1 << 63))
    assert wide.item() == -(1 << 63)


def test_wrong_arguments_name_the_way_out(module):
    assert "it takes: out, in, n, is_causal" in failure(module.numbers, 1, 1, 0).way_out
    assert "a tensor of its type or None" in failure(module.longs, 1, 1, 0, 7, 7).way_out
    by_value = failure(module.by_value, 1, 1, 0, OUT, 7)
    assert "parameter 'sizes' is Sizes, got 7" in str(by_value)
    assert "by a function of the file" in by_value.way_out


def test_kernels_that_are_not_there(module):
    assert not hasattr(module, "nothing")
    error = failure(lambda: module.nothing)
    assert "my.cu has no kernel 'nothing'" in str(error)
    assert "numbers" in error.way_out
    assert 'module["many<...>"]' in failure(lambda: module.many).way_out
    words = "my.cu does not compile for the CPU: what is called"
    assert words in str(failure(module["many<float>"], 1, 1, 0, OUT))
    clean(module, "many<3>", 1, 8, 0, OUT)


def test_sizes(module):
    assert "1,025 threads a block; 1,024 fit" in str(failure(module["many<1>"], 1, 1025, 0, OUT))
    for grid, block in ((0, 1), ((1, 1, 1, 1), 1), ((), 1), (1, (0,))):
        error = failure(module["many<1>"], grid, block, 0, OUT)
        assert "takes 1 to 3 sizes above 0" in str(error)
    assert "500,000 bytes of shared memory" in str(failure(module.dynamic, 1, 1, 500_000, OUT))
    assert "-4 bytes of shared memory" in str(failure(module.dynamic, 1, 1, -4, OUT))
    clean(module, "dynamic", 1, 1, 227 << 10, OUT)


def test_a_thread_that_returned_before_a_barrier(module):
    said = str(failure(module.returned_early, 2, 8, 0, OUT, 5))
    waits = "returned_early: thread (0, 0, 0) of block (0, 0, 0) waits at the barrier my.cu:"
    assert all(words in said for words in (waits, "early-barrier"))
    assert "thread (5, 0, 0) of block (0, 0, 0) has ended" in said
    clean(module, "returned_early", 1, 8, 0, OUT, 8)
    said = str(failure(module.warp_apart, 1, 32, 0, torch.zeros(32)))
    assert "warp-apart" in said
    assert "thread (16, 0, 0) of block (0, 0, 0) waits at" in said


def test_threads_at_two_barriers(module):
    (barrier,) = findings(module, "elsewhere", 1, 8, 0, OUT)
    assert barrier.kind == BARRIER
    assert at(barrier.now, module, "if-barrier")
    assert at(barrier.before, module, "else-barrier")
    clean(module, "unrolled", 1, 40, 0, torch.zeros(40))


def test_asserts_and_traps_do_not_end_the_process(module):
    assert "asserts: assert(n == 3) at my.cu:" in str(failure(module.asserts, 1, 1, 0, 2))
    clean(module, "asserts", 1, 1, 0, 3)
    with watched(Watch()) as watch, pytest.raises(TargetFailure, match=r"traps: __trap\(\)"):
        module.traps(1, 2, 0, OUT)
    assert [finding.kind for finding in watch.findings] == [RACE]


@pytest.mark.parametrize(
    ("line", "words"),
    [("out[0] = undefined_name;", "my.cu:3: 'undefined_name' was not declared"),
     ("out[0] = 1.0f", "my.cu:3: expected ';'"),
     ("missing(out);", "undefined reference to `missing(float*)'"),
     ('asm volatile("mov.u32 %0, %laneid;" : "=r"(x));', "my.cu:3: inline PTX"),
     ("other<<<1, 2>>>(out);", "my.cu:3: a launch <<<...>>> in a kernel"),
     ("nvcuda::wmma::fragment<> f;", "my.cu:3: matrix instructions (wmma)"),
     ("throw 3;", "my.cu:3: exception handling disabled"),
     ("}\n#include <mma.h>\nvoid f() {", "matrix instructions of mma.h"),
     ("}\n#include <cooperative_groups.h>\nvoid f() {", "cooperative groups"),
     ("}\n#include <cuda_fp8.h>\nvoid f() {", "8-bit floating point"),
     ("}\n#include <cuda_pipeline.h>\nvoid f() {", "asynchronous copies"),
     ("}\n#include <nothing.cuh>\nvoid f() {", "my.cu:4: nothing.cuh")],
)  # fmt: skip
def test_sources_that_do_not_compile(tmp_path, line, words):
    kernel = (
        f"__device__ void missing(float*);\n__global__ void k(float* out) {{\n    {line}\n}}\n"
    )
    assert words in str(failure(loaded(tmp_path, kernel).k, 1, 1, 0, OUT))


def test_no_compiler_and_one_that_is_not_gnus(tmp_path, monkeypatch):
    kernel, other = loaded(tmp_path, "__global__ void k(int n) {}\n").k, tmp_path / "clang++"
    other.write_text("#!/bin/sh\necho 'clang version 19'\n")
    other.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("CXX", str(other))
        assert "clang version 19" in str(failure(kernel, 1, 1, 0, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    error = failure(kernel, 1, 1, 0, 1)
    assert "there is no g++ on the PATH" in str(error)
    assert "apt install g++" in error.way_out


@pytest.mark.parametrize(
    ("kernel", "words"),
    [("divides", "divides: thread (0, 0, 0) of block (0, 0, 0) is stopped by SIGFPE at my.cu:"),
     ("divides", "`__global__ void divides"), ("recurses", "is stopped by SIGSEGV"),
     ("aborts", "aborts: thread (0, 0, 0) of block (0, 0, 0) is stopped by SIGABRT")],
)  # fmt: skip
def test_what_a_cpu_ends_a_program_for_is_told_with_thread_and_line(module, kernel, words):
    with pytest.raises(KernelStopped) as failed:
        module[kernel](1, 2, 0, torch.ones(4, dtype=torch.int32), 0)
    assert words in str(failed.value)
    out = torch.tensor([0, 7, 0, 0], dtype=torch.int32)
    module.divides(1, 1, 0, out, 2)  # and the process lives on
    assert out[0] == 3


@pytest.mark.parametrize(
    "body", ["while (n)\n        n = n * 3 | 1;", "while (n)\n        __syncthreads();"]
)
def test_a_signal_stops_a_kernel_that_does_not_end(tmp_path, body):
    kernel = loaded(
        tmp_path, f"__global__ void spin(int* out, int n) {{\n    {body}\n    out[0] = n;\n}}\n"
    ).spin
    out = torch.ones(1, dtype=torch.int32)
    kernel(1, 1, 0, out, 0)
    threading.Timer(0.2, os.kill, (os.getpid(), WHERE)).start()
    with pytest.raises(
        KernelStopped,
        match=r"spin: thread \(0, 0, 0\) of block \(0, 0, 0\) has not ended at my.cu:[23] ",
    ):
        kernel(1, 1, 0, out, 1)
    assert signal.getsignal(WHERE) == signal.SIG_DFL
