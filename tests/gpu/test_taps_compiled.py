"""Taps in kernels that are compiled and run on a GPU: what is seen is what the kernel held."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import place
from gradprobe.kernels.triton import lazy
from gradprobe.model.failures import UsageFailure
from gradprobe.runtime.taps import parse_tap, tapped
from gradprobe.runtime.trace import expected_shapes
from tests.cases import lazy_case
from tests.runtime.taps import written
from tests.runtime.taps.test_session import OUTER, assert_close, softmax_inputs, softmax_shapes, softmax_values

pytestmark = pytest.mark.gpu

# The compiler may contract other products and sums with the store than without: a few units of float32's last place.
CONTRACTED = 1e-5


def read(words, shapes, launch):
    with tapped([parse_tap(word) for word in words], shapes, "cuda") as session:
        results = launch()
        torch.cuda.synchronize()
    return session.read(), results


@pytest.mark.parametrize("layout", ["contiguous", "distinct", "expanded"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_taps_of_the_dq_kernel_give_what_it_exports_itself(layout, dtype):
    case = lazy_case(batch=2, heads=3, seqlen=333, head_dim=64, dtype=dtype, seqlens=(333, 200))
    values = {name: value.to("cuda") for name, value in draw(case).items()}
    tensors = place(values, (("all", layout),)).tensors
    exported = lazy.lazy_backward(**tensors, export=True)
    words = [f"{name}=lazy_dq_kernel:{name.lower()}[b,h,offs_m,offs_n]" for name in ("P", "dP", "dS")]
    reading, results = read(words, expected_shapes(case), lambda: lazy.lazy_backward(**tensors))
    for name, value in reading.values.items():
        scale = exported[name].abs().max()
        assert (value - exported[name]).abs().max() <= CONTRACTED * scale, name
    assert set(results) >= {"dQ", "dK", "dV"}
    assert reading.notes == ()


@pytest.mark.parametrize("causal", [False, True])
def test_inner_functions_and_decorated_kernels_are_seen(causal):
    inputs = [tensor.cuda() for tensor in softmax_inputs(length=200)]
    expected = softmax_values(*inputs, causal)
    words = [f"P=pT[{OUTER},offs_m,offs_n]", f"dS=inner_dq:ds[{OUTER},offs_m,offs_n]", f"dQ=dq[{OUTER},offs_m,offs_k]"]
    reading, results = read(words, softmax_shapes(200), lambda: written.fused_backward(*inputs, causal=causal))
    assert_close(reading.values, expected, 1e-4)
    assert_close(results, expected, 1e-4)
    words = ["P=p[off_b,off_h,offs_qm,offs_n]", "dS=ds[off_b,off_h,offs_qm,offs_n]/softmax_scale"]
    reading, _ = read(words, softmax_shapes(200), lambda: written.decorated_dq(*inputs, causal=causal))
    assert_close(reading.values, expected, 1e-4)


def test_a_tap_whose_index_does_not_follow_the_loop_is_refused_as_in_the_interpreter():
    inputs = [tensor.cuda() for tensor in softmax_inputs(length=200)]
    with pytest.raises(UsageFailure, match=r"the loop in line \d+ computes it anew in every turn"):
        read([f"delta=ds[{OUTER},offs_m]"], softmax_shapes(200), lambda: written.fused_backward(*inputs))
