"""FlagAttention where k and v do not lie alike. Needs a GPU, and src/ of FlagOpen/FlagAttention at ee91638."""

import torch
from flag_attn import flash_attention

torch.manual_seed(0)
q, k, v, do = torch.randn(4, 4, 16, 1024, 64, device="cuda", dtype=torch.float16)
expected = torch.softmax(q.double() @ k.double().mT / 8, -1) @ v.double()
ways = {"k and v contiguous": (k, v), "v a [B, L, H, D] view": (k, v.transpose(1, 2).contiguous().transpose(1, 2))}
for name, (k_laid, v_laid) in ways.items():
    found = flash_attention(q, k_laid, v_laid, causal=False)
    print(f"{name:22} error / largest value: O {((found - expected).abs().max() / expected.abs().max()).item():.4f}")
