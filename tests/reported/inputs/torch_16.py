"""Right forwards in torch's own operations, each of which rounds what it stores to the dtype of q."""

import torch


def _hidden(q, k):
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])


def all_in_16_bits(q, k, v, causal=False):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(_hidden(q, k), -torch.inf) if causal else scores
    return torch.softmax(scores, -1) @ v


def softmax_in_32_bits(q, k, v, causal=False):
    """As models of a well-known library have it: the mask is the dtype's least number, added."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        least = torch.finfo(q.dtype).min
        scores = scores + torch.zeros_like(scores[0, 0]).masked_fill(_hidden(q, k), least)
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
