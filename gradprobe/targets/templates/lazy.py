"""Adapters through which gradprobe checks a lazy attention kernel: put yours where it says YOUR KERNEL.

    gradprobe check THIS_FILE.py:backward             the default case in three layouts
    gradprobe check THIS_FILE.py:forward              the same kernel through autograd

As it stands, plain PyTorch takes the kernel's place, and everything matches.
"""

import torch
from torch import Tensor

# Arguments come by name, so what you do not need you leave out, `tau` excepted: it tells that this is lazy attention,
# which is always causal. An option of the command line that has no parameter here is refused, never dropped:
#
#   tau        [H] float32      --tau T,...: O = relu(P + tau / (i + 1)) V; return its gradient as dTau
#   scale      float            of the scores, 1 / sqrt(D) unless --scale says otherwise
#   bias       [H, W] float32   added to the scores at distance i - j < W; return its gradient as dBias
#   seqlens    [B] int32        --seqlens N,...: live rows and keys of each batch, padded on the right
#   o, lse, delta               what your forward would have saved: O, LSE and delta, already right
#   dq, dk, dv, dbias, dtau     full of NaN, to write the gradients into; what is there need not be returned
#
# The more a backward returns by name, the earlier gradprobe can say that it goes wrong. None says "not in this case":
#
#   LSE [B, H, L] log of the sum of exp(S), natural    P [B, H, L, L] exp(S - LSE)
#   O [B, H, L, Dv] relu(P + tau / (i + 1)) V          dP [B, H, L, L] dO V^T where the relu lets it through, else 0
#   delta [B, H, L] rowsum(P * dP)                     dS [B, H, L, L] P * (dP - delta)


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None
) -> dict[str, Tensor]:  # fmt: skip
    """A backward, since it takes dO: gradients, and whatever else the kernel can show.

    q and k are [B, H, L, D], v and do [B, H, L, Dv], of any strides, 0 among them. A kernel that needs them contiguous
    should raise: that layout is then skipped.
    """
    # YOUR KERNEL: dq, dk, dv, dtau, dbias = my_ops.lazy_backward(q, k, v, do, tau, bias, scale)
    # return {"dQ": dq, "dK": dk, "dV": dv, "dTau": dtau, "dBias": dbias}
    given = {"dQ": q, "dK": k, "dV": v, "dTau": tau} | ({} if bias is None else {"dBias": bias})
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in given.values()]
        o = forward(*leaves[:3], tau=leaves[3], scale=scale, bias=(*leaves[4:], None)[0])
    return dict(zip(given, torch.autograd.grad(o, leaves, do), strict=True))


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """A forward, since it takes no dO: O, for autograd."""
    # YOUR KERNEL: return MyLazyAttention.apply(q, k, v, tau, bias, scale)
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v, tau = (tensor.to(wide) for tensor in (q, k, v, tau))
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    distance = i - i.mT
    s = scale * (q @ k.mT)
    if bias is not None:
        near = (distance >= 0) & (distance < bias.shape[1])
        s = s + torch.where(near, bias[:, distance.clamp(0, bias.shape[1] - 1)], 0)
    p = s.masked_fill(distance < 0, -torch.inf).softmax(-1)
    z = torch.where(distance >= 0, p + tau[:, None, None] / (i + 1), 0)
    return (z.relu() @ v).to(dtype)
