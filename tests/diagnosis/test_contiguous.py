"""Kernels that are given no stride are one cause, in place of each tensor that they misread."""

import re
from types import SimpleNamespace

import pytest
import torch

from gradprobe.diagnosis.why import FailedCheck, by_contiguity
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.report import CauseLine, Diagnosis, causes_among
from gradprobe.pipeline.run_check import run_check
from tests.planted.planting import KERNELS

K_AT, DO_AT = (CauseLine("a.py", at, "k", kernel="backward") for at in (9, 8))
K = Diagnosis("load/k", "S1", "of k", 1.0, (), (K_AT,), seen="seen in backward")
DO = Diagnosis("outside/dO", "M3", "of dO", 1.0, (), (DO_AT,), also=True, seen="seen")
MASK = Diagnosis("pairs/dQ", "M3", "the tail", 1.0, also=True, seen="seen in backward")


def calls(**numbers):
    return tuple(SimpleNamespace(name=name, numbers=of) for name, of in numbers.items())


STRIDES = {"contiguous": (160, 8, 1), "distinct": (331, 17, 2)}
CALLS = {layout: calls(forward=of, backward=(20, 2)) for layout, of in STRIDES.items()}


def runs(first="match", second="mismatch"):
    return [
        SimpleNamespace(
            layout=layout, verdict=verdict,
            laid=[SimpleNamespace(name=name, strides=STRIDES[layout]) for name in ("q", "k", "do")],
        )
        for layout, verdict in (("contiguous", first), ("distinct", second))
    ]  # fmt: skip


def test_the_kernels_that_misread_are_given_no_stride_and_another_cause_stands_beside_it():
    of = FailedCheck(None, runs(), CALLS)
    (cause,) = causes_among(by_contiguity(of, [K, DO]))
    assert cause.fault == "layout/contiguous"
    assert (
        cause.summary == "no stride of k and dO reaches backward: they are taken for contiguous"
    )
    assert [where.line for where in cause.where] == [9, 8]
    assert of.is_beyond_edits
    of = FailedCheck(None, runs(), CALLS)
    causes = causes_among(by_contiguity(of, [K, DO, MASK]))
    assert [one.fault for one in causes] == ["layout/contiguous", "pairs/dQ"]
    assert not of.is_beyond_edits


OTHERS = {
    "its strides reach it": ([K], runs(), {**CALLS, "distinct": calls(backward=(20, 17))}, set()),
    "they reach it in bytes": (
        [K],
        runs(),
        {**CALLS, "distinct": calls(backward=(20, 34))},
        set(),
    ),
    "nothing was launched": ([K], runs(), {}, set()),
    "it is wrong when contiguous": ([K], runs("mismatch"), CALLS, set()),
    "nothing is wrong": ([K], runs(second="match"), CALLS, set()),
    "no address is": ([MASK], runs(), CALLS, set()),
    "a hypothesis predicts it": ([K], runs(), CALLS, {"stride/k"}),
}


@pytest.mark.parametrize(("found", "ran", "given", "predicted"), OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_taken_for_it(found, ran, given, predicted):
    assert by_contiguity(FailedCheck(None, ran, given, predicted=predicted), found) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="only the interpreter sees every address")
def test_a_wrapper_that_hands_over_the_strides_of_contiguous_tensors_has_one_cause(tmp_path):
    text, file = (KERNELS / "lazy.py").read_text(), tmp_path / "own.py"
    assert "*q.stride()" in text
    file.write_text(re.sub(r"\*(q|k|v|do)\.stride\(\)", r"*\1.contiguous().stride()", text))
    options = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8, "device": "cpu"}
    report = run_check(CheckRequest(f"{file}:lazy_intermediates", None, None, options), "")
    assert report.runs[0].verdict == "match"
    (cause,) = causes_among(report.diagnoses)
    assert (cause.fault, cause.edit, report.known) == ("layout/contiguous", None, ())
