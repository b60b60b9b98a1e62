"""Faults planted in the lazy kernels, by class; each is one that people have made."""

from tests.planted.planting import everywhere, names, placer

FORWARD, PREPROCESS, DQ, DKDV = (
    "lazy_forward_kernel", "lazy_preprocess_kernel", "lazy_dq_kernel", "lazy_dkdv_kernel",
)  # fmt: skip
BACKWARD = (PREPROCESS, DQ, DKDV)
CONTIGUOUS = frozenset({"contiguous"})
lazy = placer("lazy")


HISTORICAL = lazy(
    "do_read_with_q_head_stride",
    "S1",
    everywhere(BACKWARD, "h * stride_doh", "h * stride_qh"),
    first="dP", head=1, own=names("dP dV"), inherited=names("delta dS dQ dK dBias dTau"), passes=CONTIGUOUS,
    options={"heads": 4}, cause="stride/do-head",
)  # fmt: skip

FAULTS = (
    HISTORICAL,
    lazy("do_read_with_q_head_stride_in_preprocess_alone", "S1",
        everywhere((PREPROCESS,), "h * stride_doh", "h * stride_qh"), first="delta", head=1, own=names("delta"),
        inherited=names("dS dQ dK dBias"), passes=CONTIGUOUS, cause="stride/do-head"),
    lazy("v_read_with_k_row_stride_in_dkdv", "S1",
        everywhere((DKDV,), "offs_n, offs_d, stride_vn", "offs_n, offs_d, stride_kn"), first="dK", head=0,
        own=names("dK"), passes=frozenset({"contiguous", "do=expanded"})),
    lazy("lse_of_head_0_in_the_backward", "S3",
        everywhere(BACKWARD, "b * stride_lseb + h * stride_lseh", "b * stride_lseb"), first="P", head=1, row=0,
        own=names("P"), inherited=names("dP delta dS dQ dK dV dBias dTau"), cause="index/lse-head"),
    lazy("tau_of_head_0_in_every_kernel", "S3",
        everywhere((FORWARD, *BACKWARD), "tau_ptr + h * stride_tauh", "tau_ptr"), first="O", head=1, row=0,
        own=names("O dP dV"), inherited=names("delta dS dQ dK dBias dTau"), cause="index/tau-head"),
    lazy("delta_of_batch_0_in_dq", "S3",
        everywhere((DQ,), "b * stride_deltab + h * stride_deltah", "h * stride_deltah"), first="dS", batch=1, head=0,
        own=names("dS"), inherited=names("dQ dBias"), cause="index/delta-batch"),
    lazy("mask_without_the_diagonal_in_dq", "M1",
        everywhere((DQ,), "valid = (distance >= 0)", "valid = (distance > 0)"), first="P", head=0, row=0,
        own=names("P dP"), inherited=names("dS dQ dBias dTau"), cause="mask/diagonal"),
    lazy("bias_window_one_short_in_dbias", "M1",
        everywhere((DQ,), "valid & (distance < window)", "valid & (distance < window - 1)"), first="dBias",
        batch=None, head=0, row=39, own=names("dBias"), cause="mask/bias-window"),
    lazy("padded_rows_not_masked_in_dq", "M3", everywhere((DQ,), " & (offs_m[:, None] < length)", ""), first="P",
        batch=1, head=0, row=45, own=names("P dP"), inherited=names("dS dQ dBias dTau"),
        options={"seqlens": (72, 45)}, cause="mask/length"),
    lazy("last_partial_row_tile_lost_in_dkdv", "M3",
        everywhere((DKDV,), "BLOCK_M, length, BLOCK_M", "BLOCK_M, length // BLOCK_M * BLOCK_M, BLOCK_M"), first="dK",
        head=0, row=0, own=names("dK dV"), cause="tile/dK-last-rows"),
    lazy("first_row_tile_skipped_in_dkdv", "M2",
        everywhere((DKDV,), "tile_n * BLOCK_N // BLOCK_M * BLOCK_M", "(tile_n * BLOCK_N // BLOCK_M + 1) * BLOCK_M"),
        first="dK", head=0, row=0, own=names("dK dV"), cause="tile/dK-first-rows"),
    lazy("scale_missing_in_dq", "A", everywhere((DQ,), "dq * scale", "dq"), first="dQ", head=0, row=1,
        own=names("dQ"), cause="factor/dQ"),
    lazy("delta_dropped_in_dq", "A", everywhere((DQ,), "ds = p * (dp - delta[:, None])", "ds = p * dp"),
        first="dS", head=0, row=0, own=names("dS"), inherited=names("dQ dBias"), cause="delta/dropped"),
    lazy("delta_from_do_and_o_as_in_softmax", "A",
        everywhere((PREPROCESS,), "tl.sum(p * dp, 1)", "tl.sum((p + floor[:, None]) * dp, 1)"), first="delta", head=0,
        row=0, own=names("delta"), inherited=names("dS dQ dK dBias"), cause="delta/formula"),
    lazy("relu_mask_missing_in_dp", "A",
        everywhere((DQ,), "valid & (p + (tau / position)[:, None] > 0.0)", "valid"), first="dP", head=0,
        own=names("dP"), inherited=names("dS dQ dBias dTau"), cause="relu/mask"),
    lazy("position_off_by_one_in_dkdv", "A", everywhere((DKDV,), "(offs_m + 1)", "(offs_m + 2)"), first="dK",
        head=0, own=names("dK dV"), cause="tau/position"),
    lazy("dk_overwritten_instead_of_added", "ACC", everywhere((DKDV,), "dk += tl.dot", "dk = tl.dot"), first="dK",
        head=0, row=0, own=names("dK"), cause="accumulation/dK"),
    lazy("dtau_stored_instead_of_added", "ACC", everywhere((DQ,), "tl.atomic_add(dtau_ptr", "tl.store(dtau_ptr"),
        first="dTau", batch=None, head=0, row=None, own=names("dTau"), cause="accumulation/dTau"),
)  # fmt: skip
