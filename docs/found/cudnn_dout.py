"""SDPA's gradients on a GPU, by each backend, beside float64: the heads are merged behind it, as every model does."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa


def gradients(attention, dtype):
    q, k, v = (x.to(dtype).requires_grad_() for x in (Q, K, V))
    merged = attention(q, k, v).transpose(1, 2).flatten(2)  # so dO is a transposed view of a [B, L, H, D] tensor
    return torch.autograd.grad((merged * WEIGHT.to(dtype)).sum(), (q, k, v))


torch.manual_seed(0)
Q, K, V = torch.randn(3, 2, 4, 256, 64, device="cuda", dtype=torch.float16)
WEIGHT = torch.randn(2, 256, 4 * 64, device="cuda", dtype=torch.float16)
expected = gradients(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, torch.float64)
for name in "CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH":
    with sdpa_kernel(getattr(SDPBackend, name)):
        found = gradients(sdpa, torch.float16)
    off = [((f - e).abs().max() / e.abs().max()).item() for f, e in zip(found, expected, strict=True)]
    print(f"{name:20} error / largest value: dQ {off[0]:.4f}  dK {off[1]:.4f}  dV {off[2]:.4f}")
