"""Adapters through which gradprobe checks an attention kernel: put yours where it says YOUR KERNEL.

    gradprobe check THIS_FILE.py:backward             the default case in three layouts
    gradprobe check THIS_FILE.py:backward --causal --heads 4 --kv-heads 2 --seqlen-k 100 --dtype float16
    gradprobe check THIS_FILE.py:forward              the same kernel through autograd

As it stands, plain PyTorch takes the kernel's place, and everything matches.
"""

import torch
from torch import Tensor

# Arguments come by name. An option of the command line that has no parameter here is refused, never dropped; add the
# parameter when your kernel has the option:
#
#   scale      float         of the scores, 1 / sqrt(D) unless --scale says otherwise
#   causal     bool          --causal: row i sees keys j <= i + N - M
#   align      str           --align top-left: row i sees keys j <= i
#   window     (int, int)    --window LEFT,RIGHT: keys that far from the diagonal; -1 for no limit
#   softcap    float         --softcap C: scores become C * tanh(S / C)
#   bias       4 axes        --bias: added to the scores; return its gradient as dBias
#   mask       bool, 4 axes  --mask KIND: True where a key may be seen
#   alibi      [H] float32   --alibi: slopes; S - alibi[h] * |diagonal - j|
#   sinks      [H] float32   --sinks: logits in the denominator only; return their gradient as dSink
#   keep, dropout            --dropout P: bool [B, H, M, N], True where kept, and P
#   seqlens    [B] int32     --seqlens N,...: live rows and keys of each batch, padded on the right
#   cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k    --cu-seqlens 0,N,...: packed sequences, batch 1
#   o, lse, delta            what your forward would have saved: O, LSE and delta, already right
#   dq, dk, dv, dbias, dsink full of NaN, to write the gradients into; what is there need not be returned
#
# The more a backward returns by name, the earlier gradprobe can say that it goes wrong:
#
#   LSE [B, H, M] log of the sum of exp(S), natural    P [B, H, M, N] exp(S - LSE)
#   O [B, H, M, Dv] P V                                dP [B, H, M, N] dO V^T
#   delta [B, H, M] rowsum(dO * O)                     dS [B, H, M, N] P * (dP - delta)
#   dQ, dK and dV in the shapes of q, k and v, the latter summed over the query heads that share it


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float, causal: bool = False
) -> dict[str, Tensor]:
    """A backward, since it takes dO: gradients, and whatever else the kernel can show.

    q [B, H, M, D], k [B, Hkv, N, D], v [B, Hkv, N, Dv] and do [B, H, M, Dv] have any strides, 0 among them. A kernel
    that needs them contiguous should raise: that layout is then skipped.
    """
    # YOUR KERNEL: dq, dk, dv = my_ops.attention_backward(q, k, v, do, scale, causal)
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        o = forward(*leaves, scale=scale, causal=causal)
    dq, dk, dv = torch.autograd.grad(o, leaves, do)
    return {"dQ": dq, "dK": dk, "dV": dv}


def forward(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False) -> Tensor:
    """A forward, since it takes no dO: O, for autograd."""
    # YOUR KERNEL: return MyAttention.apply(q, k, v, scale, causal)
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = (tensor.to(wide) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    s = scale * (q @ k.mT)
    if causal:
        hidden = torch.ones_like(s, dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        # A row that sees no key has a P of 0.
        p = s.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0)
    else:
        p = s.softmax(-1)
    return (p @ v).to(dtype)
