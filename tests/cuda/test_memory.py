"""What kernels did to memory on the CPU, and lanes exchanged: each fault with its lines, and no other."""

from __future__ import annotations

import pytest
import torch

from gradprobe.frontends import Launches
from gradprobe.frontends.cuda.watch import EQUAL
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
__global__ void one_thread(float* out) {
    __shared__ float mine[32];
    for (int i = 0; i < 4; ++i) { mine[threadIdx.x] = i; out[threadIdx.x] = mine[threadIdx.x]; out[threadIdx.x] += 1; }
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
__global__ void two_halves(half* out) {
    __shared__ half near[64];
    near[threadIdx.x] = __float2half(threadIdx.x);
    out[threadIdx.x] = near[threadIdx.x];
}
__global__ void halves_and_word(half* out) {
    __shared__ half near[64];
    if (threadIdx.x == 0) near[7] = __float2half(1.0f);  // word-half
    if (threadIdx.x == 1) *(half2*)&near[6] = __floats2half2_rn(1.0f, 2.0f);  // word-half2
    __syncthreads();
    if (threadIdx.x == 0) out[0] = near[7];
}
__global__ void shuffled(float* out) {
    __shared__ float lane;
    if (threadIdx.x == 0) lane = 1.0f;  // shuffle-write
    float got = __shfl_sync(0xffffffffu, 2.0f, 0);
    if (threadIdx.x == 1) out[0] = lane + got;  // shuffle-read
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
__global__ void added_to_nothing(float* out) {
    __shared__ float sum;
    atomicAdd(&sum, 1.0f);  // added-to-nothing
    __syncthreads();
    out[0] = 0.0f;
}
__global__ void copy(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }  // copy
__global__ void copied(float* out, const float* in, int n) {
    __shared__ float taken[32];
    if (threadIdx.x == 0) memcpy(taken, in, n * sizeof(float));  // copied
    __syncthreads();
    out[threadIdx.x] = taken[threadIdx.x];
}
__global__ void by_fours(float* out, const float* in) {
    *(float4*)out = *(const float4*)in;  // by-fours
}
__global__ void by_float4(float* out, const float* in) {
    float4 four = *reinterpret_cast<const float4*>(in);  // float4-load
    *reinterpret_cast<float4*>(out) = four;  // float4-store
}
__global__ void by_half2(float* out, const __half* in) {
    *out = __half2float(reinterpret_cast<const __half2*>(in)->y);
    __half2 two = *reinterpret_cast<const __half2*>(in);  // half2-load
    *out += __half2float(two.x);
}
__device__ float of_half(__half x) { return __half2float(x); }
__device__ float of_half2(__half2 x) { return __half2float(x.x) + __half2float(x.y); }
__global__ void by_value(float* out, const __half* in, int at) {
    *out = of_half(in[0]) + of_half2(*reinterpret_cast<const __half2*>(in));
    if (at >= 8) *out += of_half(in[at]);  // half-by-value
    if (at < 0) *out += of_half2(*reinterpret_cast<const __half2*>(in + at));  // half2-by-value
}
__global__ void twice_outside(float* out, const float* in) {
    for (int i = 2; i < 500000000; i += 299999997) out[threadIdx.x] += in[i];  // twice-outside
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
__global__ void second_value(float* out) {
    __shared__ float cell;
    if (threadIdx.x < 2) cell = 1.0f;  // second-equal
    if (threadIdx.x == 1) cell = 2.0f;  // second-other
    __syncthreads();
    out[threadIdx.x] = cell;
}
__global__ void then_races(float* out) {
    __shared__ float first, second;
    first = 1.0f;
    second = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = first + second;
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
    return loaded(tmp_path_factory.mktemp("memory"), SOURCE)


def one(module, kernel, *launch, **options):
    found = findings(module, kernel, *launch, **options)
    assert len(found) == 1, [finding.sentence for finding in found]
    return found[0]


def test_two_writes_of_a_shared_element_race(module):
    out = torch.zeros(1)
    race = one(module, "write_write", 1, 8, 0, out, 0)
    assert (race.kind, race.kernel, race.array, race.where) == (
        RACE,
        "write_write",
        "cell",
        "[5]",
    )
    assert (race.is_shared, race.count) == (True, 1)
    assert (race.now.thread, race.before.thread) == ((7, 0, 0), (3, 0, 0))
    assert race.now.how == race.before.how == "write"
    assert at(race.now, module, "ww-7")
    assert at(race.before, module, "ww-3")
    clean(module, "write_write", 1, 8, 0, out, 1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_thread_races_with_itself_and_no_atomic_with_another(module, seed):
    clean(module, "one_thread", 1, 32, 0, torch.zeros(32), seed=seed)
    out, ints = torch.zeros(1), torch.zeros(2, dtype=torch.int32)
    clean(module, "atomics", 4, 40, 0, out, ints, seed=seed)
    assert out.item() == 160
    clean(module, "two_halves", 1, 64, 0, torch.zeros(64, dtype=torch.float16), seed=seed)


def test_an_atomic_races_with_a_plain_access(module):
    race = one(module, "atomic_and_plain", 1, 4, 0, torch.zeros(4))
    assert at(race.before, module, "plain-atomic")
    assert at(race.now, module, "plain-write")
    assert race.sentence == (
        "atomic_and_plain: race on out[3]: thread (2, 0, 0) of block (0, 0, 0) writes it at "
        f"{race.now.place}, thread (1, 0, 0) of block (0, 0, 0) changes atomically it at "
        f"{race.before.place}, with no barrier between"
    )


def test_half_a_word_races_with_the_word(module):
    race = one(module, "halves_and_word", 1, 2, 0, torch.zeros(1, dtype=torch.float16))
    assert (race.kind, race.array, race.where) == (RACE, "near", "[7]")
    assert at(race.before, module, "word-half")
    assert at(race.now, module, "word-half2")


def test_a_shuffle_is_no_barrier_for_memory(module):
    race = one(module, "shuffled", 1, 32, 0, torch.zeros(1))
    assert (race.kind, race.array, race.where) == (RACE, "lane", "")
    assert at(race.before, module, "shuffle-write")
    assert at(race.now, module, "shuffle-read")


@pytest.mark.parametrize(
    ("start", "at_element", "where"),
    [
        (slice(2, 6), 4, "1 element after its end"),
        (slice(2, 6), 5, "2 elements after its end"),
        (slice(2, 6), -1, "1 element before its start"),
        (slice(1, 8, 2), 1, "1 element past [0], in a gap of it"),
        (slice(1, 8, 2), 3, "1 element past [1], in a gap of it"),
    ],
)
def test_reads_and_writes_outside_a_view(module, start, at_element, where):
    whole = torch.zeros(10)
    outside = one(module, "read_at", 1, 1, 0, torch.zeros(1), whole[start], at_element)
    assert (outside.kind, outside.array, outside.where) == (OUTSIDE, "in", where)
    assert at(outside.now, module, "read-at")
    assert outside.before is None
    outside = one(module, "write_at", 1, 2, 0, whole[start], at_element)
    assert (outside.kind, outside.array, outside.where) == (OUTSIDE, "out", where)
    assert outside.now.thread == (1, 0, 0)
    assert outside.now.how == "write"
    assert at(outside.now, module, "write-at")


def test_another_tensor_of_the_storage_may_be_touched(module):
    whole = torch.arange(10.0)
    out = whole[8:9]
    clean(module, "read_at", 1, 1, 0, out, whole[:4], 8)
    assert out.item() == 8
    assert one(module, "read_at", 1, 1, 0, out, whole[:4], 7).array in ("in", "out")


@pytest.mark.parametrize("far", [1 << 20, 1 << 30, -(1 << 30)])
def test_memory_that_is_nobodys_stops_the_kernel(module, far):
    with watched(Watch()) as watch, pytest.raises(TargetFailure) as caught:
        module.read_at(1, 1, 0, torch.zeros(1), torch.zeros(4), far)
    assert "read_at" in str(caught.value)
    assert "my.cu:" in str(caught.value)
    assert "outside" in str(caught.value)
    assert not watch.findings
    clean(module, "copy", 1, 4, 0, torch.zeros(4), torch.zeros(4))


def test_a_null_pointer_stops_the_kernel(module):
    with watched(Watch()), pytest.raises(TargetFailure, match="read_at.*my.cu"):
        module.read_at(1, 1, 0, torch.zeros(1), None, 0)


def test_what_was_found_before_the_kernel_stopped_is_kept(module):
    strided = torch.zeros(12)[::4]
    with (
        watched(Watch()) as watch,
        pytest.raises(TargetFailure, match=r"after its end.*my.cu:\d+") as caught,
    ):
        module.twice_outside(1, 1, 0, torch.zeros(4), strided)
    (between,) = watch.findings
    assert between.where == "2 elements past [0], in a gap of it"
    assert between.count == 1
    assert "in a gap" not in str(caught.value)


@pytest.mark.parametrize("element", [32 * 32, 32 * 32 + 31, -1])
def test_the_next_shared_array_is_outside(module, element):
    told = findings(module, "next_array", 1, 32, 0, torch.zeros(32), element)
    assert {finding.kind for finding in told} == {OUTSIDE}
    assert [
        f.sentence
        for f in told
        if f.array not in ("first", "second") or "next-array" not in f.sentence
    ] == []
    clean(module, "next_array", 1, 32, 0, torch.zeros(32), 31)


def test_dynamic_shared_memory_ends_where_the_launch_says(module):
    clean(module, "behind_dynamic", 1, 32, 33 * 4, torch.zeros(32), 32)
    told = findings(module, "behind_dynamic", 1, 32, 32 * 4, torch.zeros(32), 32)
    (wrote,) = (
        finding for finding in told if finding.kind == OUTSIDE and finding.now.how == "write"
    )
    assert (
        "thread (2, 0, 0) of block (0, 0, 0) writes outside shared room, 1 element after its end"
        in wrote.sentence
    )
    assert "behind-dynamic" in wrote.sentence


def test_shared_memory_has_no_value_before_it_is_written(module):
    out = torch.zeros(32)
    (unwritten,) = findings(module, "never_written", 1, 32, 0, out)
    assert (unwritten.kind, unwritten.array, unwritten.where) == (UNWRITTEN, "some", "[9]")
    assert unwritten.now.thread == (9, 0, 0)
    assert at(unwritten.now, module, "never-written")
    assert torch.isnan(out[9])
    assert "which nothing has written" in unwritten.sentence


def test_an_atomic_reads_what_it_changes(module):
    unwritten = one(module, "added_to_nothing", 1, 1, 0, torch.zeros(1))
    assert (unwritten.kind, unwritten.array, unwritten.count) == (UNWRITTEN, "sum", 1)
    assert at(unwritten.now, module, "added-to-nothing")


def test_allocated_memory_has_no_value_before_it_is_stored_to(module):
    empty, out = torch.empty(4, 2), torch.empty(8)
    unwritten = UnwrittenElements()
    unwritten.allocated(empty)
    unwritten.allocated(out)
    with watched(Watch(Launches(unwritten=unwritten))) as watch:
        module.copy(1, 8, 0, out, empty)
        (found,) = watch.findings
        assert (found.kind, found.array, found.where, found.count) == (
            UNWRITTEN,
            "in",
            "[0, 0]",
            8,
        )
        assert at(found.now, module, "copy")
        module.copy(1, 8, 0, torch.zeros(8), out)  # the kernel has stored to it
        assert len(watch.findings) == 1
        unwritten.written(empty[:3])
        module.copy(1, 6, 0, torch.zeros(8), empty)
        assert len(watch.findings) == 1
        module.copy(1, 8, 0, torch.zeros(8), empty)
        assert [(each.where, each.count) for each in watch.findings[1:]] == [("[3, 0]", 2)]


def test_two_tensors_of_one_storage_are_without_values_each_and_a_narrower_write_gives_them_some(
    module,
):
    packed, out, unwritten = torch.empty(16), torch.zeros(8), UnwrittenElements()
    first, second = packed[:8], packed[8:]
    for tensor in (first, second):
        unwritten.allocated(tensor)
    unwritten.written(second.view(torch.bfloat16))
    with watched(Watch(Launches(unwritten=unwritten))) as watch:
        module.copy(1, 8, 0, out, second)
        assert watch.findings == []
        module.copy(1, 8, 0, out, first)
    assert [(finding.kind, finding.count) for finding in watch.findings] == [(UNWRITTEN, 8)]


def test_what_memcpy_reads_and_writes_is_watched(module):
    values, out = torch.arange(32.0), torch.zeros(32)
    clean(module, "copied", 1, 32, 0, out, values, 32)
    assert torch.equal(out, values)
    found = findings(module, "copied", 1, 32, 0, out, values[:16], 32)
    assert [(finding.kind, finding.array) for finding in found] == [(OUTSIDE, "in")]
    assert at(found[0].now, module, "copied")


@pytest.mark.parametrize(("at_element", "mark"), [(8, "half-by-value"), (-4, "half2-by-value")])
def test_what_a_function_takes_by_value_is_read(module, at_element, mark):
    given = torch.ones(16, dtype=torch.float16)[4:12]
    outside = one(module, "by_value", 1, 1, 0, torch.zeros(1), given, at_element)
    assert (outside.kind, outside.array, outside.now.how) == (OUTSIDE, "in", "read")
    assert at(outside.now, module, mark)


def test_an_access_that_begins_inside_is_told_where_it_leaves(module):
    out, whole = torch.zeros(4), torch.zeros(16)
    between = one(module, "by_fours", 1, 1, 0, out, whole[::2])
    assert (between.array, between.where) == ("in", "1 element past [0], in a gap of it")
    behind = one(module, "by_fours", 1, 1, 0, out, whole[:3])
    assert (behind.array, behind.where) == ("in", "1 element after its end")
    with (
        watched(Watch()),
        pytest.raises(TargetFailure, match="outside in, 1 element after its end, at .*by-fours"),
    ):
        module.by_fours(1, 1, 0, out, torch.zeros(2))


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


def test_a_finding_outside_a_watch_is_a_warning(module):
    with pytest.warns(RuntimeWarning, match="race on shared cell"):
        module.write_write(1, 8, 0, torch.zeros(1), 0)


@pytest.mark.parametrize(
    ("kernel", "dtypes", "starts", "words"),
    [
        ("by_float4", (torch.float32, torch.float32), (0, 3), "reads in[0] by a type wider"),
        ("by_float4", (torch.float32, torch.float32), (1, 0), "writes out[0] by a type wider"),
        ("by_half2", (torch.float32, torch.float16), (0, 1), "reads in[0] by a type wider"),
    ],
)
def test_a_vector_load_off_its_alignment_stops_the_kernel_and_names_the_line(
    module, kernel, dtypes, starts, words
):
    out, given = (
        torch.zeros(64, dtype=dtype)[start:] for dtype, start in zip(dtypes, starts, strict=True)
    )
    with watched(Watch()), pytest.raises(KernelStopped) as stopped:
        module[kernel](1, 1, 0, out, given)
    assert words in str(stopped.value)
    assert f"{kernel.removeprefix('by_')}-{'store' if starts[0] else 'load'}" in str(
        stopped.value
    )
    clean(module, kernel, 1, 1, 0, torch.zeros(4), torch.zeros(4, dtype=dtypes[1]))


WHOLE = 0xFFFFFFFF


def shuffle(module, kernel, threads, *arguments):
    found = one(module, kernel, 1, threads, 0, *arguments)
    assert found.kind == SHUFFLE
    return found


def test_a_read_of_lanes_outside_the_mask_names_them_and_its_line(module):
    out = torch.zeros(24)
    found = shuffle(module, "down", 24, out, (1 << 24) - 1, 16, 32)
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
        in shuffle(module, "from", 20, torch.zeros(20), WHOLE, 25, 32).where
    )
    assert (
        "lane 8 calls" in shuffle(module, "up", 32, torch.zeros(32), WHOLE ^ 1 << 8, 0, 32).where
    )


def test_a_mask_that_leaves_out_who_calls(module):
    out = torch.zeros(32)
    found = shuffle(module, "left_out", 32, out)
    assert found.where == "lanes 16-23 call with the mask 0x0000ffff, which leaves out who calls"
    assert at(found.now, module, "left-out")
    assert out[:16].tolist() == [lane ^ 1 for lane in range(16)]


def test_threads_that_have_ended_hold_up_no_warp(module):
    out, values = torch.zeros(4), torch.arange(-1.0, 31)
    found = shuffle(module, "sum_of_rows", 32, out, values, 20)
    assert "where no thread runs" in found.where
    assert at(found.now, module, "sum-of-rows")
    assert out[1:].tolist() == [1, 0, 1]
    clean(module, "sum_of_rows", 1, 32, 0, out, values, 32)
    assert out.tolist() == [values.sum(), 1, 0, 1]


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


def test_a_second_value_of_a_thread_that_stored_the_same_before_is_a_race(module):
    race = one(module, "second_value", 1, 32, 0, torch.zeros(32))
    assert race.kind == RACE
    assert at(race.now, module, "second-other")
    assert at(race.before, module, "second-equal")


def test_equal_stores_hide_no_race_behind_them(module):
    watch = launch(module, "then_races", 1, 64, torch.zeros(64))
    assert [(race.kind, race.array) for race in watch.findings] == [(RACE, "second")]
    assert [stores.array for stores in watch.equal_stores] == ["first"]


def test_values_are_compared_by_their_bits(module):
    assert [race.kind for race in findings(module, "signs", 1, 32, 0, torch.ones(1))] == [RACE]


@pytest.mark.parametrize(("differs", "kinds"), [(-1, []), (3, [RACE])])
def test_each_element_of_a_wide_store_is_compared(module, differs, kinds):
    out = torch.zeros(4)
    found = findings(module, "fours", 1, 32, 0, out, differs)
    assert [race.kind for race in found] == kinds
    assert [race.where for race in found] == ["[2]"] * len(kinds)
