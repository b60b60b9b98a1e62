"""A reference as people write it: right but for one line, in which P is made anew of scores without their mask."""

import torch


def attention(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return s.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def manual_attention_backward(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    masked = s.masked_fill(hidden, float("-inf"))
    o = masked.softmax(-1) @ v
    p = s.softmax(-1)
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    return scale * ds @ k, scale * ds.mT @ q, p.mT @ do
