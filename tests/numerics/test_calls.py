import pytest
import torch

from tests.emulated import case_of, softmax, target_of
from tests.probe import probe

pytestmark = pytest.mark.usefixtures("without_causes")

SMALL = {"batch": 2, "heads": 2, "seqlen_q": 40, "seqlen_k": 40, "head_dim": 16, "causal": True}


def wrong_from(call):
    calls = iter(range(1, 100))

    def target(q, k, v, do, *, causal=False, scale=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale)
        return results | ({"dQ": results["dQ"] * 1.5} if next(calls) in call else {})

    return target_of(target)


def test_a_repeat_that_goes_wrong_is_named_and_a_third_call_alone_is_no_match():
    one = case_of("softmax", **SMALL, repeat=2, layouts=(("q", "contiguous"),))
    assert probe(one, wrong_from({2}), why=False).failing[1].first.intermediate == "dQ"
    assert probe(case_of("softmax", **SMALL), wrong_from({3}), why=False).verdict == "mismatch"


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
