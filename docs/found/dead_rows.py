"""SDPA's gradients on a GPU, by each backend, beside float64: causal, with 64 keys of padding on the left."""

from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa


def gradients(attention, dtype):
    q, k, v = (x.to(dtype).requires_grad_() for x in (Q, K, V))
    return torch.autograd.grad((attention(q, k, v, MASK) * WEIGHT.to(dtype)).sum(), (q, k, v))


def by_formula(q, k, v, mask):  # a row that sees no key has P = 0
    return (torch.softmax((q @ k.mT / 8).masked_fill(~mask, -1e300), -1) * mask) @ v


torch.manual_seed(0)
Q, K, V, WEIGHT = torch.randn(4, 2, 4, 256, 64, device="cuda", dtype=torch.float16)
MASK = torch.ones(256, 256, device="cuda", dtype=torch.bool).tril()
MASK[:, :64] = False  # rows 0 to 63 see no key
expected = gradients(by_formula, torch.float64)
for name in "default", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH":
    with sdpa_kernel(getattr(SDPBackend, name)) if name != "default" else nullcontext():
        found = gradients(sdpa, torch.float16)
    off = [((f - e).abs().max() / e.abs().max()).item() for f, e in zip(found, expected, strict=True)]
    print(f"{name:20} error / largest value: dQ {off[0]:.4f}  dK {off[1]:.4f}  dV {off[2]:.4f}")
