"""PyTorch's scaled_dot_product_attention: its own choice of kernel, and each by itself. What hides keys from rows."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from . import narrowed

_REFUSED = ("No available kernel", "No viable backend")


@dataclass(frozen=True)
class Visibility:
    """The options that hide keys from rows, of one problem with M query rows and N keys."""

    rows: int
    keys: int
    device: torch.device
    causal: bool = False
    align: str = "bottom-right"
    window: tuple[int, int] | None = None
    mask: Tensor | None = None
    seqlens: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None

    @property
    def hides_by_more(self) -> bool:
        """Whether more than causal hides keys."""
        given = (self.window, self.mask, self.seqlens, self.cu_seqlens_q)
        return any(option is not None for option in given)

    @property
    def is_causal_from_top_left(self) -> bool:
        """Whether a causal mask whose diagonal begins at row 0 and key 0 says it all."""
        begins_there = self.align == "top-left" or self.rows == self.keys
        return self.causal and begins_there and not self.hides_by_more

    def limits(self) -> tuple[int, int]:
        """How many keys before its diagonal, and how many after it, a row may see at most."""
        left, right = self.window or (-1, -1)
        every = self.rows + self.keys
        return left if left >= 0 else every, 0 if self.causal else right if right >= 0 else every

    def diagonal(self) -> Tensor:
        """[M] the key, counted in its sequence, at which the diagonal of each row lies."""
        i = torch.arange(self.rows, device=self.device)
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            return i + (self.keys - self.rows if self.align == "bottom-right" else 0)
        of_row = self.sequence_of_rows()
        shift = self.cu_seqlens_k.diff() - self.cu_seqlens_q.diff()
        local = i - self.cu_seqlens_q[of_row]
        return local + shift[of_row] if self.align == "bottom-right" else local

    def places(self) -> Tensor:
        """[N] the index of each key in its sequence."""
        j = torch.arange(self.keys, device=self.device)
        return j if self.cu_seqlens_k is None else j - self.cu_seqlens_k[self.sequence_of_keys()]

    def sequence_of_rows(self) -> Tensor:
        """[M] the packed sequence of each row."""
        return _sequence(self.cu_seqlens_q, self.rows, self.device)

    def sequence_of_keys(self) -> Tensor:
        """[N] the packed sequence of each key."""
        return _sequence(self.cu_seqlens_k, self.keys, self.device)

    def distance(self) -> Tensor:
        """[M, N] how far each key lies before the diagonal of each row. It means nothing between two sequences."""
        return self.diagonal()[:, None] - self.places()

    def visible(self) -> Tensor | None:
        """bool, four axes that broadcast to [B, H, M, N], True where a row may see a key; None where all do."""
        parts = [] if self.mask is None else [self.mask]
        if self.window is not None or self.causal:
            (left, right), distance = self.limits(), self.distance()[None, None]
            parts.append((distance <= left) & (distance >= -right))
        if self.seqlens is not None:
            ends = self.seqlens.view(-1, 1, 1, 1)
            parts.append(torch.arange(self.rows, device=self.device)[:, None] < ends)
            parts.append(torch.arange(self.keys, device=self.device) < ends)
        if self.cu_seqlens_q is not None:
            parts.append(
                (self.sequence_of_rows()[:, None] == self.sequence_of_keys())[None, None]
            )
        return functools.reduce(torch.logical_and, parts) if parts else None

    def added(self, bias: Tensor | None, alibi: Tensor | None) -> Tensor | None:
        """What is added to the scores, four axes that broadcast to [B, H, M, N]; None for nothing.

        Alibi stays in the dtype of its slopes: in 16 bits its larger terms would be off by more than the scores are.
        """
        if alibi is None:
            return bias
        slanted = -alibi[:, None, None] * self.distance().abs()
        return slanted[None] if bias is None else bias + slanted


def _sequence(ends: Tensor | None, count: int, device: torch.device) -> Tensor:
    """[count] the sequence of each index: the last that begins at or before it. An empty one holds no index."""
    index = torch.arange(count, device=device)
    if ends is None:
        return torch.zeros_like(index)
    return torch.searchsorted(ends[1:].contiguous().long(), index, right=True)


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
    seen, added = (None, None) if is_causal else (view.visible(), view.added(bias, alibi))
    attn_mask = added if seen is None else seen
    if seen is not None and added is not None:
        attn_mask = torch.where(seen, added, -torch.inf)
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )


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
