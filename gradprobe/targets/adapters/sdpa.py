"""PyTorch's scaled_dot_product_attention: its own choice of kernel, and each by itself."""

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

_REFUSED = ("No available kernel", "No viable backend")


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, bias: Tensor | None = None, alibi: Tensor | None = None,
    mask: Tensor | None = None, seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """O [B, H, M, Dv] by whichever kernel PyTorch chooses."""
    rows, keys = q.shape[2], k.shape[2]
    others = (window, bias, alibi, mask, seqlens, cu_seqlens_q)
    # The fused kernels take part only without a mask, which at long lengths would not fit either.
    is_plain = all(option is None for option in others)
    is_causal = causal and is_plain and (align == "top-left" or rows == keys)
    attn_mask = None
    if not is_causal and (causal or not is_plain):
        distance, in_one_sequence = _distances(q, k, align, cu_seqlens_q, cu_seqlens_k)
        seen = [part for part in (mask, in_one_sequence) if part is not None]
        if causal or window is not None:
            left, right = (side if side >= 0 else rows + keys for side in window or (-1, -1))
            seen.append((distance <= left) & (distance >= (0 if causal else -right)))
        if seqlens is not None:
            i, j = (torch.arange(size, device=q.device) for size in (rows, keys))
            ends = seqlens.view(-1, 1, 1, 1)
            seen += [i[:, None] < ends, j < ends]
        attn_mask = _joined(seen, bias, alibi, distance)
    how = {"is_causal": is_causal, "enable_gqa": q.shape[1] != k.shape[1]}
    return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale, **how)


def _distances(
    q: Tensor, k: Tensor, align: str, row_ends: Tensor | None, key_ends: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """[M, N] how far each key lies before the diagonal of each row; of packed sequences, whether both are in one."""
    i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    at_end = align == "bottom-right"
    if row_ends is None or key_ends is None:
        return i[:, None] - j + (len(j) - len(i) if at_end else 0), None
    of_row, of_key = (
        torch.searchsorted(ends[1:].contiguous().long(), index, right=True)
        for ends, index in ((row_ends, i), (key_ends, j))
    )
    diagonal = i - row_ends[of_row]
    if at_end:
        diagonal = diagonal + (key_ends.diff() - row_ends.diff())[of_row]
    return diagonal[:, None] - (j - key_ends[of_key]), of_row[:, None] == of_key


def _joined(
    seen: list[Tensor], bias: Tensor | None, alibi: Tensor | None, distance: Tensor
) -> Tensor | None:
    """A mask of four axes: bool, or what is added to the scores. In 16 bits alibi's larger terms would be off."""
    added = bias
    if alibi is not None:
        slanted = -alibi[:, None, None] * distance.abs()
        added = slanted[None] if bias is None else bias + slanted
    if not seen:
        return added
    visible = functools.reduce(torch.logical_and, seen)
    visible = visible[(None,) * (4 - visible.dim())]
    return visible if added is None else torch.where(visible, added, -torch.inf)


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
