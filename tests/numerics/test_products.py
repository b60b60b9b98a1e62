"""Products of float64 by exact products of float32 err by no more than was wanted, or say that they cannot."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given

from gradprobe.numerics import products
from gradprobe.numerics.least import tf32
from gradprobe.numerics.products import split_product
from tests.sampling import DRAWS, tries

NAN, INF = float("nan"), float("inf")


def drawn(shape, random):
    """A matrix of one kind: as inputs or P have it, with holes, of a wide range, of few bits, subnormal."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    normal = torch.randn(shape, dtype=torch.double, generator=generator)
    kind = random.choice(["normal", "narrow", "narrow", "P", "wide", "holes", "tiny", "powers", "subnormal"])
    if kind == "narrow":
        normal = normal.to(random.choice([torch.bfloat16, torch.float16, torch.float])).double()
    elif kind == "P":
        normal = (normal * random.choice([1, 5, 40])).softmax(-1)
    elif kind == "wide":
        normal = normal * 10.0 ** torch.randint(-9, 9, shape, generator=generator)
    elif kind == "holes":
        normal = normal * (torch.rand(shape, generator=generator) < 0.2)
    elif kind == "tiny":
        normal = normal * 1e-80
    elif kind == "powers":
        normal = normal.sign() * (1.0 - 2.0 ** -torch.randint(1, 50, shape, generator=generator).double())
    elif kind == "subnormal" and random.random() < 0.3:
        normal = normal * 1e-310
    return normal


def worst(found, a, b):
    """The largest error as a share of |a| @ |b|, exactly."""
    shares = [Fraction(0)]
    for i, row in enumerate(a.tolist()):
        for j, column in enumerate(b.mT.tolist()):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
            off, size = abs(Fraction(float(found[i, j])) - sum(terms)), sum(map(abs, terms))
            assert size or not off, "a sum of zeros is 0"
            shares.append(off / size if size else Fraction(0))
    return max(shares)


@tries(push=60, night=3_000)
@given(random=DRAWS)
def test_a_product_errs_by_no_more_than_wanted(random):
    m, n, terms = random.randint(1, 4), random.randint(1, 4), random.choice([1, 3, 40, 128, 129, 300])
    a, b = drawn((1, m, terms), random), drawn((1, n, terms), random).mT
    wanted = 2.0 ** -random.choice([20, 24, 30, 36, 40, 44])
    found = split_product(a, b, wanted)
    assert found is None or worst(found[0], a[0], b[0]) <= Fraction(wanted)


def test_what_16_bit_inputs_and_probabilities_hold_is_reached_and_16_bits_exactly():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, 70, 64, generator=generator).bfloat16().double() for _ in range(2))
    torch.testing.assert_close(split_product(q, k.mT, 2.0**-24), q @ k.mT, rtol=1e-15, atol=1e-15)
    p = (q @ k.mT / 8).softmax(-1)
    for wanted in (2.0**-24, 2.0**-36):
        assert worst(split_product(p, k, wanted)[0, :3], p[0, :3], k[0]) <= Fraction(wanted)


@pytest.mark.parametrize("digit", [127, -127])
def test_the_largest_digits_there_are_add_up_exactly(digit):
    """Of as many pairs and terms as one sum may have."""
    value = 63 * 2.0**-6 + sum(digit * 2.0 ** (-8 * at - 6) for at in range(1, 6))
    rows = products._Rows.of(torch.full((1, 3, 1024), value, dtype=torch.double))
    rows.scaled[:, 1, ::3] -= 2.0**-48
    ours, theirs = rows.digits(6, falling=False), rows.digits(6, falling=True)
    sums = ours @ theirs.mT
    assert float(sums.abs().max()) > 2**22
    assert bool((sums.long() == ours.long() @ theirs.mT.long()).all())


@pytest.mark.parametrize("odd", [NAN, INF, 1e200])
def test_what_no_digits_hold_is_left_to_float64(odd):
    a, b = torch.ones(1, 3, 4, dtype=torch.double), torch.zeros(1, 4, 2, dtype=torch.double)
    a[0, 1, 2] = odd
    assert split_product(a, b, 2.0**-20) is None
    assert split_product(b.mT, a.mT, 2.0**-20) is None


@pytest.mark.parametrize("small", [1e-30, 1e-60])
def test_an_element_below_all_digits_is_not_lost_in_silence(small):
    a, b = torch.tensor([[[1.0, small]]], dtype=torch.double), torch.tensor([[[0.0], [1.0]]], dtype=torch.double)
    assert split_product(a, b, 2.0**-20) is None


def test_no_more_of_the_larger_operand_is_cut_at_once_than_a_piece(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 300, 200, dtype=torch.double, generator=generator)
    b = torch.randn(2, 200, 8, dtype=torch.double, generator=generator)
    whole, cut = split_product(a, b, 2.0**-30), []
    digits = products._Rows.digits
    monkeypatch.setattr(products, "PIECE", 8_000)
    monkeypatch.setattr(
        products._Rows, "digits", lambda self, *of, **how: cut.append(self.scaled.numel()) or digits(self, *of, **how)
    )
    for found in (split_product(a, b, 2.0**-30), split_product(b.mT, a.mT, 2.0**-30).mT):
        torch.testing.assert_close(found, whole, rtol=0, atol=2.0**-24)
    assert len(cut) == 60
    assert max(cut) <= 8_000


def test_tf32_is_off_while_digits_are_multiplied_whatever_is_set(monkeypatch):
    seen, product, one = [], products._product, torch.ones(1, 2, 2, dtype=torch.double)
    monkeypatch.setattr(
        products, "_product", lambda *of: seen.append(torch.backends.cuda.matmul.allow_tf32) or product(*of)
    )
    with tf32():
        split_product(one, one, 2.0**-20)
        assert torch.backends.cuda.matmul.allow_tf32
    assert seen == [False]
