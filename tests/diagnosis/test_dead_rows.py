"""Rows without a key: NaN throughout is laid on them where the target is right once they have one, and nowhere else."""

import torch

from tests.cases import softmax_case
from tests.emulated import softmax, target_of
from tests.probe import probe

SMALL = dict(batch=1, heads=2, seqlen=20, head_dim=8, recover=False, runs=((),), mask="dead-rows")


def with_nan(is_always):
    def backward(q, k, v, do, mask, *, scale):
        results = softmax(q, k, v, do, scale=scale, mask=mask)
        spoilt = 1.0 if mask.any(-1).all() and not is_always else torch.nan
        return {"dQ": results["dQ"], "dK": results["dK"] * spoilt, "dV": results["dV"]}

    return target_of(backward)


def test_nan_is_one_of_dead_rows_where_it_goes_once_every_row_sees_a_key():
    cause = probe(softmax_case(**SMALL), with_nan(False)).diagnoses[0]
    said = "rows that see no key make dK NaN: exp(-inf - -inf), or 0 / 0"
    assert (cause.fault, cause.summary) == ("dead/nan", said)
    report = probe(softmax_case(**SMALL), with_nan(True))
    assert report.verdict == "mismatch"
    assert "dead/nan" not in {one.fault for one in report.diagnoses}


def without_lse(q, k, v, do, *, scale, seqlens):
    """Rows beyond a length have no key; that P is not normalised looks like an LSE which is read elsewhere."""
    inside = torch.arange(q.shape[2]) < seqlens.reshape(-1, 1, 1, 1)
    p = torch.exp((q @ k.mT * scale).masked_fill(~(inside & inside.mT), -torch.inf))
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True))
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def test_an_lse_that_the_target_makes_for_itself_is_read_by_its_own_strides():
    sizes = {"batch": 2, "heads": 2, "seqlen": 9, "head_dim": 8, "seqlens": (0, 5)}
    case = softmax_case(**sizes, recover=False, runs=((("do", "expanded"),),))
    report = probe(case, target_of(without_lse))
    assert report.verdict == "mismatch"
    assert not any(one.kind in ("stride", "layout") for one in report.diagnoses)
    assert not any("a fault of gradprobe" in sentence for sentence in report.known)
