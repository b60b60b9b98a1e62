"""SDPA's gradients on a GPU, by each backend, beside float64: one dO, laid as [B, H, L, D] and as [B, L, H, D]."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

# What stands behind attention: a loss on O as it is, and one behind merged heads. The values of dO are the same.
ENDS = {"contiguous": lambda x: x, "transposed view": lambda x: x.transpose(1, 2).flatten(2)}


def gradients(attention, inputs, dtype, end):
    q, k, v, do = (x.to(dtype).detach().requires_grad_() for x in inputs)
    return torch.autograd.grad((end(attention(q, k, v)) * end(do)).sum(), (q, k, v))


torch.manual_seed(0)
everything = torch.randn(4, 2, 4, 256, 64, device="cuda", dtype=torch.float16)
for name in "CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH":
    for rows, ways in (256, ["contiguous", "transposed view"]), (192, ["transposed view", "contiguous"]):
        inputs = everything[..., :rows, :].contiguous().unbind()
        expected = gradients(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, inputs, torch.float64, lambda x: x)
        for way in ways:
            with sdpa_kernel(getattr(SDPBackend, name)):
                found = gradients(sdpa, inputs, torch.float16, ENDS[way])
            off = [((f - e).abs().max() / e.abs().max()).item() for f, e in zip(found, expected, strict=True)]
            print(f"{name:20} {rows} rows, dO {way:16} dQ {off[0]:.4f}  dK {off[1]:.4f}  dV {off[2]:.4f}")
