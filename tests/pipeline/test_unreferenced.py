"""`--oracle identities`: right kernels keep them in every arithmetic, wrong ones are told by family, at any length."""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.run_identities import beyond_the_mask, family_of, identities_alone, silenced
from gradprobe.reference import Attention
from tests.cli.command import run
from tests.emulated import Arithmetic, case_of, changed, ran
from tests.numerics.test_budget import PATTERNS
from tests.sampling import sampled

ARITHMETIC = {
    "ieee": ("float32", "ieee", Arithmetic()),
    "exp2": ("float32", "ieee", Arithmetic(exp2=True, backwards=True)),
    "tf32": ("float32", "tf32", Arithmetic(tf32="cut", tensor_core=True)),
    "tf32-nearest": ("float32", "tf32", Arithmetic(tf32="nearest", tensor_core=True, delta_from_o=False)),
    "float16": ("float16", "ieee", Arithmetic(tensor_core=True)),
    "bfloat16": ("bfloat16", "ieee", Arithmetic(tensor_core=True, folded=True)),
}
OPTIONS = [
    {"causal": True},
    {"heads": 4, "kv_heads": 2, "window": (20, 3)},
    {"softcap": 5.0},
    {"sinks": True, "causal": True},
    {"alibi": True, "causal": True},
    {"seqlens": (70, 31), "batch": 2},
    {"mask": "padding"},
    {"seqlen_q": 30},
    {"seqlen_k": 30, "causal": True},
]
SIZES = {"batch": 1, "heads": 2, "head_dim": 16}


def left_over(family, options, arithmetic):
    """By identity, the share of its allowance that a right kernel uses."""
    dtype, dots, how = ARITHMETIC[arithmetic]
    length = {} if {"seqlen_q", "seqlen_k"} & options.keys() else {"seqlen": 70}
    case = case_of(family, **SIZES | length | options, dtype=dtype)
    values = draw(case)
    x, trace = attention_of(case, values), ran(case, how, values=values)
    found = identities_alone(case, x, trace, precision_of(dtype, dots))
    return {one.key: one.residual / one.budget for one in found if one.residual}


PUSH = [({"causal": True}, "tf32", "offset"), ({"seqlens": (70, 31), "batch": 2}, "bfloat16", "small")]


@sampled("options, arithmetic, pattern", list(product(OPTIONS, ARITHMETIC, PATTERNS)), push=PUSH)
def test_no_right_kernel_breaks_an_identity(options, arithmetic, pattern):
    shares = left_over("softmax", {**options, "pattern": pattern}, arithmetic)
    assert max(shares.values(), default=0.0) < 0.7, shares


LAZY_PUSH = [((-1.0,), "float16", "small")]


@sampled("tau, arithmetic, pattern", list(product((None, (-1.0,), (0.0,)), ARITHMETIC, PATTERNS)), push=LAZY_PUSH)
def test_nor_does_a_lazy_one(tau, arithmetic, pattern):
    shares = left_over("lazy", {"tau": tau, "pattern": pattern}, arithmetic)
    assert max(shares.values(), default=0.0) < 0.7, shares


def broken(name, change, dtype="float32"):
    case = case_of("softmax", **SIZES, seqlen=300, causal=True, dtype=dtype)
    values, precision = draw(case), precision_of(dtype, "ieee")
    x = attention_of(case, values)

    fault = changed(name, change)
    silent = beyond_the_mask(case, x, ran(case, values=silenced(values, case, x), fault=fault))
    found = [*identities_alone(case, x, ran(case, values=values, fault=fault), precision), silent]
    return {one.key for one in found if not one.holds}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "change", "keys", "words"),
    [
        ("dK", lambda t: t.mul_(2), {"I3"}, "the scale of dQ or dK alone"),
        ("delta", lambda t: t.zero_(), {"I2"}, "delta"),
        ("dV", lambda t: t[:, :, ::2].zero_(), {"I1"}, "dV is scaled or not added up whole"),
        ("P", lambda t: t[..., 5:, 9:].fill_(0.25), {"I1", "I2", "I6"}, "a mask"),
    ],
)
def test_a_fault_breaks_what_names_its_family(name, change, keys, words, dtype):
    found = broken(name, change, dtype)
    assert keys <= found
    assert words in family_of(found)


