"""Faults of what a row sees: masks, flags, and rows that see nothing."""

from tests.planted.battery_faults import FLASH, LAZY, edits_of
from tests.planted.planting import planter

lazy, flash, flash_cuda = planter("lazy"), planter("flash"), planter("flash-cuda")
FORWARD, DQ, DKDV = "flash_forward_kernel", "flash_dq_kernel", "flash_dkdv_kernel"
SEEN = "visible(m, n, distance, live_m, live_n, left, right)"
TALL = {"seqlen": None, "seqlen_q": 50, "seqlen_k": 36}

MASKS = (
    flash("M1", "a_key_beyond_the_diagonal_in_dkdv", "mask/beyond-diagonal", "dK",
        (DKDV, SEEN, "visible(m, n, distance, live_m, live_n, left, right + 1)"), causal=True),
    flash("M1", "diagonal_from_the_top_left_in_dkdv", "mask/align", "dK",
        *edits_of("diagonal_from_the_top_left", FLASH), seqlen=None, seqlen_q=36, seqlen_k=50, causal=True),
    flash("M1", "alibi_forgotten_in_dkdv", "mask/alibi", "dK", (DKDV, "if HAS_ALIBI:", "if HAS_ALIBI and False:"),
        alibi=True),
    lazy("M1", "bias_forgotten_in_dq", "mask/bias", "P",
        ("lazy_dq_kernel", "add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS)", "s")),
    flash("M1", "softcap_forgotten_in_dq", "mask/softcap", "P",
        (DQ, "s, steepness = soften(s, softcap)", "_, steepness = soften(s, softcap)"), softcap=2.0),
)  # fmt: skip

DEAD = (
    flash("N1", "sum_of_dead_rows_not_guarded", "dead/nan", "O", *edits_of("sum_of_dead_rows_not_guarded", FLASH),
        **TALL, causal=True),
    flash("N1", "lse_of_dead_rows_not_guarded_in_dkdv", "dead/nan", "dK",
        *edits_of("lse_of_dead_rows_not_guarded", FLASH), mask="dead-rows"),
    flash("N1", "masked_by_a_finite_number", "dead/uniform", "P",
        (FORWARD, 's = tl.where(seen, s, float("-inf"))', "s = tl.where(seen, s, -1e9)"),
        (DQ, 'tl.where(seen, s, float("-inf"))', "tl.where(seen, s, -1e9)"),
        (DKDV, 'tl.where(seen, s, float("-inf"))', "tl.where(seen, s, -1e9)"), mask="dead-rows"),
    lazy("N1", "lse_of_padded_rows_not_guarded", "dead/nan", "P", *edits_of("lse_of_padded_rows_not_guarded", LAZY),
        seqlens=(44, 21), in_batch=1, row=21),
    flash_cuda("N1", "sum_of_dead_rows_not_guarded", "dead/nan", "O",
        ("flash_forward", "tile.row_sum[i] == 0.0f ? 1.0f : tile.row_sum[i]", "tile.row_sum[i]"), **TALL),
)  # fmt: skip
