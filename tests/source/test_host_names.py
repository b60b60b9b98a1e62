import pytest

from gradprobe.source.host_names import (
    narrow_buffers,
    out_of_turn,
    passed_amiss,
    returned_in_turn,
)
from gradprobe.source.kernel_file import KernelFile

_OF = "q_ptr, k_ptr, do_ptr, stride_qh, stride_qm, stride_kh, stride_km, stride_doh, stride_dom"
LAUNCH = f"def f({_OF}):\n    pass\n\ndef launch(q, k, do):\n    f[(1,)]({{}})\n"
CLASS = """
class Attention(Function):
    def forward(ctx, q, k, v, scale):
        lse = torch.empty((2, 3), dtype=DTYPE)
        ctx.save_for_backward(q, k, v, lse)

    def backward(ctx, do):
        KEPT = ctx.saved_tensors
        return RETURNED
"""
RIGHT = {"KEPT": "q, k, v, lse", "RETURNED": "dq, dk, dv, None", "DTYPE": "torch.float32"}


def changes(file, found):
    return [[(file.text[each.start : each.end], each.text) for each in edits] for edits in found]


@pytest.mark.parametrize(("passed", "places"), [
    ("q, k, do, q.stride(0), q.stride(1), k.stride(1), k.stride(0), do.stride(0), do.stride(1)",
     [[("k.stride(1)", "k.stride(0)"), ("k.stride(0)", "k.stride(1)")]]),
    ("do, k, q, q.stride(0), q.stride(1), k.stride(0), k.stride(1), do.stride(0), do.stride(1)",
     [[("do", "q")], [("q", "do")]]),
    ("q, k, do, q.stride(1), q.stride(0), k.stride(1), k.stride(0), do.stride(1), do.stride(0)", []),
])  # fmt: skip
def test_of_each_tensor_what_a_launch_passes_in_its_place(passed, places):
    text = LAUNCH.format(passed)
    for written in (text, text.replace("f[", "Kernels.f[")):
        file = KernelFile("mine.py", written)
        assert changes(file, passed_amiss(file, file.functions[0], {})) == places


@pytest.mark.parametrize(("changed", "turned", "narrow"), [
    ({}, [], []),
    ({"KEPT": "q, v, k, lse"}, [[("v", "k"), ("k", "v")]], []),
    ({"KEPT": "q, q, v, lse"}, [[("q", "k")]], []),
    ({"KEPT": "x, y, z, w"}, [], []),
    ({"RETURNED": "dq, dv, dk, None"}, [[("dv", "dk"), ("dk", "dv")]], []),
    ({"DTYPE": "torch.bfloat16"}, [], [[("torch.bfloat16", "torch.float32")]]),
    ({"DTYPE": "q.dtype"}, [], [[("q.dtype", "torch.float32")]]),
])  # fmt: skip
def test_what_is_unpacked_returned_or_allocated_otherwise(changed, turned, narrow):
    text = CLASS
    for name, value in (RIGHT | changed).items():
        text = text.replace(name, value)
    file = KernelFile("mine.py", text)
    assert changes(file, out_of_turn(file)) == turned
    assert changes(file, narrow_buffers(file)) == narrow


def test_a_pair_that_is_returned_is_exchanged():
    file = KernelFile("mine.py", "def backward(do):\n    return dq, dv, dk\n")
    found = changes(file, returned_in_turn(file, ("dk", "dv")))
    assert found == [[("dk", "dv"), ("dv", "dk")]]
