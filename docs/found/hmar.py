"""HMAR's backward reads K by the strides of another tensor. Needs attn/ of NVlabs/HMAR."""

import torch
from attn.block_sparse_attn_interface import BlockSparseAttention

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
qkv, do = torch.randn(2, 96, 3, 4, 64, device=device).half(), torch.randn(2, 4, 96, 64, device=device).half()
attention = BlockSparseAttention([96], device)
for words, laid in (("contiguous", torch.Tensor.contiguous), ("slices of one qkv", lambda one: one)):
    theirs = [laid(one).detach().requires_grad_() for one in qkv.permute(2, 0, 3, 1, 4).unbind(0)]
    right = [one.detach().double().requires_grad_() for one in theirs]
    attention(*theirs, 0.125).backward(do)
    (torch.softmax(0.125 * right[0] @ right[1].mT, -1) @ right[2]).backward(do.double())
    errors = [(a.grad - b.grad).abs().max() / b.grad.abs().max() for a, b in zip(theirs, right, strict=True)]
    print(f"{words:17}  error / largest value:", "dQ {:.4f}  dK {:.4f}  dV {:.4f}".format(*errors))
