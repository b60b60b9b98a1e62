"""What values are taken for: tolerances that hold right arithmetic alone, and copies that host code makes."""

import numpy as np
import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of
from tests.cases import softmax_case

SMALL = {"batch": 2, "heads": 2, "seqlen": 36, "head_dim": 16}
# Of the largest value of a form: what is further off is seen.
MOST = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.16}


def roles_of(case):
    from gradprobe.diagnosis.roles import Roles  # imports Triton, which a case makes ready

    values = draw(case)
    return Roles(case, attention_of(case, values), values), values


def dense(values, arithmetic, held, *, is_causal, is_scaled=False):
    """The forms of an attention backward in an arithmetic, with O, P and dS held in a dtype before a second dot."""
    q, k, v, do = (values[name].to(arithmetic) for name in ("q", "k", "v", "do"))

    def kept(value):
        return value.to(held).to(arithmetic)

    scale = q.shape[-1] ** -0.5 * 1.4427
    raw = kept(q * scale) @ k.mT / scale if is_scaled else q @ k.mT
    s = raw * q.shape[-1] ** -0.5
    seen = torch.ones(s.shape[-2:], dtype=torch.bool)
    seen = seen.tril() if is_causal else seen
    lse = s.masked_fill(~seen, -float("inf")).logsumexp(-1, keepdim=True)
    p, dp = torch.exp(s - lse) * seen, do @ v.mT
    o = kept(p) @ v
    spread = dp - (do * kept(o)).sum(-1, keepdim=True)
    ds = p * spread
    return {
        "Q K^T": raw, "S": s, "S - LSE": (s - lse) * seen, "P": p, "dP": dp, "dP - delta": spread, "dS": ds,
        "LSE": lse[..., 0], "delta": (dp - spread)[..., 0],
        "O": o, "dS K": kept(ds) @ k, "dS^T Q": kept(ds).mT @ q, "dV": kept(p).mT @ do,
    }  # fmt: skip


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", MOST)
def test_right_arithmetic_is_within_them_and_they_are_small(dtype, is_causal, is_scaled):
    roles, values = roles_of(softmax_case(**SMALL, dtype=dtype, causal=is_causal))
    right = dense(values, torch.float64, torch.float64, is_causal=is_causal)
    held = getattr(torch, dtype)
    came = dense(values, torch.float32, held, is_causal=is_causal, is_scaled=is_scaled)
    for name, want in right.items():
        most = float(want.abs().max())
        allowed = roles._allowed(name, most)
        assert float((came[name].double() - want).abs().max()) <= allowed, name
        assert allowed <= MOST[dtype] * most, name


def tile_of(roles, head):
    from gradprobe.frontends.triton.interpreter.dataflow import Lanes

    m, n = (each.astype(np.int32) for each in np.mgrid[:36, :36])
    lanes = Lanes({"b": np.zeros_like(m), "h": np.full_like(m, head), "m": m, "n": n}, {})
    values = roles.forms.values
    return {name: values[name][0, head].copy() for name in roles._scores}, lanes


@pytest.mark.parametrize("dtype", MOST)
def test_a_value_that_is_further_off_in_one_element_is_no_intermediate(dtype):
    roles, _ = roles_of(softmax_case(**SMALL, dtype=dtype))
    tiles, lanes = tile_of(roles, 1)
    for name, tile in tiles.items():
        assert roles(tile, lanes).formula in (name, "scale * Q K^T")
        tile[3, 5] += 2 * roles._allowed(name, roles._most[name])
        assert not roles(tile, lanes).is_known
