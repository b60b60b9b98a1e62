"""What is right is given no reason."""

import pytest

from tests.faults.plain import EVERYTHING, GRADIENTS, Planted, told

CASES = {
    "plain": ("softmax", {}),
    "causal with fewer rows than keys": ("softmax", {"causal": True, "seqlen_q": 24, "seqlen_k": 40}),
    "grouped heads in half precision": ("softmax", {"heads": 4, "kv_heads": 2, "dtype": "float16"}),
    "every option": (
        "softmax",
        {"bias": True, "alibi": True, "mask": "random", "sinks": True, "dropout": 0.2, "softcap": 3.0, "causal": True},
    ),
    "padded": ("softmax", {"seqlens": (40, 13)}),
    "packed": ("softmax", {"cu_seqlens": (0, 13, 13, 40), "causal": True}),
    "lazy": ("lazy", {}),
    "lazy in bfloat16": ("lazy", {"dtype": "bfloat16"}),
}  # fmt: skip


@pytest.mark.parametrize("exposed", [EVERYTHING, GRADIENTS], ids=["exposed", "black box"])
@pytest.mark.parametrize("name", CASES)
def test_right_results_have_no_diagnosis_and_no_sentence(name, exposed):
    family, options = CASES[name]
    report = told(Planted(), family, exposed, **options)
    assert [run.verdict for run in report.runs] == ["match"]
    assert report.diagnoses == ()
    assert report.known == ()
