"""Right kernels in every arithmetic stay within budget; the budget stays near what they err by."""

from itertools import product

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import effective_values
from tests.emulated import Arithmetic, case_of, changed, compared
from tests.sampling import sampled

ARITHMETICS = {
    "float32": Arithmetic(),
    "float32-exp2-backwards": Arithmetic(exp2=True, backwards=True, tile=64, delta_from_o=False),
    "tf32-cut": Arithmetic(tf32="cut", tensor_core=True),
    "tf32-nearest": Arithmetic(tf32="nearest", tile=64, exp2=True),
    "float16": Arithmetic(tensor_core=True),
    "bfloat16": Arithmetic(tensor_core=True, exp2=True, tile=64),
    "bfloat16-stored-in-float32": Arithmetic(
        stored=torch.float32, delta_from_o=False, backwards=True
    ),
    "float16-stored-in-16-bits": Arithmetic(stored=torch.float16),
    "float16-scale-folded": Arithmetic(folded=True, tensor_core=True),
}
DTYPES = ("float32", "float16", "bfloat16")
PATTERNS = ("normal", "small", "large", "wide", "negative", "positive", "offset", "lowrank")


def dtype_of(name):
    return next(
        (dtype for dtype in ("bfloat16", "float16") if name.startswith(dtype)), "float32"
    )


def assert_right(comparison):
    found = comparison.findings.items()
    ratios = {name: round(one.max_ratio, 3) for name, one in found if one.mismatched}
    assert ratios == {}


OPTIONS = (
    {"heads": 3, "seqlen": 130, "tau": (-0.5, 100.0, -1.0), "seqlens": (130, 0)},
    {"seqlen_q": 97, "seqlen_k": 130, "head_dim_v": 40, "window": (20, 3), "bias": True},
    {"seqlen_q": 130, "seqlen_k": 97, "causal": True, "softcap": 2.0},
    {"seqlen_q": 257, "seqlen_k": 257, "batch": 1, "head_dim": 64},
)


@sampled("options, pattern, name", product(OPTIONS, PATTERNS, ARITHMETICS), push=8)
def test_a_right_kernel_is_within_budget(name, pattern, options):
    family = "lazy" if "tau" in options else "softmax"
    heads = {} if "tau" in options else {"heads": 4, "kv_heads": 2}
    case = case_of(family, dtype=dtype_of(name), pattern=pattern, **heads, **options)
    for values in (draw(case), alike(draw(case))) if "tau" in options else (draw(case),):
        assert_right(compared(case, ARITHMETICS[name], values=values))


def alike(values):
    """One dO for all rows."""
    return effective_values(values, (("do", "expanded"),))


def positive(values):
    """torch.rand for q, k and v and a summed loss: one rounding of O is every row's, and q has a mean."""
    random = torch.Generator().manual_seed(2)
    rand = {
        name: torch.rand(t.shape, generator=random).to(t.dtype) for name, t in values.items()
    }
    return rand | {"do": torch.ones_like(values["do"])}


def equal_keys(values):
    """P = 1 / (i + 1), which tau = -1 cancels exactly: every entry of every row may flip."""
    first = {name: t[:, :, :1].expand_as(t) for name, t in values.items() if t.dim() == 4}
    return values | {name: t.contiguous() for name, t in first.items()}


ON_THE_KINK = {"seqlen": 300, "head_dim": 16, "tau": (-1.0,), "bias": False}


