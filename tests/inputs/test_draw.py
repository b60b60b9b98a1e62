"""Large tensors are drawn in parts: the values depend on the seed alone."""

import torch

from gradprobe.inputs import draw as drawing
from gradprobe.inputs.draw import draw
from gradprobe.model.resolution import resolve


def test_a_large_tensor_is_normal_and_the_same_on_any_number_of_cores(monkeypatch):
    case = resolve({"heads": 4, "seqlen": 600, "head_dim": 64}, "softmax", takes_bias=False)
    monkeypatch.setattr(drawing, "_LARGE", 1 << 12)
    monkeypatch.setattr(drawing, "_PART", 1 << 11)
    together = draw(case)
    pool = drawing.ThreadPoolExecutor
    monkeypatch.setattr(drawing, "ThreadPoolExecutor", lambda: pool(max_workers=1))
    alone = draw(case)
    for name, value in together.items():
        assert torch.equal(value, alone[name])
    q, k = (together[name].flatten() for name in "qk")
    assert abs(float(q.mean())) < 0.02
    assert abs(float(q.std()) - 1) < 0.02
    assert len(q.unique()) > 0.99 * len(q)
    assert abs(float((q * k).mean())) < 0.02