def test_a_result_that_is_not_finite_is_no_match():
    assert {"I3", "I4"} <= broken("O", lambda t: t.fill_(float("nan"))) | broken(
        "dQ", lambda t: t[0, 0, 0].fill_(torch.inf)
    )


SLIDING = '''
import torch

def pairs(t):
    """[B, H, N, D] -> [B, H, blocks, 128, D]: each 64 keys with the 64 before them."""
    blocks = t.unflatten(2, (-1, 64))
    return torch.cat((torch.nn.functional.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :, :-1], blocks), 3)

def unpaired(t):
    before, own = (part.clone() for part in t.split(64, 3))
    own[:, :, :-1] += before[:, :, 1:]
    return own.flatten(2, 3)

def attention(q, k, v, do, *, scale, causal, window):
    assert window == (63, 0)
    q, do, k, v = q.unflatten(2, (-1, 64)), do.unflatten(2, (-1, 64)), pairs(k), pairs(v)
    i, j = torch.arange(64)[:, None] + 64, torch.arange(128)
    seen = ((j <= i) & (j >= i - 63)).expand(q.shape[2], -1, -1).clone()
    seen[0, :, :64] = False
    s = (scale * q @ k.mT).masked_fill(~seen, -torch.inf)
    p = s.softmax(-1)
    o = p @ v
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ do
    return {"O": o.flatten(2, 3), "dQ": dq.flatten(2, 3), "dK": unpaired(dk), "dV": unpaired(dv)}

def ungrown(q, k, v, do, *, scale, causal, window):
    results = attention(q, k, v, do, scale=scale, causal=causal, window=window)
    return results | {"dK": results["dK"] * 1.5}
'''
LONG = "--oracle identities --causal --window 63,0 --batch 1 --heads 2 --head-dim 8 --seqlen"


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made while it is open."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ARG002
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.nightly  # the mode alone imports for seconds
def test_a_long_case_makes_nothing_of_the_size_of_its_scores(tmp_path):
    (tmp_path / "sliding.py").write_text(SLIDING)
    with Largest() as largest:
        assert run(f"check {tmp_path}/sliding.py:attention {LONG} 65536").code == 0
    assert largest.elements < 65536**2 / 100


def test_a_long_case_is_judged_without_a_reference(tmp_path, monkeypatch):
    monkeypatch.setattr(Attention, "valid", None)  # which whatever has a tile of scores asks for
    (tmp_path / "sliding.py").write_text(SLIDING)
    right = run(f"check {tmp_path}/sliding.py:attention {LONG} 4096")
    assert right.code == 0, right.out + right.err
    assert right.out.startswith("MATCH")
    words = " ".join(right.out.split())
    assert "8 identities kept in 3 layouts (float32, ieee dots); no reference was computed" in words
    assert "these identities do not see what forward and backward do wrongly alike" in words
    assert "compared no element" in words
    wrong = run(f"check {tmp_path}/sliding.py:ungrown {LONG} 4096 --runs contiguous")
    assert wrong.code == 1
    assert wrong.first_mismatches[0].startswith("FIRST MISMATCH I3 batch=-")
    assert "name the family: the scale of dQ or dK alone" in " ".join(wrong.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check flash --bias", "--bias-axes without m or n"),
        ("check flash --mask random", "of the size of the scores"),
        ("check flash --reference flash", "drop --reference"),
        ("check sdpa --battery", "one plain check"),
        pytest.param("strides sdpa-math --fast", "compares no element", marks=pytest.mark.nightly),
        ("baseline save sdpa-math", "compares no element"),
        ("diff dS sdpa-math", "compares no element"),
    ],
)
def test_what_it_cannot_do_is_refused(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run(f"{words} --oracle identities")
    assert ran.code == 2
    assert said in ran.err
