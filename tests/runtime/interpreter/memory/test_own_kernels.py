"""The tool's own kernels under the watcher: nothing is found, and no bit of a result changes."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import UnwrittenElements, elements_of
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import LAYOUTS
from gradprobe.runtime.run import run_target
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.runtime.interpreter.memory.watching import run_watched
from tests.sampling import sampled

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)

# Partial tiles along rows, keys and head dim.
SIZES = {"batch": 2, "heads": 2, "seqlen": 37, "head_dim": 12}
LAZY = {
    "plain": {}, "no bias": {"bias": False}, "short batches": {"seqlens": (37, 9)},
    "a batch of no length": {"seqlens": (0, 37)}, "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"}, "one row": {"seqlen": 1},
}  # fmt: skip
SOFTMAX = {
    "causal": {"causal": True}, "window": {"window": (5, 2)}, "grouped heads": {"heads": 4, "kv_heads": 2},
    "more keys than rows": {"seqlen_q": 37, "seqlen_k": 50, "causal": True},
    "more rows than keys": {"seqlen_q": 50, "seqlen_k": 20, "causal": True},
    "head dim of v": {"head_dim_v": 20}, "softcap": {"softcap": 3.0},
    "bias of all axes": {"bias": True, "bias_axes": "bhmn"}, "bias that broadcasts": {"bias": True, "bias_axes": "n"},
    "alibi": {"alibi": True}, "sinks": {"sinks": True}, "mask": {"mask": "random"},
    "rows that see nothing": {"mask": "dead-rows"}, "short batches": {"seqlens": (37, 9)},
    "bfloat16": {"dtype": "bfloat16", "causal": True},
}  # fmt: skip
ONE_OF_EACH_KIND = ("grouped heads", "more rows than keys", "bias of all axes")


def in_bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


def found_nothing(target, case, assigned):
    memory, outcome = run_watched(target, case, assigned)
    assert outcome.refused is None
    assert memory.findings == ()


@sampled("layout", LAYOUTS, push=["huge"])
def test_nothing_is_found_in_lazy_in_any_layout(layout):
    found_nothing("lazy", lazy_case(**SIZES), (("all", layout),))


@sampled("layout", LAYOUTS, push=["strided-last"])
def test_nothing_is_found_in_flash_in_any_layout(layout):
    found_nothing("flash", softmax_case(**SIZES, causal=True, bias=True), (("all", layout),))


@sampled("name", LAZY, push=["bfloat16"])
def test_nothing_is_found_in_lazy_in_any_case(name):
    found_nothing("lazy", lazy_case(**{**SIZES, **LAZY[name]}), (("all", "distinct"),))


@sampled("name", SOFTMAX, push=ONE_OF_EACH_KIND)
def test_nothing_is_found_in_flash_in_any_case(name):
    found_nothing("flash", softmax_case(**{**SIZES, **SOFTMAX[name]}), (("all", "distinct"),))


def test_nothing_is_found_in_flash_on_packed_sequences():
    case = softmax_case(heads=2, head_dim=8, cu_seqlens=(0, 5, 5, 38, 40), causal=True)
    found_nothing("flash", case, (("all", "distinct"),))


def allocating(unwritten, monkeypatch):
    """Tells of what torch.empty gives, as whoever watches torch would."""
    plain = torch.empty

    def empty(*args, **kwargs):
        tensor = plain(*args, **kwargs)
        unwritten.allocated(tensor)
        return tensor

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.parametrize("target", ["lazy", "flash"])
def test_the_own_kernels_read_nothing_that_they_have_not_written(target, monkeypatch):
    case = (lazy_case if target == "lazy" else softmax_case)(**SIZES, seqlens=(37, 9))
    unwritten = UnwrittenElements()
    allocating(unwritten, monkeypatch)
    assert run_watched(target, case, unwritten=unwritten)[0].findings == ()
    # o, lse, delta, dq, dk, dv: all were allocated empty, and all have been written wholly.
    assert len(unwritten._storages) == 6
    for tensor, marks in unwritten._storages.values():
        elements = elements_of(tensor)
        first = tensor.storage_offset() * elements.itemsize
        offsets = first + elements.listed() * elements.itemsize
        assert not marks.read(offsets, elements.itemsize).any()


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
    _, outcome = run_watched(target, case, assigned)
    assert list(plain) == list(outcome.trace.values)
    for name, value in plain.items():
        other = outcome.trace.values[name]
        assert value.dtype == other.dtype
        assert torch.equal(in_bits(value), in_bits(other)), name
