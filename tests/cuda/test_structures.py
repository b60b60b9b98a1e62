"""Structures passed by value: their fields by name, nested, in arrays, as constants of the grid."""

from __future__ import annotations

import ctypes

import pytest
import torch

from gradprobe.cuda import Watch, watched
from gradprobe.cuda.c_types import type_of
from gradprobe.cuda.kernel import compiled_for
from gradprobe.cuda.on_cpu.library import library_of
from gradprobe.cuda.watch import OUTSIDE
from gradprobe.model.failures import TargetFailure
from tests.cuda.written import at, loaded

SOURCE = r"""
#define RANK 3
constexpr int TILES = 2;
using index_t = long long;
typedef struct { float scale; bool is_causal; } Options;
struct Tensor {
    const float* data;
    index_t stride[RANK];
    int size[RANK];
    static constexpr int rank = RANK;
    int at(int i) const { return size[i]; }
};
struct Problem {
    char tag;
    Tensor q, out;
    Options options;
    double tau;
    short tiles[2 * TILES][TILES];
    float4 four;
    unsigned char last;
};
struct Plain { const float *in; float *out; int n, from; };
__global__ void whole(float* out, const Problem p) {
    out[0] = p.tag + p.q.data[p.q.stride[1]] + p.q.stride[2];
    out[1] = p.out.at(2) * p.options.scale + p.options.is_causal;
    out[2] = p.tau + p.tiles[3][1];
    out[3] = p.four.w + p.last;
}
__global__ void constant(const __grid_constant__ Plain p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.out[i] = p.in[p.from + i] * 2.0f;  // constant
}
struct Base { int n; };
struct Derived : Base { int m; };
struct Bits { unsigned low : 3, high : 5; };
__global__ void derived(float* out, Derived d) { out[0] = d.m; }
__global__ void bits(float* out, Bits b) { out[0] = b.high; }
__global__ void vector(float* out, float2 xy, uchar4 four) { out[0] = xy.y + four.z; }
template <class T> struct Of { T one; int more; };
__global__ void of(float* out, Of<double> o) { out[0] = o.one + o.more; }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("structures"), SOURCE)


def tensor(data, first, size):
    return {"data": data, "stride": [first, 5, 7], "size": [size, size + 1, size + 2]}


def problem(data, **changed):
    of_q, of_out = tensor(data, 1, 2), tensor(None, 100, 20)
    tiles = [[1, 2], [3, 4], [5, 6], [7, -8]]
    options = {"scale": 0.5, "is_causal": True}
    plain = {"tag": 9, "q": of_q, "out": of_out, "options": options, "tau": 0.25, "tiles": tiles}
    return {**plain, "four": dict(zip("xyzw", (1.0, 2.0, 3.0, 4.0), strict=True)), "last": 200, **changed}


def test_every_field_arrives(module):
    out = torch.zeros(4)
    module.whole(1, 1, 0, out, problem(torch.arange(10.0)))
    assert out.tolist() == [9 + 5 + 7, 22 * 0.5 + 1, 0.25 - 8, 4 + 200]


@pytest.mark.parametrize("name", ["whole", "constant", "vector"])
def test_sizes_are_those_of_the_compiler(module, name):
    entry = module[name].entry
    taken = compiled_for(entry, library_of).takes(name)
    assert [type_of(entry.unit, one.type).bytes for one in entry.parameters] == [one.bytes for one in taken]


def test_tensors_in_a_structure_are_watched_by_their_fields(module):
    given, out = torch.arange(8.0), torch.zeros(8)
    module.constant(2, 4, 0, {"in": given, "out": out, "n": 8, "from": 0})
    assert torch.equal(out, given * 2)
    with watched(Watch()) as watch:
        wide = torch.arange(16.0)
        module.constant(2, 4, 0, {"in": wide[:8], "out": out, "n": 8, "from": 3})
    (outside,) = watch.findings
    assert (outside.kind, outside.array) == (OUTSIDE, "in")
    assert at(outside.now, module, "constant")


def test_objects_with_attributes_vectors_and_bytes(module):
    class Fields:
        def __init__(self, **fields):
            vars(self).update(fields)

    given, out = torch.arange(8.0), torch.zeros(8)
    module.constant(2, 4, 0, Fields(**{"in": given, "out": out, "n": 8, "from": 0}))
    assert torch.equal(out, given * 2)
    module.vector(1, 1, 0, out, {"x": 1.0, "y": 2.0}, {"x": 0, "y": 0, "z": 7, "w": 0})
    assert out[0] == 9

    class OfDouble(ctypes.Structure):
        _fields_ = (("one", ctypes.c_double), ("more", ctypes.c_int))

    module.of(1, 1, 0, out, OfDouble(1.5, 2))
    assert out[0] == 3.5
    module.bits(1, 1, 0, out, bytes([0b10111000, 0, 0, 0]))
    assert out[0] == 0b10111


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"extra": 1}, "has the fields tag, q, out, options, tau, tiles, four, last, got tag"),
        ({"tiles": [[1, 2]]}, "field 'tiles' has 4 elements"),
        ({"last": 256}, "field 'last' has 1 bytes, and 256 does not fit"),
        ({"options": {"scale": 1.0, "is_causal": 2}}, "field 'is_causal' has 1 bytes, and 2 does not fit"),
        (
            {"q": {"data": torch.zeros(2, dtype=torch.float64), "stride": [1, 1, 1], "size": [1, 1, 1]}},
            "of 4 bytes an elem",
        ),
        ({"q": {"data": torch.zeros(2), "stride": [1, 0.5, 1], "size": [1, 1, 1]}}, "[1] is a whole number, got 0.5"),
    ],
)
def test_what_does_not_fit_is_told_by_its_field(module, changed, words):
    with pytest.raises(TargetFailure) as failed:
        module.whole(1, 1, 0, torch.zeros(4), problem(None, **changed))
    assert "kernel whole: parameter 'p'" in str(failed.value)
    assert words in str(failed.value)


def test_structures_whose_layout_is_not_known_are_given_as_bytes(module):
    with pytest.raises(TargetFailure, match="is a Derived, whose fields are not known here") as failed:
        module.derived(1, 1, 0, torch.zeros(1), {"n": 1, "m": 2})
    assert failed.value.way_out == "pass its bytes"
    with pytest.raises(TargetFailure, match="has 8 bytes, got 4"):
        module.derived(1, 1, 0, torch.zeros(1), bytes(4))
