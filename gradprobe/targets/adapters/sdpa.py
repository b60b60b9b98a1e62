"""PyTorch's scaled_dot_product_attention: its own choice of kernel, and each kernel by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .visibility import Visibility

_REFUSED = ("No available kernel", "No viable backend")


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, alibi: Tensor | None = None,
    mask: Tensor | None = None, seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by whichever kernel PyTorch chooses."""
    view = Visibility(
        q.shape[2], k.shape[2], q.device, causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k
    )  # fmt: skip
    return _attention(q, k, v, scale, view, bias, alibi)


def sdpa_math(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, alibi: Tensor | None = None,
    mask: Tensor | None = None, seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by plain operations, which take every option."""
    view = Visibility(
        q.shape[2], k.shape[2], q.device, causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k
    )  # fmt: skip
    return _pinned(SDPBackend.MATH, "math", lambda: _attention(q, k, v, scale, view, bias, alibi))


def sdpa_flash(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, alibi: Tensor | None = None, mask: Tensor | None = None,
    seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by FlashAttention, which on a GPU takes causal from the top left and no other mask.

    Raises:
        RuntimeError: it does not take this.
    """
    view = Visibility(
        q.shape[2], k.shape[2], q.device, causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k
    )  # fmt: skip
    return _pinned(SDPBackend.FLASH_ATTENTION, "flash", lambda: _attention(q, k, v, scale, view, None, alibi))


def sdpa_efficient(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, alibi: Tensor | None = None,
    mask: Tensor | None = None, seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by the memory-efficient kernel, which is one of GPUs.

    Raises:
        RuntimeError: it does not take this.
    """
    view = Visibility(
        q.shape[2], k.shape[2], q.device, causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k
    )  # fmt: skip
    return _pinned(
        SDPBackend.EFFICIENT_ATTENTION, "memory-efficient", lambda: _attention(q, k, v, scale, view, bias, alibi)
    )


def sdpa_cudnn(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, mask: Tensor | None = None, seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by cuDNN.

    Raises:
        RuntimeError: it does not take this.
    """
    view = Visibility(
        q.shape[2], k.shape[2], q.device, causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k
    )  # fmt: skip
    return _pinned(SDPBackend.CUDNN_ATTENTION, "cuDNN", lambda: _attention(q, k, v, scale, view, None, None))


def _attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, view: Visibility, bias: Tensor | None, alibi: Tensor | None
) -> Tensor:
    # Only without a mask do the fused kernels take part.
    is_causal = bias is None and alibi is None and view.is_causal_from_top_left
    attn_mask = None if is_causal else _attn_mask(view, bias, alibi)
    return scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _attn_mask(view: Visibility, bias: Tensor | None, alibi: Tensor | None) -> Tensor | None:
    """What attn_mask takes: None, a boolean mask, or what is added to the scores with -inf where none is seen.

    Alibi stays in the dtype of its slopes: in 16 bits its larger terms would be off by more than the scores are.
    """
    added = bias
    if alibi is not None:
        slanted = -alibi[:, None, None] * view.distance().abs()
        added = slanted[None] if bias is None else bias + slanted
    seen = view.seen()
    if added is None or seen is None:
        return seen if added is None else added
    return torch.where(seen, added, -torch.inf)


def _pinned(backend: SDPBackend, kernel: str, attention: Callable[[], Tensor]) -> Tensor:
    """Runs with one kernel allowed.

    Raises:
        RuntimeError: the kernel does not take this, in the words of PyTorch's warnings.
    """
    with sdpa_kernel(backend), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            return attention()
        except RuntimeError as error:
            if not str(error).startswith(_REFUSED):
                raise
            raise RuntimeError(f"PyTorch's {kernel} kernel does not take this: {_reasons(told)}") from error


def _reasons(told: list[warnings.WarningMessage]) -> str:
    """Why PyTorch could not use a kernel; not that the others are turned off."""
    words = [str(warning.message).partition(" (Triggered internally")[0].strip() for warning in told]
    reasons = [word for word in words if not word.endswith("because:") and "runtime disabled" not in word]
    return "; ".join(dict.fromkeys(reason.rstrip(".") for reason in reasons)) or "PyTorch gives no reason"
