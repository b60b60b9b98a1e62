"""Identities: kept by right kernels, broken as math.md's table says, and judges of the reference as of the target."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gradprobe.pipeline.probe import probe
from tests.emulated import Arithmetic, case_of, changed, softmax, target_of
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("without_causes")

SMALL = {"batch": 2, "heads": 2, "seqlen_q": 40, "seqlen_k": 40, "head_dim": 16, "causal": True}


def backward(fault):
    def faulty(q, k, v, do, *, causal=False, scale=None, softcap=None, window=None):
        return softmax(q, k, v, do, causal=causal, scale=scale, softcap=softcap, window=window, fault=fault)

    return target_of(faulty)


def broken(fault, **options):
    """I1 to I7 that the target breaks, in the contiguous run."""
    report = probe(case_of("softmax", **SMALL | options, layouts=(("q", "contiguous"),)), backward(fault), why=False)
    _, measured = report.measured[0]
    return {invariant.key for invariant in measured.broken} & {f"I{n}" for n in range(1, 8)}


def head(factor):
    return lambda t: t[0, 1].mul_(factor)


@pytest.mark.parametrize(
    ("name", "factor", "keys"),
    [
        ("P", 1.1, {"I1", "I2", "I3", "I5", "I7"}),
        ("delta", 0.0, {"I2", "I5"}),
        ("dQ", 4.0, {"I3"}),
        ("dS", 0.69, set()),
        ("dV", 1.1, {"I1", "I4"}),
    ],
)
def test_one_head_wrong_by_a_factor_breaks_the_identities_of_math_md(name, factor, keys):
    found = broken(changed(name, head(factor)))
    assert found - {"I3"} == keys - {"I3"}
    assert ("I3" in found) == (name == "dQ")


def test_a_future_key_that_leaks_into_p_breaks_i6():
    assert "I6" in broken(changed("P", lambda t: t[0, 1, 0, 1].fill_(0.5)))


def test_softcaps_missing_derivative_breaks_no_identity_and_is_a_mismatch_of_ds():
    def capped(q, k, v, do, *, causal=False, scale=None, softcap=None):
        s = softmax(q, k, v, do, causal=causal, scale=scale, softcap=softcap)
        ds = s["P"] * (s["dP"] - s["delta"][..., None])
        return s | {"dS": ds, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q}

    report = probe(case_of("softmax", **SMALL, softcap=1.0), target_of(capped))
    _, measured = report.failing
    assert measured.first.intermediate == "dS"
    assert not [i for i in measured.broken if i.key in ("I1", "I2", "I3", "I4", "I5")]


@sampled(
    "pattern, dtype",
    product(["small", "large", "negative", "offset", "lowrank"], ["float32", "float16", "bfloat16"]),
    push=4,
)
def test_a_right_kernel_keeps_every_identity(dtype, pattern):
    def right(q, k, v, do, *, causal=False, scale=None, window=None):
        return softmax(q, k, v, do, causal=causal, scale=scale, window=window, how=Arithmetic(tensor_core=True))

    case = case_of("softmax", **SMALL | {"heads": 4, "kv_heads": 2}, dtype=dtype, pattern=pattern, window=(20, 0))
    report = probe(case, target_of(right))
    assert report.verdict == "match"
    assert {i.key for _, m in report.measured for i in m.invariants} == {*(f"I{n}" for n in range(1, 8)), "I10"}


EVERY_KEY = {f"I{n}" for n in range(1, 8)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"sinks": True}, {"I1", "I2", "I5", "I7"}),
        ({"dropout": 0.3}, {"I1"}),
        ({"dropout": 0.3, "sinks": True, "softcap": 2.0}, {"I1", "I2", "I5", "I7"}),
        ({"softcap": 2.0}, {"I2", "I5"}),
        ({"alibi": True, "align": "top-left", "seqlen_q": 37, "seqlen_k": 51}, set()),
        ({"mask": "dead-rows"}, set()),
        ({"mask": "padding", "bias": True, "bias_axes": "bm"}, set()),
        ({"cu_seqlens": (0, 17, 17, 40), "cu_seqlens_k": (0, 9, 21, 33)}, set()),
    ],
    ids=lambda each: ",".join(map(str, sorted(each))) or "all",
)
def test_a_right_kernel_keeps_the_identities_that_hold_with_its_options(options, absent, dtype):
    base = {"heads": 4, "kv_heads": 2, "head_dim": 16, "head_dim_v": 16, "causal": True}
    case = case_of("softmax", **base | options, dtype=dtype, layouts=(("q", "contiguous"),))
    _, measured = probe(case, target_of(softmax)).measured[0]
    assert measured.comparison.matches
    assert {i.key for i in measured.invariants} & EVERY_KEY == EVERY_KEY - absent
    assert not {i.key for i in measured.broken} & EVERY_KEY


@pytest.mark.parametrize("options", [{"sinks": True}, {"dropout": 0.3}], ids=str)
def test_beside_sinks_and_dropout_a_dv_off_by_a_tenth_still_breaks_i4_and_a_dq_i3(options):
    def faulty(q, k, v, do, *, causal=False, scale=None, sinks=None, dropout=0.0, keep=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale, sinks=sinks, dropout=dropout, keep=keep)
        return results | {name: results[name] * 1.1 for name in ("dV", "dQ")}

    report = probe(case_of("softmax", **SMALL | options, layouts=(("q", "contiguous"),)), target_of(faulty))
    assert {i.key for i in report.measured[0][1].broken} & EVERY_KEY == {"I3", "I4"}


def right(q, k, v, do, *, causal=False, scale=None):
    return softmax(q, k, v, do, causal=causal, scale=scale)


def wrong_from(call):
    calls = iter(range(1, 100))

    def target(q, k, v, do, *, causal=False, scale=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale)
        return results | ({"dQ": results["dQ"] * 1.5} if next(calls) in call else {})

    return target_of(target)


def test_a_repeat_that_goes_wrong_is_named():
    report = probe(case_of("softmax", **SMALL, repeat=2, layouts=(("q", "contiguous"),)), wrong_from({2}))
    _, measured = report.failing
    assert "repeat same call, same results" in [invariant.name for invariant in measured.broken]
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
        return torch.nn.functional.scaled_dot_product_attention(q, k, v.detach(), is_causal=causal, scale=scale)

    report = probe(case_of("softmax", **SMALL), target_of(detached))
    assert report.failing[1].first.intermediate == "dV"
