"""What a call does to other calls: one that goes wrong later is found, and what it shares or spoils accuses nothing."""

from __future__ import annotations

import pytest
import torch

from tests.emulated import case_of, changed, softmax, target_of
from tests.probe import probe

pytestmark = pytest.mark.usefixtures("without_causes")

SMALL = {"batch": 2, "heads": 2, "seqlen_q": 40, "seqlen_k": 40, "head_dim": 16, "causal": True}


def test_a_future_key_that_leaks_into_p_is_wrong():
    def faulty(q, k, v, do, *, causal=False, scale=None):
        fault = changed("P", lambda t: t[0, 1, 0, 1].fill_(0.5))
        return softmax(q, k, v, do, causal=causal, scale=scale, fault=fault)

    _, measured = probe(case_of("softmax", **SMALL), target_of(faulty), why=False).failing
    assert (measured.first.intermediate, measured.first.row, measured.first.col) == ("P", 0, 1)


def test_softcaps_missing_derivative_is_a_mismatch_of_ds():
    def capped(q, k, v, do, *, causal=False, scale=None, softcap=None):
        s = softmax(q, k, v, do, causal=causal, scale=scale, softcap=softcap)
        ds = s["P"] * (s["dP"] - s["delta"][..., None])
        return s | {"dS": ds, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q}

    _, measured = probe(case_of("softmax", **SMALL, softcap=1.0), target_of(capped)).failing
    assert measured.first.intermediate == "dS"


def wrong_from(call):
    calls = iter(range(1, 100))

    def target(q, k, v, do, *, causal=False, scale=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale)
        return results | ({"dQ": results["dQ"] * 1.5} if next(calls) in call else {})

    return target_of(target)


def test_a_repeat_that_goes_wrong_is_named():
    report = probe(
        case_of("softmax", **SMALL, repeat=2, layouts=(("q", "contiguous"),)), wrong_from({2})
    )
    _, measured = report.failing
    assert measured.first.intermediate == "dQ"


def test_a_target_wrong_only_in_its_third_call_is_no_match():
    report = probe(case_of("softmax", **SMALL), wrong_from({3}))
    assert report.verdict == "mismatch"


def test_a_target_that_returns_the_same_buffer_every_time_is_a_match():
    buffer = torch.empty(2, 2, 40, 16)

    def reusing(q, k, v, do, *, causal=False, scale=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale)
        return results | {"dQ": buffer.copy_(results["dQ"])}

    assert probe(case_of("softmax", **SMALL, repeat=2), target_of(reusing)).verdict == "match"


def test_a_target_that_overwrites_its_inputs_spoils_no_later_run():
    def overwriting(q, k, v, do, *, causal=False, scale=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale)
        for tensor in (q, k, v, do):
            tensor[:] = 7.0
        return results

    case = case_of("softmax", **SMALL, repeat=2, layouts=(("q", "contiguous"),))
    assert probe(case, target_of(overwriting)).measured[0][1].comparison.matches


def test_a_forward_that_detaches_v_has_a_dv_of_zero_and_mismatches():
    def detached(q, k, v, *, causal=False, scale=None):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v.detach(), is_causal=causal, scale=scale
        )

    report = probe(case_of("softmax", **SMALL), target_of(detached))
    assert report.failing[1].first.intermediate == "dV"
