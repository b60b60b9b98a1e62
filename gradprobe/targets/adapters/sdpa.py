"""PyTorch's scaled_dot_product_attention."""

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

_REFUSED = ("No available kernel", "No viable backend")


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, alibi: Tensor | None = None,
    mask: Tensor | None = None, seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    rows, keys = q.shape[2], k.shape[2]
    # The fused kernels take part only without a mask, which at long lengths would not fit either.
    is_plain = all(option is None for option in (window, bias, alibi, mask, seqlens))
    is_causal = causal and is_plain and (align == "top-left" or rows == keys)
    attn_mask = None
    if not is_causal and (causal or not is_plain):
        i, j = (torch.arange(size, device=q.device) for size in (rows, keys))
        # [M, N] how far each key lies before the diagonal of each row.
        distance = i[:, None] - j + (keys - rows if align == "bottom-right" else 0)
        seen = [] if mask is None else [mask]
        if causal or window is not None:
            left, right = (side if side >= 0 else rows + keys for side in window or (-1, -1))
            seen.append((distance <= left) & (distance >= (0 if causal else -right)))
        if seqlens is not None:
            ends = seqlens.view(-1, 1, 1, 1)
            seen += [i[:, None] < ends, j < ends]
        attn_mask = _joined(seen, bias, alibi, distance)
    how = {"is_causal": is_causal, "enable_gqa": q.shape[1] != k.shape[1]}
    return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale, **how)


def _joined(
    seen: list[Tensor], bias: Tensor | None, alibi: Tensor | None, distance: Tensor
) -> Tensor | None:
    """Bool, or what is added to the scores. In 16 bits alibi's larger terms would be off."""
    added = bias
    if alibi is not None:
        slanted = -alibi[:, None, None] * distance.abs()
        added = slanted[None] if bias is None else bias + slanted
    if not seen:
        return added
    visible = functools.reduce(torch.logical_and, seen)
    visible = visible[(None,) * (4 - visible.dim())]
    return visible if added is None else torch.where(visible, added, -torch.inf)


def _reasons(warned: Sequence[warnings.WarningMessage]) -> str:
    reasons = dict[str, None]()
    for each in warned:
        text = str(each.message).partition(" (Triggered internally")[0].strip().rstrip(".")
        if not text.endswith("because:") and "runtime disabled" not in text:
            reasons[text] = None
    return "; ".join(reasons) or "PyTorch gives no reason"


def _alone(backend: SDPBackend, kernel: str, *lacking: str) -> Callable[..., Tensor]:
    @functools.wraps(sdpa)
    def attention(*args: Any, **kwargs: Any) -> Tensor:
        with sdpa_kernel(backend), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                return sdpa(*args, **kwargs)
            except RuntimeError as error:
                if not str(error).startswith(_REFUSED):
                    raise
                words = f"PyTorch's {kernel} kernel does not take this: {_reasons(warned)}"
                raise RuntimeError(words) from error

    signature = inspect.signature(sdpa)
    kept = [own for own in signature.parameters.values() if own.name not in lacking]
    vars(attention)["__signature__"] = signature.replace(parameters=kept)
    return attention


sdpa_math = _alone(SDPBackend.MATH, "math")
# On a GPU it takes causal from the top left, and no other mask.
sdpa_flash = _alone(SDPBackend.FLASH_ATTENTION, "flash", "bias")
sdpa_efficient = _alone(SDPBackend.EFFICIENT_ATTENTION, "memory-efficient")
sdpa_cudnn = _alone(SDPBackend.CUDNN_ATTENTION, "cuDNN", "bias", "alibi")