@pytest.mark.parametrize(
    ("family", "options", "how", "change"),
    [
        # P is 1/687 in every entry, so bfloat16 rounds every entry alike, and nothing cancels.
        (
            "softmax", {"seqlen_q": 700, "seqlen_k": 687, "dtype": "bfloat16", "pattern": "small"},
            Arithmetic(stored=torch.float32), alike,
        ),
        ("softmax", {"seqlen": 600, "head_dim": 16, "dtype": "float16"}, Arithmetic(exp2=True), positive),
        ("softmax", {"seqlen": 600, "head_dim": 16, "dtype": "bfloat16"}, Arithmetic(exp2=True), positive),
        # O among float16's subnormals.
        ("softmax", {"seqlen": 400, "head_dim": 64, "dtype": "float16"}, Arithmetic(),
         lambda values: values | {"v": values["v"] * 1e-5}),
        # Probabilities below the smallest float32.
        (
            "softmax", {"heads": 2, "seqlen": 300, "head_dim": 128, "pattern": "lowrank", "scale": 1.0, "bias": True},
            Arithmetic(exp2=True), dict,
        ),
        *(("lazy", ON_THE_KINK | {"dtype": dtype}, Arithmetic(exp2=True), equal_keys) for dtype in DTYPES),
        # Near one-hot rows leave most of dS below 2^-14; without 1 / scale in the floor, dK reached 1.24 here.
        *(
            (
                "softmax",
                {"seqlen": 256, "head_dim": 64, "heads": 2, "dtype": "float16", "pattern": "large", "causal": True,
                 "seed": seed},
                Arithmetic(folded=True, tensor_core=True), dict,
            )
            for seed in range(3)
        ),
    ],
    ids=lambda value: "" if isinstance(value, Arithmetic) else getattr(value, "__name__", None),
)  # fmt: skip
def test_a_right_kernel_is_not_accused_of_what_its_values_do(family, options, how, change):
    case = case_of(family, **{"batch": 1, "heads": 1} | options)
    assert_right(compared(case, how, values=change(draw(case))))


@pytest.mark.nightly
def test_what_tensor_cores_cut_off_every_rows_delta_alike_is_allowed_to_dk():
    """They add towards zero, so O comes out smaller in every row; with one dO for all rows delta does so too."""
    options = {"batch": 1, "heads": 1, "seqlen": 2048, "head_dim": 64, "dtype": "float16"}
    case = case_of("softmax", **options, pattern="offset")
    values = alike(draw(case))
    how = Arithmetic(tensor_core=True, tile=8, stored=torch.float32)
    # Taken for errors that rows make each on its own, it would use half of the budget here and all of it at 4096 rows.
    assert compared(case, how, values=values).findings["dK"].max_ratio < 0.35


def test_a_dead_rows_delta_of_a_millionth_is_found():
    case = case_of("softmax", heads=2, seqlen_q=50, seqlen_k=37, causal=True, dtype="bfloat16")
    fault = changed("delta", lambda t: t[0, 1, 3].fill_(1e-6))
    assert compared(case, fault=fault, names=("delta",)).findings["delta"].mismatched == 1


EVERY = (
    {}, {"family": "lazy", "bias": False}, {"sinks": True}, {"dropout": 0.3}, {"alibi": True}, {"bias": True},
    {"mask": "random"}, {"kv_heads": 2, "cu_seqlens": (0, 60, 60, 130, 200)},
)  # fmt: skip


@sampled(
    "options, dtype", product(EVERY, DTYPES), push=[(each, DTYPES[at % 3]) for at, each in enumerate(EVERY)]
)  # fmt: skip
def test_no_budget_is_more_than_100_times_what_a_right_kernel_errs_by(options, dtype):
    """The largest of thousands of errors, as a share of its budget, with every result kept in float32."""
    lengths = {} if "cu_seqlens" in options else {"seqlen": 200}
    options = (
        {"family": "softmax", "heads": 4, "head_dim": 64, "dtype": dtype} | lengths | options
    )
    how = Arithmetic(tensor_core=dtype != "float32", stored=torch.float32)
    findings = compared(case_of(**options), how).findings
    # dTau, and in float32 dSink and dAlibi, add up thousands of terms of either sign, whose sizes their budgets add.
    sums = {"dTau"} | ({"dSink", "dAlibi"} if dtype == "float32" else set())
    share = {name: one.max_ratio for name, one in findings.items() if name not in sums}
    assert min(share.values()) > 1 / 100, share
