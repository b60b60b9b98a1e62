"""What cannot be run is a TargetFailure whose sentence names the subject, and the way out where there is one."""

from __future__ import annotations

import pytest
import torch

from gradprobe.cuda import load
from gradprobe.model.failures import TargetFailure
from gradprobe.model.memory_finding import BARRIER, RACE
from tests.cuda.written import Watch, at, clean, findings, loaded, watched

SOURCE = r"""
#include <cuda_fp16.h>
#include <assert.h>

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
    [
        ((OUT, HALVES, 1), "kernel numbers of my.cu takes 7 arguments, got 3"),
        (
            (OUT, OUT, 1, True, 1.0, 1, 1),
            "parameter 'in' is half*, got a tensor of torch.float32",
        ),
        ((1.0, HALVES, 1, True, 1.0, 1, 1), "parameter 'out' is float*, got 1.0"),
        ((OUT, HALVES, 1.5, True, 1.0, 1, 1), "parameter 'n' is int, got 1.5"),
        ((OUT, HALVES, 1 << 31, True, 1.0, 1, 1), "parameter 'n' is int, got 2147483648"),
        ((OUT, HALVES, 1, 2, 1.0, 1, 1), "parameter 'is_causal'"),
        ((OUT, HALVES, 1, True, 10**400, 1, 1), "parameter 'scale'"),
        ((OUT, HALVES, 1, True, 1e60, 1, 1), "parameter 'scale'"),
        ((OUT, HALVES, 1, True, 1.0, 256, 1), "parameter 'small' is unsigned char, got 256"),
        ((OUT, HALVES, 1, True, 1.0, 1, -1), "parameter 'u' is unsigned, got -1"),
    ],
)
def test_arguments_that_do_not_fit(module, arguments, words):
    error = failure(module.numbers, 1, 1, 0, *arguments)
    assert "numbers" in str(error)
    assert words in str(error)


def test_numbers_of_numpy_and_infinities_fit(module):
    import numpy as np

    out = torch.zeros(1)
    numbers = (np.int64(4), np.bool_(True), np.float32(0.5), np.uint8(2), 0)
    clean(module, "numbers", 1, 1, 0, out, None, *numbers)
    assert out.item() == 7.5
    clean(module, "numbers", 1, 1, 0, out, None, 1, False, float("inf"), 2, 0)
    assert out.item() == float("inf")
    clean(module, "numbers", 1, 1, 0, out, None, 1, False, 3, 2, (1 << 32) - 1)
    wide = torch.zeros(1, dtype=torch.int64)
    clean(module, "longs", 1, 1, 0, wide, -(1 << 63))
    assert wide.item() == -(1 << 63)


def test_wrong_arguments_name_the_way_out(module):
    assert "it takes: out, in, n, is_causal" in failure(module.numbers, 1, 1, 0).way_out
    assert "a tensor of its type or None" in failure(module.longs, 1, 1, 0, 7, 7).way_out
    by_value = failure(module.by_value, 1, 1, 0, OUT, 7)
    assert "parameter 'sizes' is Sizes, got 7" in str(by_value)
    assert "a function of the file's host code" in by_value.way_out


def test_tensors_that_are_not_on_the_cpu(module):
    meta = torch.zeros(8, device="meta")
    error = failure(module.longs, 1, 1, 0, meta.long(), 1)
    assert "kernel longs of my.cu got tensors on meta" in str(error)
    assert "move them to one device" in error.way_out
    assert "cpu and meta" in str(
        failure(module.numbers, 1, 1, 0, OUT, meta.half(), 1, True, 1.0, 1, 1)
    )


def test_kernels_that_are_not_there(module):
    assert hasattr(module, "numbers")
    assert not hasattr(module, "nothing")
    error = failure(lambda: module.nothing)
    assert "my.cu has no kernel 'nothing'" in str(error)
    assert "numbers" in error.way_out
    assert "many" in error.way_out
    error = failure(lambda: module.many)
    assert 'module["many<...>"]' in error.way_out
    assert "no kernel 'numbers<3>'" in str(failure(lambda: module["numbers<3>"]))
    assert "my.cu does not compile for the CPU: what is called" in str(
        failure(module["many<float>"], 1, 1, 0, OUT)
    )
    clean(module, "many<3>", 1, 8, 0, OUT)


def test_sizes(module):
    assert "1,025 threads a block; 1,024 fit" in str(failure(module["many<1>"], 1, 1025, 0, OUT))
    for grid, block in ((0, 1), ((1, 0), 1), ((1, 1, 1, 1), 1), ((), 1), (1, (0,))):
        error = failure(module["many<1>"], grid, block, 0, OUT)
        assert "must be 1 to 3 numbers above 0" in str(error)
    assert "500,000 bytes of shared memory" in str(failure(module.dynamic, 1, 1, 500_000, OUT))
    assert "-4 bytes of shared memory" in str(failure(module.dynamic, 1, 1, -4, OUT))
    clean(module, "dynamic", 1, 1, 227 << 10, OUT)


def test_a_thread_that_returned_before_a_barrier(module):
    error = failure(module.returned_early, 2, 8, 0, OUT, 5)
    assert (
        "returned_early: thread (0, 0, 0) of block (0, 0, 0) waits at the barrier my.cu:"
        in str(error)
    )
    assert "early-barrier" in str(error)
    assert "thread (5, 0, 0) of block (0, 0, 0) has ended" in str(error)
    clean(module, "returned_early", 1, 8, 0, OUT, 8)


def test_threads_at_two_barriers(module):
    found = findings(module, "elsewhere", 1, 8, 0, OUT)
    (barrier,) = found
    assert barrier.kind == BARRIER
    assert at(barrier.now, module, "if-barrier")
    assert at(barrier.before, module, "else-barrier")
    assert (barrier.now.thread, barrier.before.thread) == ((0, 0, 0), (2, 0, 0))
    clean(module, "unrolled", 1, 40, 0, torch.zeros(40))


def test_a_warp_barrier_that_half_a_warp_reaches(module):
    error = failure(module.warp_apart, 1, 32, 0, torch.zeros(32))
    assert "warp-apart" in str(error)
    assert "thread (16, 0, 0) of block (0, 0, 0) waits at" in str(error)


def test_asserts_and_traps_do_not_end_the_process(module):
    assert "asserts: assert(n == 3) at my.cu:" in str(failure(module.asserts, 1, 1, 0, 2))
    clean(module, "asserts", 1, 1, 0, 3)
    with watched(Watch()) as watch, pytest.raises(TargetFailure, match=r"traps: __trap\(\)"):
        module.traps(1, 2, 0, OUT)
    assert [finding.kind for finding in watch.findings] == [RACE]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("out[0] = undefined_name;", "my.cu:3: 'undefined_name' was not declared"),
        ("out[0] = 1.0f", "my.cu:3: expected ';'"),
        ("missing(out);", "undefined reference to `missing(float*)'"),
        ('asm volatile("mov.u32 %0, %laneid;" : "=r"(x));', "my.cu:3: inline PTX"),
        ("other<<<1, 2>>>(out);", "my.cu:3: a launch <<<...>>> in a kernel"),
        ("nvcuda::wmma::fragment<> f;", "my.cu:3: matrix instructions (wmma)"),
    ],
)
def test_sources_that_do_not_compile(tmp_path, line, words):
    source = (
        f"__device__ void missing(float*);\n__global__ void k(float* out) {{\n    {line}\n}}\n"
    )
    error = failure(loaded(tmp_path, source).k, 1, 1, 0, OUT)
    assert "my.cu" in str(error)
    assert words in str(error)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("mma.h", "matrix instructions of mma.h"),
        ("cooperative_groups.h", "cooperative groups"),
        ("cuda_fp8.h", "8-bit floating point"),
        ("cuda_pipeline.h", "asynchronous copies"),
        ("nothing.cuh", "my.cu:1: nothing.cuh"),
    ],
)
def test_headers_that_are_not_there(tmp_path, header, words):
    kernels = loaded(tmp_path, f"#include <{header}>\n__global__ void k(float* out) {{}}\n")
    assert words in str(failure(kernels.k, 1, 1, 0, OUT))


def test_words_in_comments_and_strings_are_no_launch(tmp_path):
    source = (
        '// a<<<1, 2>>>(); asm("")\n/* wmma:: */\n__global__ void k(float* out) {\n'
        "    const char* s = \"<<< asm(\";\n    char quote = '\"'; out[0] = s[0] + (quote == '\"');\n}\n"
    )
    out = torch.zeros(1)
    clean(loaded(tmp_path, source), "k", 1, 1, 0, out)
    assert out.item() == ord("<") + 1


def test_files_and_macros(tmp_path):
    with pytest.raises(TargetFailure, match="cannot read the CUDA source") as caught:
        load(tmp_path / "none.cu")
    assert caught.value.way_out
    (tmp_path / "binary.cu").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetFailure, match=r"cannot read the CUDA source .*binary\.cu"):
        load(tmp_path / "binary.cu")


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    error = failure(loaded(tmp_path, "__global__ void k(int n) {}\n").k, 1, 1, 0, 1)
    assert "there is no g++ on the PATH" in str(error)
    assert "apt install g++" in error.way_out


def test_a_compiler_that_is_not_gnus(tmp_path, monkeypatch):
    other = tmp_path / "clang++"
    other.write_text("#!/bin/sh\necho 'clang version 19'\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    error = failure(loaded(tmp_path, "__global__ void k(int n) {}\n").k, 1, 1, 0, 1)
    assert "clang version 19" in str(error)
    assert "CXX" in error.way_out


def test_a_folder_where_nothing_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADPROBE_CACHE_DIR", str(tmp_path / "file"))
    out = torch.zeros(1)
    clean(loaded(tmp_path, "__global__ void k(float* out) { out[0] = 1; }\n"), "k", 1, 1, 0, out)
    assert out.item() == 1
