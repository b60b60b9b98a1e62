"""Adapters through which gradprobe checks a lazy attention kernel: put yours where it says YOUR KERNEL.

    gradprobe check THIS_FILE.py:backward             the default case in three layouts
    gradprobe check THIS_FILE.py:backward --heads 4 --tau=-1 --dtype float16
    gradprobe diff dS THIS_FILE.py:backward           one intermediate close up
    gradprobe check THIS_FILE.py:forward              the same kernel through autograd

As it stands, plain PyTorch takes the kernel's place and everything matches. Change one thing at a time.
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
# A backward returns by name what the kernel keeps; the more, the earlier gradprobe can say that it goes wrong. None
# says "not in this case":
#
#   LSE [B, H, L] log of the sum of exp(S), natural    P [B, H, L, L] exp(S - LSE)
#   O [B, H, L, Dv] relu(P + tau / (i + 1)) V          dP [B, H, L, L] dO V^T where the relu lets it through, else 0
#   delta [B, H, L] rowsum(P * dP)                     dS [B, H, L, L] P * (dP - delta)
#   dQ, dK, dV, dTau and dBias                         in the shapes of q, k, v, tau and bias


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None
) -> dict[str, Tensor]:  # fmt: skip
    """A backward, since it takes dO: gradients, and whatever else the kernel can show.

    Args:
        q, k: [B, H, L, D].
        v, do: [B, H, L, Dv]; do is the gradient of O. Any of them may have any strides, 0 among them. A kernel that
            needs them contiguous should raise; gradprobe then notes that layout as skipped.
    """
    # YOUR KERNEL: dq, dk, dv, dtau, dbias = my_ops.lazy_backward(q, k, v, do, tau, bias, scale)
    # return {"dQ": dq, "dK": dk, "dV": dv, "dTau": dtau, "dBias": dbias}
    return _in_place_of_your_kernel(q, k, v, do, tau, bias, scale)


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """A forward, since it takes no dO: O, which gradprobe differentiates through autograd.

    Use this for a torch.autograd.Function or a whole module. Tensors of [B, L, H, D] are .transpose(1, 2) away.
    """
    # YOUR KERNEL: return MyLazyAttention.apply(q, k, v, tau, bias, scale)
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    _, _, z = _scores_to_weights(q, k, tau, bias, scale)
    return (z.relu() @ v).to(q.dtype)


def _scores_to_weights(
    q: Tensor, k: Tensor, tau: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """In at least float32: LSE, P, and P + tau / (i + 1), which is 0 where a key may not be seen."""
    wide = torch.promote_types(q.dtype, torch.float32)
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    distance = i - i.mT
    s = scale * (q.to(wide) @ k.to(wide).mT)
    if bias is not None:
        near = (distance >= 0) & (distance < bias.shape[1])
        s = s + torch.where(near, bias[:, distance.clamp(0, bias.shape[1] - 1)], 0)
    s = s.masked_fill(distance < 0, -torch.inf)
    lse = s.logsumexp(-1)
    p = torch.exp(s - lse[..., None])
    z = torch.where(distance >= 0, p + tau.to(wide)[:, None, None] / (i + 1), 0)
    return lse, p, z


def _in_place_of_your_kernel(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, tau: Tensor, bias: Tensor | None, scale: float
) -> dict[str, Tensor]:
    lse, p, z = _scores_to_weights(q, k, tau, bias, scale)
    dtype = q.dtype
    q, k, v, do = (tensor.to(p.dtype) for tensor in (q, k, v, do))
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    dp = (do @ v.mT) * (z > 0)
    delta = (p * dp).sum(-1)
    ds = p * (dp - delta[..., None])
    found = {"LSE": lse, "P": p, "dP": dp, "delta": delta, "dS": ds}
    found["dTau"] = (dp / (i + 1)).sum((0, 2, 3))
    if bias is not None:
        distance = i - i.mT
        near = (distance >= 0) & (distance < bias.shape[1])
        by_distance = ds.sum(0)[:, near].to(bias.dtype)
        found["dBias"] = torch.zeros_like(bias).index_add_(1, distance[near], by_distance)
    narrow = {"O": z.relu() @ v, "dQ": scale * (ds @ k), "dK": scale * (ds.mT @ q)}
    narrow["dV"] = z.relu().mT @ do
    return found | {name: tensor.to(dtype) for name, tensor in narrow.items()}
