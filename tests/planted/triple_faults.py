"""Faults that need three properties of a case at once, as they were found in kernels that many use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradprobe.model.case import Case
from tests.planted.planting import Edit


@dataclass(frozen=True)
class Triple:
    """A fault of flash.py that shows where all of `when` holds."""

    name: str
    source: str
    """Where it, or one of its kind, was met; "" where nowhere."""
    when: Mapping[str, Callable[[Case], bool]]
    """Its properties, each by itself."""
    edits: tuple[Edit, ...]
    also: frozenset[str] = frozenset()
    """Which of pairs and quick show it too."""

    def shows(self, case: Case) -> bool:
        return all(holds(case) for holds in self.when.values())


def _fault(
    name: str, source: str, when: Mapping[str, Any], *edits: tuple[str, str, str], also: frozenset[str] = frozenset()
) -> Triple:
    return Triple(name, source, when, tuple(Edit(*edit) for edit in edits), also)


_CAUSAL = {"causal": lambda case: case.causal}
_GROUPED = {"grouped": lambda case: case.kv_heads < case.heads}
_NEGATIVE = {"every logit very negative": lambda case: case.pattern == "negative"}
_PACKED = {"packed": lambda case: case.cu_seqlens_q is not None}
_SOFTCAP = {"softcap": lambda case: case.softcap is not None}
_DKDV_LSE = (
    "lse = tl.load(lse_ptr + h * stride_lseh + offs_m * stride_lsem, mask=offs_m < live_m, other=0.0)\n"
    '            lse = tl.where(lse == float("-inf"), 0.0, lse)'
)
_DKDV_SHIFT = "shift = n_keys - n_rows if BOTTOM_RIGHT else n_rows * 0"

TRIPLES = (
    _fault(
        "padding_of_the_last_128_keys_scores_0",
        "https://github.com/pytorch/pytorch/issues/196678",
        {
            "mask tensor": lambda case: case.mask is not None,
            "N % 128 == 64": lambda case: case.seqlen_k % 128 == 64,
            **_NEGATIVE,
        },
        (
            "flash_dq_kernel",
            "for start_n in range(first, end, BLOCK_N):",
            "padded = (n_keys + 127) // 128 * 128 if HAS_MASK else n_keys\n"
            "    padded = tl.where(padded - n_keys == 64, padded, n_keys)\n"
            "    end = tl.where(end > 0, tl.maximum(end, padded), end)\n"
            "    for start_n in range(first, end, BLOCK_N):",
        ),
        (
            "flash_dq_kernel",
            'p = tl.exp(tl.where(seen, s, float("-inf")) - lse[:, None])',
            'p = tl.exp(tl.where(seen | ((n >= n_keys) & (n < padded)), s, float("-inf")) - lse[:, None])',
        ),
    ),
    _fault(
        "one_row_is_read_for_a_whole_tile",
        "https://github.com/NVIDIA/cudnn-frontend/issues/1072",
        {
            "M = 1": lambda case: case.seqlen_q == 1,
            "N % 128 == 0": lambda case: case.seqlen_k % 128 == 0,
            **_NEGATIVE,
        },
        (
            "flash_dkdv_kernel",
            _DKDV_LSE,
            "is_one = (n_rows == 1) & (n_keys % 128 == 0)\n"
            "            row = tl.where(is_one, offs_m * 0, offs_m)\n"
            "            lse = tl.load(lse_ptr + h * stride_lseh + row * stride_lsem, mask=row < live_m, other=0.0)\n"
            '            lse = tl.where(lse == float("-inf"), 0.0, lse)',
        ),
        (
            "flash_dkdv_kernel",
            'p = tl.exp(tl.where(seen, s, float("-inf")) - lse[None, :])',
            'p = tl.exp(tl.where(seen | (is_one & (m > 0)), s, float("-inf")) - lse[None, :])',
        ),
    ),
    _fault(
        "rows_beyond_the_end_without_lse",
        "https://github.com/pytorch/pytorch/issues/153799",
        {
            **_CAUSAL,
            "alibi": lambda case: case.alibi,
            "M % 32": lambda case: case.seqlen_q % 32 != 0,
        },
        (
            "flash_dkdv_kernel",
            _DKDV_LSE,
            'beyond = float("-inf") if HAS_ALIBI else 0.0\n'
            "            lse = tl.load(lse_ptr + h * stride_lseh + offs_m * stride_lsem, offs_m < live_m, beyond)\n"
            '            lse = tl.where((lse == float("-inf")) & ((right != 0) | (offs_m < live_m)), 0.0, lse)',
        ),
    ),
    _fault(
        "dkdv_of_groups_counts_causal_from_the_top_left",
        "https://github.com/xlite-dev/ffpa-attn/pull/300",
        {
            **_CAUSAL,
            **_GROUPED,
            "M < N": lambda case: case.seqlen_q < case.seqlen_k,
        },
        (
            "flash_dkdv_kernel",
            _DKDV_SHIFT,
            _DKDV_SHIFT + "\n    shift = tl.where((group > 1) & (right == 0) & (shift > 0), 0, shift)",
        ),
    ),
    _fault(
        "scores_of_large_head_dims_rounded_to_bfloat16",
        "https://github.com/NVIDIA/TransformerEngine/issues/3216",
        {
            "D = 128": lambda case: case.head_dim == 128,
            "bfloat16": lambda case: case.dtype == "bfloat16",
            "logits far from 0": lambda case: case.pattern in ("negative", "positive"),
        },
        (
            "flash_dq_kernel",
            "s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale",
            "s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale\n"
            "        if BLOCK_D == 128:\n"
            "            s = tl.where((head_dim == 128) & (tl.abs(s) > 64), s.to(q.dtype).to(tl.float32), s)",
        ),
    ),
    _fault(
        "window_of_longer_keys_begins_a_tile_late_in_bfloat16",
        "",
        {
            "bfloat16": lambda case: case.dtype == "bfloat16",
            "M < N": lambda case: case.seqlen_q < case.seqlen_k and case.align == "bottom-right",
            "window": lambda case: case.window is not None,
        },
        (
            "flash_dq_kernel",
            "for start_n in range(first, end, BLOCK_N):",
            "if q.dtype == tl.bfloat16:\n"
            "        first += tl.where((shift > 0) & (left < n_keys), BLOCK_N, 0)\n"
            "    for start_n in range(first, end, BLOCK_N):",
        ),
    ),
    _fault(
        "transposed_do_of_groups_taken_for_blhd_in_a_partial_tile",
        "",
        {
            **_GROUPED,
            "dO transposed": lambda case: ("do", "blhd") in case.layouts,
            "M % 32": lambda case: case.seqlen_q % 32 != 0 and case.seqlen_q > 1,
        },
        (
            "flash_backward",
            "extras, strides, constants, (n_sequences, row_tiles)",
            "is_view = do.transpose(1, 2).is_contiguous() and not do.is_contiguous()\n"
            "    if is_view and q.shape[1] != k.shape[1] and q.shape[2] % 32:\n"
            "        do = do.transpose(1, 2).reshape(do.shape)\n"
            "    extras, strides, constants, (n_sequences, row_tiles)",
        ),
    ),
    _fault(
        "lse_clamped_where_a_tile_has_one_row",
        "",
        {**_CAUSAL, **_NEGATIVE, "M % 64 == 1": lambda case: case.seqlen_q % 64 == 1},
        (
            "flash_dq_kernel",
            'lse = tl.where(lse == float("-inf"), 0.0, lse)',
            'lse = tl.where(lse == float("-inf"), 0.0, lse)\n'
            "    is_one = (right == 0) & (n_rows % 64 == 1) & (offs_m == n_rows - 1)\n"
            "    lse = tl.where(is_one, tl.maximum(lse, -100.0), lse)",
        ),
    ),
    _fault(
        "softcap_of_packed_sequences_without_its_derivative",
        "https://github.com/Dao-AILab/flash-attention/pull/2544",
        {**_PACKED, **_SOFTCAP},
        ("flash_dq_kernel", "ds *= steepness", "ds *= 1.0 if PACKED else steepness"),
        also=frozenset({"pairs"}),
    ),
)
