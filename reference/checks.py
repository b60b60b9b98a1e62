"""What no Attention can be: every refusal is a sentence with the subject, the rule and what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .problem import Attention

SOFTMAX_ONLY = ("alibi", "mask", "sinks", "keep", "cu_seqlens_q", "cu_seqlens_k")
ALIGNMENTS = ("bottom-right", "top-left")


def check(x: Attention) -> None:
    """Does nothing for a problem that exists.

    Raises:
        ValueError: where shapes do not agree or an option does not exist in the family.
    """
    if x.family not in ("lazy", "softmax"):
        raise ValueError(f"family must be lazy or softmax, got {x.family!r}")
    for name in ("q", "k", "v", "do"):
        if getattr(x, name).dim() != 4:
            raise ValueError(f"{name} must have four axes, [B, H, L, D], got {_shape(getattr(x, name))}")
    _check_heads(x)
    _check_lengths(x)
    if x.softcap is not None and not x.softcap > 0:
        raise ValueError(f"softcap must be above 0, got {x.softcap}")
    _check_lazy(x) if x.family == "lazy" else _check_softmax(x)


def _check_heads(x: Attention) -> None:
    (batch, heads, queries, dim), (_, kv_heads, keys, _) = x.q.shape, x.k.shape
    value_dim = x.v.shape[3]
    expected = {
        "k": (batch, kv_heads, keys, dim), "v": (batch, kv_heads, keys, value_dim),
        "do": (batch, heads, queries, value_dim),
    }  # fmt: skip
    for name, shape in expected.items():
        if getattr(x, name).shape != shape:
            raise ValueError(f"{name} must be {list(shape)} beside q {_shape(x.q)}, got {_shape(getattr(x, name))}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"the heads of k must divide those of q, got {kv_heads} and {heads}")


def _check_lengths(x: Attention) -> None:
    if x.seqlens is None:
        return
    if x.n_query != x.n_key:
        raise ValueError(f"seqlens (right padding) needs as many keys as query rows, got {x.n_key} and {x.n_query}")
    if x.seqlens.shape != (x.n_batch,):
        raise ValueError(f"seqlens must be [B] = [{x.n_batch}], got {_shape(x.seqlens)}")
    if bool(((x.seqlens < 0) | (x.seqlens > x.n_query)).any()):
        raise ValueError(f"seqlens must lie in 0 to {x.n_query}, got {x.seqlens.tolist()}")


def _check_lazy(x: Attention) -> None:
    if x.tau is None or x.tau.shape != (x.n_heads,):
        raise ValueError(f"the lazy family needs tau [H] = [{x.n_heads}], got {_shape(x.tau)}")
    if x.bias is not None and (x.bias.dim() != 2 or x.bias.shape[0] != x.n_heads or not x.bias.shape[1]):
        raise ValueError(f"lazy bias must be [H, W] with H = {x.n_heads} and W > 0, got {_shape(x.bias)}")
    if x.window is not None or x.softcap is not None or not x.causal:
        raise ValueError("the lazy family is always causal and has neither window nor softcap")
    if x.align != "bottom-right":
        raise ValueError(f"the lazy family has no align, got {x.align!r}")
    for name in SOFTMAX_ONLY:
        if getattr(x, name) is not None:
            raise ValueError(f"the lazy family has no {name}, got {_shape(getattr(x, name))}")
    if x.dropout:
        raise ValueError(f"the lazy family has no dropout, got {x.dropout}")
    if x.q.shape != x.k.shape:
        raise ValueError(f"the lazy family needs q and k of one shape, got {_shape(x.q)} and {_shape(x.k)}")


def _check_softmax(x: Attention) -> None:
    if x.tau is not None:
        raise ValueError("the softmax family has no tau")
    if x.align not in ALIGNMENTS:
        raise ValueError(f"align must be {' or '.join(ALIGNMENTS)}, got {x.align!r}")
    for name in ("bias", "mask"):
        _check_broadcast(x, name)
    if x.mask is not None and x.mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True where a row attends, got {x.mask.dtype}")
    for name in ("alibi", "sinks"):
        tensor = getattr(x, name)
        if tensor is not None and tensor.shape != (x.n_heads,):
            raise ValueError(f"{name} must be [H] = [{x.n_heads}], got {_shape(tensor)}")
    _check_dropout(x)
    _check_packed(x)


def _check_broadcast(x: Attention, name: str) -> None:
    tensor, full = getattr(x, name), _full(x)
    if tensor is None:
        return
    shape = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    if len(shape) > 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ValueError(f"{name} must broadcast to [B, H, M, N] = {list(full)}, got {_shape(tensor)}")


def _check_dropout(x: Attention) -> None:
    if not 0 <= x.dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {x.dropout}")
    if x.dropout and x.keep is None:
        raise ValueError(f"dropout needs keep, what it kept, got None beside a dropout of {x.dropout}")
    if x.keep is not None and x.keep.dtype != torch.bool:
        raise ValueError(f"keep must be bool, True where P is kept, got {x.keep.dtype}")
    if x.keep is not None and x.keep.shape != _full(x):
        raise ValueError(f"keep must be [B, H, M, N] = {list(_full(x))}, got {_shape(x.keep)}")


def _check_packed(x: Attention) -> None:
    if x.cu_seqlens_q is None:
        if x.cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k needs cu_seqlens_q, got None")
        return
    if x.seqlens is not None:
        raise ValueError("seqlens (right padding) and cu_seqlens (packed sequences) exclude each other, got both")
    if x.n_batch != 1:
        raise ValueError(f"cu_seqlens needs a batch of 1, which holds every packed sequence, got {x.n_batch}")
    assert x.cu_seqlens_k is not None
    _check_cumulative("cu_seqlens_q", x.cu_seqlens_q, x.n_query)
    _check_cumulative("cu_seqlens_k", x.cu_seqlens_k, x.n_key)
    if x.cu_seqlens_q.shape != x.cu_seqlens_k.shape:
        got = f"{len(x.cu_seqlens_q)} and {len(x.cu_seqlens_k)}"
        raise ValueError(f"cu_seqlens_q and cu_seqlens_k must have as many entries as each other, got {got}")


def _check_cumulative(name: str, tensor: Tensor, total: int) -> None:
    if tensor.dim() != 1 or len(tensor) < 2 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be [n + 1] integers for n sequences, got {tensor.dtype} {_shape(tensor)}")
    ends = tensor.tolist()
    if ends[0] != 0 or ends[-1] != total or ends != sorted(ends):
        raise ValueError(f"{name} must ascend from 0 to {total}, got {_short(ends)}")


def _short(numbers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]" if len(numbers) <= 8 else f"{[*numbers[:4]]} ... {numbers[-1]}"


def _full(x: Attention) -> tuple[int, int, int, int]:
    return x.n_batch, x.n_heads, x.n_query, x.n_key


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)
