"""Whole heads hold the values as they came beside the reference's, what is wrong first, within a limit."""

import pytest
import torch

from gradprobe.numerics.whole_heads import whole_heads
from gradprobe.pipeline.probe import probe
from tests.emulated import case_of, changed, softmax, target_of

GROUPS = {"batch": 2, "heads": 4, "kv_heads": 2, "seqlen": 40, "head_dim": 8, "layouts": (("q", "contiguous"),)}


@pytest.fixture(scope="module")
def wrong():
    """P is wrong in head 3 of batch 1 alone, so its key head is 1."""

    def target(q, k, v, do, *, causal=False, scale=None):
        return softmax(q, k, v, do, causal=causal, scale=scale, fault=changed("P", lambda p: p[1, 3, 5].mul_(2)))

    return probe(case_of("softmax", **GROUPS), target_of(target), why=False)


def test_the_head_of_the_first_mismatch_is_kept_of_every_intermediate(wrong):
    kept, arrays = whole_heads(wrong)
    heads = {one.intermediate: (one.batch, one.head) for one in reversed(kept.heads)}
    assert heads["P"] == heads["dQ"] == (1, 3)
    assert heads["dK"] == heads["dV"] == (1, 1)
    (run, found) = wrong.failing
    for one in kept.heads:
        came = found.trace.values[one.intermediate][one.batch, one.head].double()
        torch.testing.assert_close(arrays[f"{one.key}.actual"].double().reshape(came.shape), came, rtol=0, atol=0)
        count = int(found.comparison.findings[one.intermediate].wrong[one.batch, one.head])
        assert int(arrays[f"{one.key}.wrong"].sum()) == count
    first = found.first
    at = first.row, first.col
    assert float(arrays["P.1.3.expected"][at]) == first.expected
    assert float(arrays["P.1.3.budget"][at]) == first.budget


def test_what_has_no_room_is_counted_and_what_is_small_still_kept(wrong):
    kept, arrays = whole_heads(wrong, most=20_000)
    assert sum(array.numel() * array.element_size() for array in arrays.values()) <= 20_000
    assert {one.intermediate for one in kept.heads} >= {"dQ", "delta"}
    assert "P" not in {one.intermediate for one in kept.heads}
    assert kept.left_out + len(kept.heads) == len(whole_heads(wrong)[0].heads)


def right(q, k, v, do):
    return softmax(q, k, v, do)


def test_of_a_match_the_head_nearest_to_its_budget_is_kept():
    probed = probe(case_of("softmax", **GROUPS), target_of(right), why=False)
    kept, _ = whole_heads(probed)
    findings = probed.measured[0][1].comparison.findings
    assert [one.intermediate for one in kept.heads] == list(findings)
    for one in kept.heads:
        finding = findings[one.intermediate]
        assert finding.ratio[one.batch, one.head] == finding.max_ratio
