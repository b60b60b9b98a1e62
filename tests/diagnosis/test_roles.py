"""What values are taken for: tolerances that hold right arithmetic alone, and copies that host code makes."""

import numpy as np
import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import elements_of
from gradprobe.numerics.compare import attention_of
from tests.cases import lazy_case, softmax_case

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


@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"dropout": 0.3}, None, {}], ids=str)
def test_every_form_has_a_tolerance(options):
    case = lazy_case(**SMALL) if options is None else softmax_case(**SMALL, **options)
    roles, _ = roles_of(case)
    names = {name.partition(",")[0] for name in roles._scores} | {"LSE", "delta"}
    names |= {name for forms in roles._sums.values() for name, _, _ in forms}
    names |= {"maximum of S so far", "sum of exp(S - maximum) so far"}
    assert names <= roles.forms.tolerances.keys()
    assert all(0 < roles.forms.tolerances[name] < np.inf for name in names)


def tile_of(roles, head, at=slice(None)):
    """Values and lanes of the scores of a head, those of an index."""
    from gradprobe.frontends.triton.interpreter.dataflow import Lanes

    m, n = (each.astype(np.int32)[at] for each in np.mgrid[:36, :36])
    lanes = Lanes({"b": np.zeros_like(m), "h": np.full_like(m, head), "m": m, "n": n}, {})
    values = roles.forms.values
    return {name: values[name][0, head][at].copy() for name in roles._scores}, lanes


@pytest.mark.parametrize("dtype", MOST)
def test_a_value_that_is_further_off_in_one_element_is_no_intermediate(dtype):
    roles, _ = roles_of(softmax_case(**SMALL, dtype=dtype))
    tiles, lanes = tile_of(roles, 1)
    for name, tile in tiles.items():
        assert roles(tile, lanes).formula in (name, "scale * Q K^T")
        tile[3, 5] += 2 * roles._allowed(name, roles._most[name])
        assert not roles(tile, lanes).is_known


def test_of_rounding_where_nothing_is_due_nothing_is_said():
    roles, _ = roles_of(softmax_case(**SMALL, causal=True))
    first_row = np.zeros((36, 36), bool)
    first_row[0, 0] = True  # one key is seen there, so that dS is 0
    tiles, lanes = tile_of(roles, 1, first_row)
    assert np.abs(tiles["dS"]).max() < 1e-12
    assert roles(np.array([1e-8]), lanes) is None
    assert not roles(np.array([1e-2]), lanes).is_known


CASE = softmax_case(batch=2, heads=4, kv_heads=2, seqlen=12, head_dim=8)
VALUES = draw(CASE)
SIZES = {letter: CASE.size(letter) for letter in "bhgmnde"}
Q, K = VALUES["q"], VALUES["k"]
COPIES = {
    "bhmd": lambda: Q * 0.5, "bmhd": lambda: Q.transpose(1, 2).contiguous(),
    "(bh)md": lambda: Q.reshape(8, 12, 8).clone(),
    "(bm)hd": lambda: Q.transpose(1, 2).reshape(24, 4, 8).clone(),
    "bm1hd": lambda: Q.transpose(1, 2).unsqueeze(2).contiguous(),
    "bhnd": lambda: K.repeat_interleave(2, 1), "": lambda: torch.rand(2, 4, 12, 8),
}  # fmt: skip


@pytest.mark.parametrize("axes", COPIES)
def test_a_copy_has_the_axes_of_its_input_in_their_order_and_the_index_of_each_element(axes):
    from gradprobe.diagnosis.follow import copied
    from gradprobe.diagnosis.roles import Roles
    from gradprobe.frontends.triton.interpreter.dataflow.lanes import indices_at

    copy = COPIES[axes]()
    assert copied(copy, VALUES, Roles(CASE, attention_of(CASE, VALUES), VALUES)) == axes
    if axes:
        found = indices_at(elements_of(copy), axes, SIZES, np.arange(copy.numel()))
        b, d = found["b"], found["d"]
        own = (
            K[b, found["g"], found["n"], d] if axes == "bhnd" else Q[b, found["h"], found["m"], d]
        )
        assert torch.equal(own * (0.5 if axes == "bhmd" else 1.0), copy.flatten())


def test_what_answers_to_no_name_has_no_lines_behind_it():
    from gradprobe.frontends.triton.interpreter.dataflow.accesses import lines_behind

    class Fields:
        def __getattr__(self, name):
            raise ValueError(f"{name!r} is not in list")

    assert lines_behind(Fields(), [Fields(), None], 3) == frozenset()
