"""Dyadic values: nothing is rounded to 16 bits, right kernels keep next to no error, and small faults show."""

from itertools import product

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import effective_values
from gradprobe.model.failures import UsageFailure
from gradprobe.numerics.compare import attention_of, compare, tiles_of
from gradprobe.numerics.declared_precision import exactly, precision_of
from gradprobe.numerics.sums import coarse_sums
from gradprobe.reference import evaluate
from gradprobe.runtime.run import read_trace
from tests.emulated import Arithmetic, case_of, changed, compared
from tests.sampling import sampled

CASES = (
    ("softmax", {"causal": True, "seqlen_q": 97, "seqlen_k": 130, "heads": 4, "kv_heads": 2}),
    ("softmax", {"causal": True, "seqlen_q": 130, "seqlen_k": 97}),
    ("softmax", {"window": (5, 0), "causal": True, "bias": True}),
    ("softmax", {"mask": "dead-rows"}),
    ("softmax", {"mask": "padding", "bias": True, "bias_axes": "n"}),
    ("softmax", {"cu_seqlens": (0, 5, 5, 40, 72), "dropout": 0.5}),
    ("softmax", {"seqlen": 1, "head_dim": 4}),
    ("softmax", {"seqlens": (72, 0), "head_dim": 64, "causal": True}),
    ("lazy", {}),
    ("lazy", {"seqlens": (72, 31), "bias": False}),
)


def dyadic(family, **options):
    return case_of(family, pattern="dyadic", **{"dtype": "bfloat16"} | options)


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("softmax", {"head_dim": 24}, "the scale must be a power of two, 1/64 or more, got 0.204124"),
        ("softmax", {"head_dim": 1}, "--head-dim must be 4 or more, got 1"),
        ("softmax", {"softcap": 30.0}, "with --softcap, P is no power of two"),
        ("softmax", {"dropout": 0.3}, "1 - dropout must be a power of two, got 0.3"),
        ("lazy", {"tau": (1.0,)}, "tau must lie in -2^-20 to 2^-20 and not be 0, got (1.0, 1.0, 1.0)"),
    ],
)  # fmt: skip
def test_a_case_without_such_values_is_refused(family, options, words):
    with pytest.raises(UsageFailure, match="^--pattern dyadic") as refusal:
        draw(dyadic(family, **options))
    assert words in str(refusal.value)
    assert refusal.value.way_out


RIGHT = {
    "float16": Arithmetic(tensor_core=True),
    "bfloat16": Arithmetic(tensor_core=True, exp2=True, tile=64),
    "bfloat16-stored-in-float32": Arithmetic(
        stored=torch.float32, delta_from_o=False, backwards=True
    ),
    "float16-scale-folded": Arithmetic(folded=True, tensor_core=True),
}


@sampled("number, expanded, name", product(range(len(CASES)), [False, True], RIGHT), push=6)
def test_a_right_kernel_keeps_next_to_no_error(number, expanded, name):
    family, options = CASES[number]
    case = dyadic(family, dtype=name.partition("-")[0], seed=number, **options)
    values = effective_values(draw(case), (("do", "expanded"),)) if expanded else draw(case)
    comparison = compared(case, RIGHT[name], values=values)
    assert not {name: one.first for name, one in comparison.findings.items() if one.mismatched}
    assert expanded or comparison.precision.name.endswith(", exact inputs")


FAULTS = {
    "1/2 % on one head of P": changed("P", lambda p: p[:, 1].mul_(1.005)),
    "1/4 % on one head of dQ": changed("dQ", lambda dq: dq[:, 1].mul_(1.0025)),
    "dK off in bfloat16's last place": changed("dK", lambda dk: dk[..., ::8].mul_(1 + 2**-8)),
    "one head's delta 1/2 % off": changed("delta", lambda delta: delta[:, 1].mul_(1.005)),
}
GRADIENTS = ("O", "dQ", "dK", "dV")


@pytest.mark.parametrize("name", FAULTS)
def test_a_small_fault_is_found_and_the_plain_budget_lets_it_pass(name):
    case, plain = (
        case_of("softmax", dtype="bfloat16", pattern=pattern, head_dim=16)
        for pattern in ("dyadic", "normal")
    )
    assert not compared(case, RIGHT["bfloat16"], fault=FAULTS[name], names=GRADIENTS).matches
    assert compared(plain, RIGHT["bfloat16"], fault=FAULTS[name], names=GRADIENTS).matches


def test_values_that_are_no_longer_exact_are_judged_by_the_plain_budget():
    case = dyadic("softmax")
    values = effective_values(draw(case), (("q", "expanded"),)) | {
        "v": torch.randn(2, 3, 72, 16).bfloat16()
    }
    comparison = compared(case, RIGHT["bfloat16"], values=values)
    assert comparison.matches
    assert comparison.precision.name == "bfloat16, float32 sums"


def test_a_head_of_a_group_that_is_rounded_to_16_bits_before_the_sum_is_beyond_the_bound_and_proved():
    case = dyadic("softmax", heads=4, kv_heads=2, seqlen=70)
    x, narrow = attention_of(case, draw(case)), torch.bfloat16
    results = {name: torch.zeros_like(x.k) for name in ("dK", "dV")}
    for tile in tiles_of(case, x):
        values = evaluate(x, tile)
        for name, matrix, other, scale in (("dK", "dS", x.q, x.scale), ("dV", "PE", x.do, 1.0)):
            shares = (values[matrix].mT @ other[tile.batch]).to(narrow).double() * scale
            results[name][tile.batch] += shares.unflatten(0, (2, 2)).sum(1)
    trace = read_trace(
        {name: value.to(narrow) for name, value in results.items()}, case, "written"
    )
    comparison = compare(case, x, trace, exactly(precision_of("bfloat16", "ieee")))
    assert not comparison.matches
    lenient, coarser = coarse_sums(case, x, trace, comparison)
    assert lenient.matches
    assert "rounds each query head's dK to bfloat16 before a group's" in coarser[0].sentence
