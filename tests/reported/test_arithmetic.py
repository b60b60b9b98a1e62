"""Right kernels of other arithmetics than the contract's, and what is exported in other conventions."""

import pytest

from tests.reported.conftest import SMALL
from tests.sampling import sampled

OF_16_BITS = "--batch 1 --heads 2 --seqlen 150 --head-dim 32 --causal"


@pytest.mark.parametrize("way", ["tf32", "bf16x3"])
def test_products_are_judged_as_they_are_declared_on_the_cpu_too(check, way):
    ran, report = check(f"products.py:{way} {SMALL} --dots {way}")
    assert (ran.code, report["verdict"]) == (0, "match")
    assert f"dots are judged as {way}, as --dots says" in " ".join(report["notes"])


@pytest.mark.nightly
def test_products_that_are_coarser_than_declared_are_wrong_and_the_interpreter_takes_each_way(
    check,
):
    assert check(f"products.py:tf32 {SMALL} --dots bf16x3")[1]["verdict"] == "mismatch"
    assert check(f"flash {SMALL} --dots bf16x3")[1]["verdict"] == "match"


def test_an_option_that_changes_nothing_is_said_to(check):
    notes = check(f"torch_16.py:all_in_16_bits {SMALL} --dtype float16 --dots tf32")[1]["notes"]
    assert "--dots tf32 is for float32: products of float16 are exact in float32" in notes


@sampled(
    "words",
    [
        f"{name} {OF_16_BITS} --dtype {dtype} --seed {seed}"
        for seed in range(4) for name in ("all_in_16_bits", "softmax_in_32_bits") for dtype in ("bfloat16", "float16")
    ],
    1,
)  # fmt: skip
def test_attention_in_operations_of_torch_is_right(check, words):
    ran, report = check(f"torch_16.py:{words}")
    assert (ran.code, report["verdict"]) == (0, "match"), report["first_mismatch"]
    assert all("rounds S to" in sentence for sentence in report["coarser"])


CONVENTIONS = {
    "negative_delta": "delta = -delta", "scaled_delta": "delta = scale * delta",
    "scaled_ds": "dS = scale * dS", "transposed_p": "P = P^T", "undivided_p": "P = exp(S - max S)",
    "base_2": "LSE = LSE * log2(e)", "less_the_maximum": "LSE = LSE - max S",
}  # fmt: skip


@sampled("name", CONVENTIONS, 3)
def test_an_export_in_other_units_is_a_note_where_all_that_is_made_of_it_is_right(check, name):
    ran, report = check(f"conventions.py:{name} {SMALL}")
    words = f"exported in another convention: {CONVENTIONS[name]}; what is made of it is right"
    assert (ran.code, report["verdict"], report["diagnoses"]) == (0, "match", [])
    assert words in report["notes"]


def test_strict_calls_such_an_export_wrong_and_no_gradient_beside_the_cause_of_what_is(check):
    ran, report = check(f"conventions.py:negative_delta_and_doubled_dv {SMALL} --strict")
    assert (ran.code, report["first_mismatch"]["intermediate"]) == (1, "delta")
    first, second = report["diagnoses"][:2]
    assert (first["fault"], second["fault"]) == ("convention/delta", "factor/dV")
    words = "exports -delta as delta, another convention; the gradients made of it are right"
    assert first["summary"] == words
    assert first["fix"] == "return delta itself, or leave out --strict"
    assert first["edit"] is None


@sampled("words", ["squared_delta", "misused_delta", "misused_ds"], 1)
def test_what_is_used_wrongly_or_has_no_simple_relation_stays_wrong(check, words):
    ran, report = check(f"conventions.py:{words} {SMALL}")
    assert (ran.code, report["verdict"]) == (1, "mismatch")
    assert report["first_mismatch"]["intermediate"] in ("delta", "dS")


def test_a_sum_of_a_row_may_keep_the_axis_that_it_was_summed_over(check):
    _, report = check(f"conventions.py:delta_with_its_axis {SMALL} --runs contiguous")
    assert report["verdict"] == "match"
