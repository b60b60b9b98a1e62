"""Faults that the default check cannot show, each with a case of the quick battery that does."""

from collections.abc import Callable

from tests.planted.planting import HIDDEN as KIND
from tests.planted.planting import Edit, Planted

LAZY, FLASH = "lazy", "flash"


def _in(of: str) -> Callable[..., Planted]:
    def record(name: str, shown_by: str, *edits: tuple[str, str, str]) -> Planted:
        made = tuple(Edit(*edit) for edit in edits)
        return Planted(name, of, made, kind=KIND, shown_by=shown_by)

    return record


_in_lazy, _in_flash = _in(LAZY), _in(FLASH)

HIDDEN = (
    _in_lazy("transposed_do_taken_for_blhd", "do=blhd", ("lazy_backward", "    options = _options(q, bias,",
        "    do = do.transpose(1, 2).reshape(do.shape) if do.transpose(1, 2).is_contiguous() else do\n"
        "    options = _options(q, bias,")),
    _in_lazy("lse_of_padded_rows_not_guarded", "an empty sequence, padded",
        ("lazy_dq_kernel", "stride_lsem, mask=offs_m < length, other=0.0",
        "stride_lsem, mask=offs_m < n_ctx, other=0.0")),
    _in_lazy("exp_without_the_maximum", "negative",
        ("lazy_forward_kernel", "tl.maximum(row_max, tl.max(s, 1))", "tl.zeros([BLOCK_M], tl.float32)")),
    _in_lazy("three_buffers_in_turn_never_cleared", "four calls, memory full of NaN or 7.0", ("lazy_backward",
        "dtau = torch.zeros((n_heads,), dtype=torch.float32, device=q.device)",
        "empty = [q.new_zeros((n_heads,), dtype=torch.float32) for _ in range(3)]\n"
        '    pool = vars(lazy_backward).setdefault("pool", empty)\n' "    pool.append(pool.pop(0))\n"
        "    dtau = pool[-1]")),
    _in_lazy("range_right_where_row_tiles_are_larger", "tiles=16x32", ("lazy_dkdv_kernel",
        "tile_n * BLOCK_N // BLOCK_M * BLOCK_M", "(tile_n * BLOCK_N + BLOCK_N - 1) // BLOCK_M * BLOCK_M")),
    _in_flash("kv_heads_mapped_by_remainder", "grouped",
        ("flash_dq_kernel", "kv_h = h // group", "kv_h = h % (n_heads // group)")),
    _in_flash("first_head_of_a_group_alone", "grouped",
        ("flash_dkdv_kernel", "for member in range(group)", "for member in range(1)")),
    _in_flash("diagonal_from_the_top_left", "causal M=96 N=131",
        ("flash_dkdv_kernel", "shift = n_keys - n_rows if BOTTOM_RIGHT else n_rows * 0", "shift = n_rows * 0")),
    _in_flash("sum_of_dead_rows_not_guarded", "dead-rows",
        ("flash_forward_kernel", "safe_sum = tl.where(row_sum == 0.0, 1.0, row_sum)", "safe_sum = row_sum")),
    _in_flash("lse_of_dead_rows_not_guarded", "dead-rows",
        ("flash_dkdv_kernel", 'lse = tl.where(lse == float("-inf"), 0.0, lse)', "lse = lse")),
    _in_flash("window_ends_with_the_first_key_of_a_tile", "window",
        ("rows_of_keys", "tl.minimum(last_n - shift + left + 1", "tl.minimum(start_n - shift + left + 1")),
    _in_flash("softcap_derivative_missing", "softcap", ("flash_dq_kernel", "ds *= steepness", "ds *= 1.0")),
)  # fmt: skip


def edits_of(name: str, of: str) -> tuple[Edit, ...]:
    """Those of the record of that name."""
    return next(fault.edits for fault in HIDDEN if (fault.name, fault.of) == (name, of))
