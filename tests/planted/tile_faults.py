"""Faults of what is visited: ranges of tiles, partial tiles, padding, memory that nothing was written to."""

from tests.planted.battery_faults import FLASH, LAZY, edits_of
from tests.planted.planting import planter

lazy, flash, flash_cuda = planter("lazy"), planter("flash"), planter("flash-cuda")
DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
SEEN = "visible(m, n, distance, live_m, live_n, left, right)"
NOT_PADDED = ("const long long live_n = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_n;",
              "const long long live_n = n_ctx_n;")  # fmt: skip

TILES = (
    flash("M2", "rows_end_with_the_first_key_of_a_tile", "tile/dK-last-rows", "dK",
        *edits_of("window_ends_with_the_first_key_of_a_tile", FLASH), window=(9, 4)),
    lazy("M2", "range_right_where_row_tiles_are_larger", "tile/dK-first-rows", "dK",
        *edits_of("range_right_where_row_tiles_are_larger", LAZY), block_m=16, block_n=32),
    flash("M2", "causal_range_one_tile_short_in_dq", "tile/dQ-last-keys", "P",
        (DQ, "range(first, end, BLOCK_N)", "range(first, end - BLOCK_N, BLOCK_N)"), causal=True),
    lazy("M2", "last_whole_key_tile_left_out_in_preprocess", "tile/delta-last-keys", "delta",
        ("lazy_preprocess_kernel", "range(0, end_n, BLOCK_N)", "range(0, end_n - BLOCK_N, BLOCK_N)")),
    flash_cuda("M2", "first_row_tile_skipped_in_dkdv", "tile/dK-first-rows", "dK",
        ("flash_dkdv", "start_m = first_m; start_m < end_m", "start_m = first_m + BLOCK_M; start_m < end_m"),
        causal=False, seqlen=72),
)  # fmt: skip

TAILS = (
    lazy("M3", "last_partial_key_tile_lost_in_preprocess", "tile/delta-last-keys", "delta",
        ("lazy_preprocess_kernel", "range(0, end_n, BLOCK_N)", "range(0, end_n // BLOCK_N * BLOCK_N, BLOCK_N)")),
    flash("M3", "keys_beyond_the_end_read_in_dq", "tail/k", "dQ",
        (DQ, SEEN, "visible(m, n, distance, live_m, live_n + BLOCK_N, left, right)"),
        (DQ, "stride_kn, stride_kd, live_n,", "stride_kn, stride_kd, live_n + BLOCK_N,")),
    flash("M3", "rows_beyond_the_end_read_in_dkdv", "tail/q", "dK",
        (DKDV, SEEN, "visible(m, n, distance, live_m + BLOCK_M, live_n, left, right)"),
        (DKDV, "stride_qm, stride_qd, live_m,", "stride_qm, stride_qd, live_m + BLOCK_M,"),
        (DKDV, "stride_dom, stride_dod, live_m,", "stride_dom, stride_dod, live_m + BLOCK_M,")),
    flash("M3", "padded_keys_not_masked_in_dq", "mask/length", "P",
        (DQ, "live_n = load_live(seqlens_ptr, b, stride_seqlensb, n_keys, HAS_SEQLENS)", "live_n = n_keys"), batch=2,
        seqlens=(36, 21), in_batch=1),
    flash_cuda("M3", "padded_keys_not_masked_in_dkdv", "mask/length", "dK", ("flash_dkdv", *NOT_PADDED), batch=2,
        seqlens=(36, 21), in_batch=1, causal=False),
    flash_cuda("M3", "last_partial_row_tile_lost_in_dkdv", "tile/dK-last-rows", "dK",
        ("flash_dkdv", "left + 1, live_m)", "left + 1, live_m) / BLOCK_M * BLOCK_M"), causal=False),
    flash_cuda("M3", "last_partial_key_tile_lost_in_dq", "tile/dQ-last-keys", "P",
        ("flash_dq", "right + 1, live_n)", "right + 1, live_n) / BLOCK_N * BLOCK_N")),
)  # fmt: skip

UNWRITTEN = (
    lazy("N2", "dbias_not_zeroed", "unwritten/dBias", "dBias",
        ("lazy_backward", "torch.zeros(bias.shape", "torch.empty(bias.shape"), poison=True),
    flash("N2", "exports_not_zeroed", "unwritten/P", "P", ("flash_backward", "(q.new_zeros((", "(q.new_empty(("),
        poison=True, causal=True),
    flash("N2", "padded_rows_of_dq_never_stored", "unwritten/dQ", "dQ",
        (DQ, "stride_dqm, stride_dqd, n_rows, head_dim", "stride_dqm, stride_dqd, live_m, head_dim"), batch=2,
        seqlens=(36, 21), in_batch=1, row=21),
)  # fmt: skip
