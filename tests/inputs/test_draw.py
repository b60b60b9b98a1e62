"""Large tensors are counted in parts: the values depend on the seed alone."""

from statistics import NormalDist

import pytest
import torch

from gradprobe.inputs import draw as drawing
from gradprobe.inputs.draw import counted, draw
from gradprobe.model.resolution import resolve


def _large(monkeypatch, device="cpu", part=1 << 11):
    case = resolve({"heads": 4, "seqlen": 600, "head_dim": 64}, "softmax", takes_bias=False)
    monkeypatch.setattr(drawing, "_LARGE", 1 << 12)
    monkeypatch.setitem(drawing._PARTS, device, part)
    return draw(case, device)


def test_a_large_tensor_is_normal_and_the_same_in_any_parts(monkeypatch):
    drawn, other = _large(monkeypatch), _large(monkeypatch, part=1 << 14)
    for name, value in drawn.items():
        assert torch.equal(value, other[name])
    q, k = (drawn[name].flatten() for name in "qk")
    assert abs(float(q.mean())) < 0.02
    assert abs(float(q.std()) - 1) < 0.02
    assert len(q.unique()) > 0.99 * len(q)
    assert abs(float((q * k).mean())) < 0.02


@pytest.mark.gpu
def test_a_large_tensor_is_the_same_on_a_gpu(monkeypatch):
    there = _large(monkeypatch, "cuda")
    assert there["q"].is_cuda
    for name, value in _large(monkeypatch).items():
        assert torch.equal(value, there[name].cpu())


def test_counted_values_are_normal_and_those_of_plain_integers():
    values = counted(7, 0, 1 << 20, "cpu")
    ordered = torch.special.ndtr(values.double().sort().values)
    uniform = (torch.arange(1 << 20) + 0.5) / (1 << 20)
    # Kolmogorov's test, far beyond its quantiles.
    assert float((ordered - uniform).abs().max()) < 2.0 / (1 << 10)
    assert 4.5 < float(values.abs().max()) < 5.1
    neighbours = torch.stack([values[:-1], values[1:]])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.005
    for place in (0, 1, 12_345, (1 << 20) - 1):
        word = _splitmix(7, place // 2) >> 32 * (place % 2) & 0xFFFFFFFF
        expected = NormalDist().inv_cdf((word + 0.5) / 2**32)
        assert abs(float(values[place]) - expected) < 1e-3


def _splitmix(seed, place):
    """SplitMix64 by Python's integers."""
    mask = (1 << 64) - 1
    word = (seed + place * 0x9E3779B97F4A7C15) & mask
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
    word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
    return word ^ word >> 31
