"""The tool's own kernels under the watcher: nothing is found, and no bit of a result changes."""

import pytest
import torch

from gradprobe.frontends.triton.interpreter.memory_watch import watched_memory
from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import place
from gradprobe.runtime.run import run_target
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.sampling import sampled

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)

# Partial tiles along rows, keys and head dim.
SIZES = {"batch": 2, "heads": 2, "seqlen": 37, "head_dim": 12}


def in_bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


@sampled(
    "target, dtype, layout",
    [("lazy", "float32", "packed"), ("lazy", "bfloat16", "contiguous"), ("flash", "bfloat16", "distinct")],
    push=[("lazy", "bfloat16", "contiguous")],
)  # fmt: skip
def test_results_have_the_same_bits_with_and_without_the_watcher(target, dtype, layout):
    of_target = lazy_case if target == "lazy" else softmax_case
    case = of_target(**SIZES, dtype=dtype)
    assigned = (("all", layout),)
    plain = run_target(find_target(target), case, place(draw(case), assigned)).trace.values
    inputs = place(draw(case), assigned)
    with watched_memory(inputs.tensors) as memory:
        outcome = run_target(find_target(target), case, inputs)
    assert not memory.failures
    assert memory.findings == ()
    assert list(plain) == list(outcome.trace.values)
    for name, value in plain.items():
        other = outcome.trace.values[name]
        assert value.dtype == other.dtype
        assert torch.equal(in_bits(value), in_bits(other)), name
