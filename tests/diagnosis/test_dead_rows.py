"""Rows without a key: NaN throughout is laid on them where the target is right once they have one, and nowhere else."""

import torch

from tests.cases import softmax_case
from tests.emulated import softmax, target_of
from tests.probe import probe

SMALL = {
    "batch": 1,
    "heads": 2,
    "seqlen": 20,
    "head_dim": 8,
    "recover": False,
    "runs": ((),),
    "mask": "dead-rows",
}


def nan_of_dead_rows(q, k, v, do, mask, *, scale):
    results = softmax(q, k, v, do, scale=scale, mask=mask)
    spoilt = 1.0 if mask.any(-1).all() else torch.nan
    return {"dQ": results["dQ"], "dK": results["dK"] * spoilt, "dV": results["dV"]}


def nan_always(q, k, v, do, mask, *, scale):
    results = softmax(q, k, v, do, scale=scale, mask=mask)
    return {"dQ": results["dQ"], "dK": results["dK"] * torch.nan, "dV": results["dV"]}


def test_nan_that_goes_once_every_row_sees_a_key_is_one_of_dead_rows():
    cause = probe(softmax_case(**SMALL), target_of(nan_of_dead_rows)).diagnoses[0]
    assert (cause.fault, cause.summary) == (
        "dead/nan",
        "rows that see no key make dK NaN: exp(-inf - -inf), or 0 / 0",
    )


def test_nan_that_stays_is_not():
    report = probe(softmax_case(**SMALL), target_of(nan_always))
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
