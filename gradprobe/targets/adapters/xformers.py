"""xFormers' memory_efficient_attention, written against the signatures of version 0.0.35.

Alibi is not offered: it would have to be added in the dtype of q, whose rounding of it exceeds that of the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor
from xformers.ops import fmha, memory_efficient_attention

from .visibility import Visibility


def xformers(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, mask: Tensor | None = None,
    seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by whichever kernel xFormers chooses.

    A causal mask alone is one of its classes, and whatever else hides keys a matrix.

    Raises:
        NotImplementedError: there are fewer key/value heads than query heads.
    """
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("xFormers differentiates no grouped heads; drop --kv-heads")
    hidden = (causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k)
    view = Visibility(q.shape[2], k.shape[2], q.device, *hidden)
    if bias is None and not any(one is not None for one in hidden[2:]):
        named = fmha.attn_bias
        right = named.LowerTriangularFromBottomRightMask
        corner = named.LowerTriangularMask if view.is_causal_from_top_left else right
        attn_bias = corner() if causal else None
    else:
        attn_bias = _added(view, q, bias)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    o: Tensor = memory_efficient_attention(q, k, v, attn_bias=attn_bias, p=0.0, scale=scale)
    return o.transpose(1, 2)


def _added(view: Visibility, q: Tensor, bias: Tensor | None) -> Tensor:
    """[B, H, M, N] in q's dtype, what is added to the scores.

    It is cut from a matrix whose rows are a multiple of 8 long, since the kernels read rows aligned to that.
    """
    full = (*q.shape[:3], view.keys)
    added = q.new_zeros(full) if bias is None else bias.expand(full)
    seen = view.visible()
    added = added if seen is None else torch.where(seen, added, -torch.inf)
    return torch.nn.functional.pad(added.to(q.dtype), (0, -view.keys % 8))[..., : view.keys]
