"""Kernels, parameters and arrays as they are read from a source, held to what the compiler makes of it."""

import pytest

from gradprobe.frontends.cuda.c_types import HALF, written_types
from gradprobe.frontends.cuda.on_cpu.library import library_of
from gradprobe.frontends.cuda.source import compile_errors, read_source
from tests.cuda.written import loaded

SOURCE = r"""// __global__ void commented(int n);
/* __global__ void commented_too(int n) {} extern __shared__ float no_room[]; */
#define STRING "__global__ void in_a_string(int n) { <<< asm("
#define BRACE '{'
#define SAID(x) printf("%s \
    goes on", cudaGetErrorString(x)); exit(1); }
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define KERNEL __global__ void
#if 0
#ifdef NEVER
#endif
__global__ void left_out(int n) { n<<<1, 2>>>(3); }
#else
__global__ void taken(int n) {}
#endif
#ifndef __CUDACC_RTC__
__global__ void of_the_host(int n) { n = nothing; }
int main() { plain<<<1, 2>>>(); }
#endif

extern "C" __global__ void plain(float* out, const int n) { out[0] = n; }
extern "C" {
static __global__ void in_a_block(float* __restrict__ out /* the (result) */, int n /* = 3 */) { out[0] = n; }
}
__global__ __launch_bounds__(32 * (4 + 4), 2) void bounds_first(float *out, int n = 2 + (3)) { out[0] = n; }
__global__
void
__launch_bounds__(sizeof(float) * 8)
bounds_last(
    const float* const __restrict__ in,  // what, is read
    float* out
) {
    extern __shared__ alignas(16) char room[];
    __shared__ alignas(sizeof(float4)) float tile[4][4], second[4];
    out[0] = in[0];
}
static inline __global__ void nothing() { extern __shared__ __align__(16) float4 other_room[]; }
__global__ void declared(int n, float* out);
__global__ void declared(int n, float* out) { out[0] = n; }
__global__ void arrays(float out[], const int sizes[4]) { __shared__ unsigned char bytes[4]; out[0] = sizes[0]; }

template <int N, typename T>
__global__ void valued(T* out, T scale, int (*unused)[N]) { out[0] = N; }
template <
    typename T,
    int N = (4 > 3)
> static __global__ __launch_bounds__(128)
void typed(const T* __restrict__ in, T* __restrict__ out, size_t n) { out[0] = in[0]; }
template <int N, std::enable_if_t<(N > 0), bool> = true>
// between; the two
void __global__ restricted(float* out) {}
template <class T> struct Holder { T value; };
template <class T> __device__ T one(T x) { return x; }
__global__ void behind_a_template(int n) {}
namespace inner { template <typename T> __device__ __forceinline__ T two(T x) { return x; } }
__global__ void last(void) {}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("source"), SOURCE)


def test_kernels_and_their_parameters(module):
    source = module.source
    given = {
        name: " ".join(f"{each.type} {each.name}" for each in source.declared[name].parameters)
        for name in source.kernels()
    }
    assert given == {
        "taken": "int n", "plain": "float* out int n", "in_a_block": "float* out int n",
        "bounds_first": "float* out int n", "bounds_last": "float* in float* out", "nothing": "",
        "declared": "int n float* out", "arrays": "float* out int* sizes", "behind_a_template": "int n", "last": "",
    }  # fmt: skip
    templates = {
        name: one.parameters for name, one in source.declared.items() if one.is_template
    }
    assert {name: [p.type for p in given] for name, given in templates.items()} == {
        "valued": ["T*", "T", templates["valued"][2].type], "typed": ["T*", "T*", "size_t"], "restricted": ["float*"],
    }  # fmt: skip


def test_arrays(module):
    source = module.source
    kernels = ("bounds_last", "nothing", "plain")
    assert [*map(source.dynamic_array_of, kernels)] == ["room", "other_room", "room"]


def test_what_is_left_out_does_not_hinder(module):
    assert not module.source.unsupported_on_a_cpu()
    assert len(library_of(module.source).kernel("plain")[1]) == 2
    assert len(library_of(module.source, "typed<float, 3>").kernel("typed<float, 3>")[1]) == 3


def test_what_is_included_counts(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "near.cuh").write_text('#include "deep/far.cuh"\n')
    (tmp_path / "deep" / "far.cuh").write_text(
        '#include "near.cuh"\nextern __shared__ float far_room[];\n'
    )
    (tmp_path / "my.cu").write_text(
        '#include "near.cuh"\n  #  include <cuda_fp16.h>\n__global__ void k() {}\n'
    )
    source = read_source(tmp_path / "my.cu")
    assert [path.name for path, _ in source.included] == ["far.cuh", "near.cuh"]
    assert source.dynamic_array_of("k") == "far_room"
    assert read_source(tmp_path / "my.cu") is source
    (tmp_path / "deep" / "far.cuh").write_text("#pragma once\n")
    assert read_source(tmp_path / "my.cu") != source
    assert read_source(tmp_path / "my.cu").sha256 == source.sha256


TYPES = """
bool | char | signed char | unsigned char | short int | unsigned short | int | signed | unsigned | int unsigned
long | unsigned long int | long long int | unsigned long long | float | double | size_t | int8_t | uint8_t | int64_t
std::int64_t | const int | int const | index_t | const index_t | real | wide | WORD | FROM_AN_OPTION | once_more
half | __half | nv_bfloat16 | float4 | half2 | float* | const float *__restrict__ | const float* const __restrict__
__nv_bfloat16* | const float4* | void* | bool* | const unsigned long long* | real* | const index_t* | float**
WORD* | uint16_t* | Own* | wide *
"""
KINDS = [kind.strip() for line in TYPES.strip().splitlines() for kind in line.split("|")]
ALIASES = """
#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "aliases.cuh"
typedef unsigned long long wide;
typedef const int index_t;
#define WORD unsigned  short
#define EMPTY
using once_more = real;
struct Own { int a, b, c; };
"""


@pytest.fixture(scope="module")
def every_type(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    (folder / "aliases.cuh").write_text("using real = float;\n")
    kernels = [
        f"__global__ void k{i}({kind} x, {kind} y) {{}}\n" for i, kind in enumerate(KINDS)
    ]
    return loaded(folder, ALIASES + "".join(kernels), FROM_AN_OPTION="double")


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_taken_as_the_compiler_takes_them(every_type, kind):
    name = f"k{KINDS.index(kind)}"
    kernel = every_type[name]
    _, compiled = library_of(kernel.source).kernel(name)
    written = written_types(kernel.source, kernel.function.parameters)
    assert [None if type_ is HALF else type_ for type_ in written] == compiled


LOG = """/kernels/flash.cu(311): error: class "BackwardTiles" has no member "nothing"
                  const float dt = p * (dp - tile.nothing[i]);
                                                  ^

/kernels/flash.cu(320): warning #177-D: variable "unused" was declared but never referenced
/kernels/tiles.cuh(12): catastrophic error: cannot open source file "missing.cuh"
  #include "missing.cuh"

2 errors detected in the compilation of "/kernels/flash.cu".
"""


def test_errors_have_the_files_own_lines_three_at_most_and_warnings_are_left_out():
    assert compile_errors(LOG) == (
        'flash.cu:311: class "BackwardTiles" has no member "nothing"; '
        'tiles.cuh:12: cannot open source file "missing.cuh"'
    )
    without_a_line = "nvrtc: error: invalid value for --gpu-architecture"
    assert compile_errors(f"\n{without_a_line}\n") == without_a_line
    log = "".join(f'a.cu({line}): error: expected a ";"\n' for line in range(1, 8))
    assert compile_errors(log) == "; ".join(f'a.cu:{line}: expected a ";"' for line in (1, 2, 3))
