"""Triton's tutorial 06 without causal. Needs a GPU, and as its argument the file of triton-lang/triton at 702215e2."""

import importlib.util
import sys

import torch

spec = importlib.util.spec_from_file_location("tutorial", sys.argv[1])
tutorial = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tutorial)

torch.manual_seed(0)
Q, K, V, DO = torch.randn(4, 2, 4, 256, 64, device="cuda", dtype=torch.float16)
for causal in True, False:
    hidden = torch.ones(256, 256, device="cuda", dtype=torch.bool).triu(1) & causal
    q, k, v = (x.double().requires_grad_() for x in (Q, K, V))
    o = torch.softmax((q @ k.mT / 8).masked_fill(hidden, -torch.inf), -1) @ v
    expected = [o, *torch.autograd.grad(o, (q, k, v), DO.double())]
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
    o = tutorial.attention(q, k, v, causal, 0.125)
    found = [o, *torch.autograd.grad(o, (q, k, v), DO)]
    off = [((f - e).abs().max() / e.abs().max()).item() for f, e in zip(found, expected, strict=True)]
    print(f"{causal=!s:6} error / largest value: O {off[0]:.4f}  dQ {off[1]:.4f}  dK {off[2]:.4f}  dV {off[3]:.4f}")
