"""Two entries of one case: what grew, improved, is new or gone, and what cannot be compared at all."""

import pytest

from gradprobe.commands.growth import changes, compared, refuse_other
from gradprobe.model.failures import UsageFailure
from tests.commands.baseline.entries import entry


def test_a_largest_error_alone_that_grew_fails():
    before, after = entry(), entry()
    of = after.errors["contiguous"]
    of["dQ"] = type(of["dQ"])(of["dQ"].rms, tuple(2 * figure for figure in of["dQ"].worst))
    found = changes(before, after, compared(before))
    assert found.grown == [("contiguous", "dQ")]
    figures = found.cells["contiguous", "dQ"]
    assert (figures["rms"].verdict, figures["worst"].verdict) == ("same", "grown")


def test_a_sum_that_is_now_kept_in_16_bits_fails_though_its_wider_budget_hides_it():
    assert changes(entry(), entry(coarser=("dK",)), 8).fails
    assert not changes(entry(coarser=("dK",)), entry(), 8).fails


def test_another_backend_and_another_case_are_refused_with_a_way_out():
    refuse_other(entry(), "triton-interpreter on cpu", {"family": "lazy", "seqlen_q": 72})
    words = "it was saved by triton-interpreter on cpu, and triton on cuda has other errors"
    with pytest.raises(UsageFailure, match=words) as told:
        refuse_other(entry(), "triton on cuda", {"family": "lazy", "seqlen_q": 72})
    assert "--device cpu" in told.value.way_out
    other = {"family": "lazy", "seqlen_q": 80, "softcap": 2.0}
    with pytest.raises(UsageFailure, match="seqlen_q 72 -> 80, softcap None -> 2.0") as told:
        refuse_other(entry(), "triton-interpreter on cpu", other)
    assert told.value.way_out == "take its entry out of the file, and check again"
