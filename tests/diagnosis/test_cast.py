"""Where something is cast to fewer bits: the very call in a kernel, or the line of the wrapper that allocates it."""

import pytest

from gradprobe.diagnosis.lines import cast_at

# Read and never called.
tl = torch = None


def dkdv_kernel(p, ds, do, q, dv, dk):
    dv += tl.dot(p.to(tl.bfloat16), do)
    dk += tl.dot(tl.cast(ds, tl.float16), q)
    return dv.to(tl.float32), dk


def other_names(weights, do, dv):
    dv += tl.dot(weights.half(), do)
    return dv


def wrapper(q):
    delta = torch.empty(q.shape[:3], dtype=torch.bfloat16)
    lse = torch.empty(q.shape[:3]).half()
    return delta, lse


def text(kernels, names, dtype):
    return [
        (where.code[where.column :][: where.length], where.kernel) for where in cast_at(kernels, __file__, names, dtype)
    ]


@pytest.mark.parametrize(
    ("names", "dtype", "expected"),
    [
        (["P"], "bfloat16", [("p.to(tl.bfloat16)", "dkdv_kernel")]),
        (["P", "dS"], "float16", [("tl.cast(ds, tl.float16)", "dkdv_kernel")]),
        (["delta"], "bfloat16", [("torch.empty(q.shape[:3], dtype=torch.bfloat16)", "")]),
        (["LSE"], "float16", [("torch.empty(q.shape[:3]).half()", "")]),
        (["dV"], "float16", []),
        (["delta"], "float16", []),
    ],
)
def test_a_cast_of_an_intermediate_is_found_by_its_usual_names(names, dtype, expected):
    assert text([dkdv_kernel, other_names], names, dtype) == expected
