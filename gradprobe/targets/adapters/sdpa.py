"""PyTorch's scaled_dot_product_attention: its own choice of kernel, and each kernel by itself."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from . import narrowed
from .visibility import Visibility

_REFUSED = ("No available kernel", "No viable backend")


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, alibi: Tensor | None = None,
    mask: Tensor | None = None, seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by whichever kernel PyTorch chooses."""
    hidden = (causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k)
    view = Visibility(q.shape[2], k.shape[2], q.device, *hidden)
    # The fused kernels take part only without a mask, which at long lengths would not fit either.
    is_causal = bias is None and alibi is None and view.is_causal_from_top_left
    attn_mask = None if is_causal else _attn_mask(view.visible(), view.added(bias, alibi))
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _attn_mask(seen: Tensor | None, added: Tensor | None) -> Tensor | None:
    """A boolean mask, or what is added to the scores with -inf where none is seen."""
    if seen is None or added is None:
        return seen if added is None else added
    return torch.where(seen, added, -torch.inf)


@contextlib.contextmanager
def _only(backend: SDPBackend, kernel: str) -> Iterator[None]:
    """While open, PyTorch may use one kernel; what that refuses is told in the words of PyTorch's warnings."""
    with sdpa_kernel(backend), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith(_REFUSED):
                raise
            words = f"PyTorch's {kernel} kernel does not take this: {_reasons(told)}"
            raise RuntimeError(words) from error


def _reasons(told: list[warnings.WarningMessage]) -> str:
    """Why PyTorch could not use the kernel, without the remarks that other kernels are turned off."""
    reasons = dict[str, None]()
    for warning in told:
        word = str(warning.message).partition(" (Triggered internally")[0].strip()
        if not word.endswith("because:") and "runtime disabled" not in word:
            reasons[word.rstrip(".")] = None
    return "; ".join(reasons) or "PyTorch gives no reason"


_flash = functools.partial(_only, SDPBackend.FLASH_ATTENTION, "flash")
_efficient = functools.partial(_only, SDPBackend.EFFICIENT_ATTENTION, "memory-efficient")
_cudnn = functools.partial(_only, SDPBackend.CUDNN_ATTENTION, "cuDNN")
sdpa_math = narrowed(sdpa, (), functools.partial(_only, SDPBackend.MATH, "math"))
# On a GPU it takes causal from the top left, and no other mask.
sdpa_flash = narrowed(sdpa, ("bias",), _flash)
sdpa_efficient = narrowed(sdpa, (), _efficient)
sdpa_cudnn = narrowed(sdpa, ("bias", "alibi"), _cudnn)
