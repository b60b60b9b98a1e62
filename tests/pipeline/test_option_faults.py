"""Faults in the options of the softmax family: each is found, and the first wrong intermediate is the fault's own."""

from itertools import cycle, product

import pytest
import torch

from gradprobe.inputs.draw import draw
from tests.emulated import Arithmetic, case_of, changed, compared
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("without_causes")

ENDS = ("O", "dQ", "dK", "dV", "dBias", "dSink")
DTYPES = ("float32", "float16", "bfloat16")
OPTIONS = {
    "heads": 4, "kv_heads": 2, "seqlen_q": 45, "seqlen_k": 60, "head_dim": 16, "head_dim_v": 16, "causal": True,
}  # fmt: skip
PACKED = {name: value for name, value in OPTIONS.items() if "seqlen" not in name} | {
    "cu_seqlens": (0, 20, 20, 50)
}


def mismatched(comparison):
    return [name for name, found in comparison.findings.items() if found.status == "mismatch"]


def first_alone(tensor):
    return tensor[:1].expand_as(tensor)


IN_THE_FORWARD = {
    "aligned to the top left": ({}, lambda values: {"align": "top-left"}),
    "window aligned otherwise": ({"window": (9, 4), "causal": False}, lambda values: {"align": "top-left"}),
    "the sink of head 0": ({"sinks": True}, lambda values: {"sinks": first_alone(values["sinks"])}),
    "no alibi": ({"alibi": True}, lambda values: {"alibi": None}),
    "alibi aligned otherwise": (
        {"alibi": True, "causal": False}, lambda values: {"align": "top-left"},
    ),
    "no mask": ({"mask": "random"}, lambda values: {"mask": None}),
    "the mask of head 0": ({"mask": "random"}, lambda values: {"mask": values["mask"][:, :1]}),
    "the bias of batch 0": (
        {"bias": True, "bias_axes": "bn"}, lambda values: {"bias": first_alone(values["bias"])},
    ),
    "a sequence that ends a row late": (
        PACKED, lambda values: {"cu_seqlens_q": values["cu_seqlens_q"] + torch.tensor([0, 1, 1, 0], dtype=torch.int32)},
    ),
    "sequences that see each other": (
        PACKED, lambda values: {name: values[name][[0, -1]] for name in ("cu_seqlens_q", "cu_seqlens_k")},
    ),
}  # fmt: skip


@sampled(
    "name, dtype", product(IN_THE_FORWARD, DTYPES), push=list(zip(IN_THE_FORWARD, cycle(DTYPES)))
)
def test_a_kernel_that_misreads_an_option_is_wrong_from_lse_on_or_from_o_where_that_is_the_first_exposed(
    name, dtype
):
    options, wrong = IN_THE_FORWARD[name]
    base = PACKED if options is PACKED else OPTIONS
    case = case_of("softmax", **base | options, dtype=dtype)
    values = draw(case)
    how = Arithmetic(tensor_core=dtype != "float32")
    comparison = compared(case, how, values=values, wrong=wrong(values))
    assert mismatched(comparison)[0] == "LSE"
    # A wrong mask is read again by P and dP, a wrong score by P; a wrong sink by dSink, and not by P, given its LSE.
    # dAlibi sums by the distances, whatever its dS is.
    allowed = {"LSE", "dSink"} if "sink" in name else {"LSE", "P", "dP", "dAlibi"}
    assert {*mismatched(comparison)} <= allowed
    names = [name for name in ENDS if name in comparison.findings]
    ends = compared(case, how, values=values, wrong=wrong(values), names=names)
    assert mismatched(ends)[0] == "O"


@pytest.mark.parametrize(
    ("name", "change", "options"),
    [
        ("O", lambda t: t.mul_(0.7), {"dropout": 0.3}),
        ("dP", lambda t: t.mul_(0.7), {"dropout": 0.3}),
        ("dV", lambda t: t.mul_(0.7), {"dropout": 0.3}),
        ("dSink", lambda t: t[1].mul_(1.1), {"sinks": True}),
        ("dAlibi", lambda t: t[1].mul_(1.1), {"alibi": True, "softcap": 3.0}),
        ("dBias", lambda t: t[:, 1].mul_(1.1), {"bias": True, "bias_axes": "hn"}),
        ("dBias", lambda t: t.mul_(2), {"bias": True, "bias_axes": "n"}),
    ],
)  # fmt: skip
@sampled("dtype", DTYPES, push=["float16"])
def test_a_factor_missing_from_one_intermediate_is_a_mismatch_of_that_one_alone(
    name, change, options, dtype
):
    case = case_of("softmax", **OPTIONS | options, dtype=dtype)
    assert mismatched(compared(case, fault=changed(name, change))) == [name]
