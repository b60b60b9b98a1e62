"""FlashWindowAttention's dQ and dK lack the scale. Needs flash_swin_attn/ of zzd1992/FlashWindowAttention."""

import torch
from flash_swin_attn.func_flash_swin import flash_swin_attn_func

torch.manual_seed(0)
q, k, v, do, bias, scale = *torch.randn(4, 1, 1, 64, 32), torch.randn(1, 64, 64), 32**-0.5
mine, right = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
flash_swin_attn_func(*mine, bias, scale).backward(do)
(torch.softmax(scale * right[0] @ right[1].mT + bias, -1) @ right[2]).backward(do)
ratios = [(one.grad / other.grad).median() for one, other in zip(mine, right, strict=True)]
print("theirs / right: dQ {:.4f} dK {:.4f} dV {:.4f}".format(*ratios))
