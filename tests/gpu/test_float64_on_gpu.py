"""On a GPU: split products are exact where they say so, and no verdict depends on how float64 is multiplied."""

import pytest
import torch

from gradprobe.numerics import float64, sieve
from gradprobe.numerics.least import tf32
from gradprobe.numerics.products import _Rows, split_product
from gradprobe.pipeline.probe import probe
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(1, 1024, 8192, 128), (4, 1024, 128, 4096), (3, 130, 1000, 70), (1, 8, 128, 8)])
def test_sums_of_digits_are_exact_in_float32_whatever_multiplies_them(shape):
    groups, m, terms, n = shape
    largest = 63 * 2.0**-6 + sum(127 * 2.0 ** (-8 * at - 6) for at in range(1, 6))
    a, b = (torch.full((groups, rows, terms), largest, dtype=torch.double, device="cuda") for rows in (m, n))
    a[:, ::3, ::2] -= 2.0**-46
    ours, theirs = _Rows.of(a).digits(6, falling=False), _Rows.of(b).digits(6, falling=True)
    assert bool((ours @ theirs.mT == (ours.double() @ theirs.mT.double())).all())


@pytest.mark.parametrize("wanted", [2.0**-24, 2.0**-36])
def test_products_err_by_no_more_than_wanted_also_where_tf32_is_set(wanted):
    generator = torch.Generator("cuda").manual_seed(0)
    logits, v = (
        torch.randn(2, rows, columns, dtype=torch.double, device="cuda", generator=generator)
        for rows, columns in ((1000, 3000), (3000, 128))
    )
    # Of elements that are much smaller than the largest of their rows more digits would be asked for than there are.
    p = (3 * logits).softmax(-1).clamp(min=1e-6)
    for b in (v, v.bfloat16().double()):
        with tf32():
            found = split_product(p, b, wanted)
        assert found is not None
        assert bool(((found - p @ b).abs() <= (wanted + 2.0**-45) * (p @ b.abs())).all())


def wrong(q, k, v, do, *, scale):
    """Four rows of dS of one head are 5 % too large."""
    p = (scale * q.float() @ k.mT.float()).softmax(-1)
    dp = do.float() @ v.mT.float()
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    ds[:, 1, 40:44] *= 1.05
    results = {"dQ": scale * ds @ k.float(), "dK": scale * ds.mT @ q.float(), "dV": p.mT @ do.float()}
    return {name: value.to(q.dtype) for name, value in results.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("least_scores", [0, 1 << 60], ids=["sieve", "whole budget"])
def test_right_and_wrong_kernels_get_the_same_verdict(dtype, least_scores, monkeypatch):
    monkeypatch.setattr(sieve, "LEAST_SCORES", least_scores)
    sizes = {"seqlen": 700, "head_dim": 64, "dtype": dtype, "runs": ((),), "recover": False}
    cases = [
        ("flash", softmax_case(causal=True, **sizes)), ("sdpa-math", softmax_case(causal=True, **sizes)),
        ("lazy", lazy_case(**sizes)), (wrong, softmax_case(**sizes)),
    ]  # fmt: skip
    for word_or_function, case in cases:
        target, found = find_target(word_or_function), []
        for word in float64.WAYS:
            monkeypatch.setenv(float64.VARIABLE, word)
            report = probe(case, target, why=False)
            first = [run.measured.first for run in report.runs if run.measured]
            found.append((report.verdict, [(one.intermediate, one.head, one.row) for one in first if one]))
            assert (report.products is not None) == (word == "split")
        assert found[0] == found[1], target.name


def test_the_faster_way_is_chosen_by_measurement(monkeypatch):
    monkeypatch.delenv(float64.VARIABLE, raising=False)
    way = float64.way_on(torch.device("cuda", torch.cuda.current_device()))
    print(f"float64's own product takes {way.ratio:.2f} times as long as the split one")
    assert way.is_split is (way.ratio > float64.FASTER)
