"""Faults planted in the flash kernels: INSIDE where dQ, dK and dV alone come out, EXPORTED where everything does."""

from tests.planted.planting import Edit, everywhere, names, placer

PREPROCESS, DQ, DKDV, HOST = (
    "flash_preprocess_kernel", "flash_dq_kernel", "flash_dkdv_kernel", "flash_backward",
)  # fmt: skip
BACKWARD = (DQ, DKDV)
CONTIGUOUS = frozenset({"contiguous"})
UNLESS_DISTINCT = frozenset({"contiguous", "do=expanded"})
GROUPED = {"heads": 4, "kv_heads": 2}
BOTH, OF_DQ, OF_DKDV = (
    ("dS is wrong in the kernels of dQ and dK",),
    ("the kernel of dQ is at fault", "dS in the kernel of dK is right"),
    ("the kernel of dK is at fault", "dS in the kernel of dQ is right"),
)  # fmt: skip

SEEN = "visible(m, n, distance, live_m, live_n, left, right)"
STRICTLY_BEFORE = "visible(m, n, distance, live_m, live_n, left, right - 1)"
ONE_LESS_LEFT = "visible(m, n, distance, live_m, live_n, left - 1, right)"
NO_DELTA = (
    Edit(DQ, "ds = p * (dp - delta[:, None])", "ds = p * dp"),
    Edit(DKDV, "ds = p * (dp - delta[None, :])", "ds = p * dp"),
)  # fmt: skip
LSE_OF_HEAD_0 = (
    Edit(DQ, "b * stride_lseb + h * stride_lseh + first_m", "b * stride_lseb + first_m"),
    Edit(DKDV, "lse_ptr + h * stride_lseh + offs_m", "lse_ptr + offs_m"),
)  # fmt: skip
NO_SCALE = (Edit(DQ, "dq * scale", "dq"), Edit(DKDV, "dk * scale", "dk"))
DO_BY_Q = (
    Edit(DQ, "do_ptr += b * stride_dob + h * stride_doh", "do_ptr += b * stride_dob + h * stride_qh"),
    Edit(DKDV, "do_ptr + h * stride_doh", "do_ptr + h * stride_qh"),
)  # fmt: skip
# The preprocess kernel knows no stride of q's: there it is O's.
DO_BY_O = Edit(
    PREPROCESS, "do_ptr += b * stride_dob + h * stride_doh", "do_ptr += b * stride_dob + h * stride_oh"
)  # fmt: skip
DO_STRIDES_OF_THE_HOST = (
    Edit(HOST, "*o.stride(), *do.stride(), ", "*o.stride(), do.stride(0), q.stride(1), *do.stride()[2:], "),
    Edit(HOST, "*v.stride(), *do.stride(), ", "*v.stride(), do.stride(0), q.stride(1), *do.stride()[2:], "),
)  # fmt: skip
NO_STEEPNESS = everywhere(BACKWARD, "ds *= steepness", "ds *= 1.0")
KV_HEADS = (
    Edit(DQ, "kv_h = h // group", "kv_h = h % (n_heads // group)"),
    Edit(DKDV, "h = kv_h * group + member", "h = kv_h + member * (n_heads // group)"),
)  # fmt: skip
V_BY_K = (
    Edit(DQ, "offs_n, offs_dv, stride_vn", "offs_n, offs_dv, stride_kn"),
    Edit(DKDV, "offs_n, offs_dv, stride_vn", "offs_n, offs_dv, stride_kn"),
)  # fmt: skip
LAST_ROWS_LOST = Edit(
    DKDV, "range(first, end, BLOCK_M)", "range(first, end // BLOCK_M * BLOCK_M, BLOCK_M)"
)  # fmt: skip
NO_SINK = Edit(
    HOST, "*extras, lse, delta)", "*extras, torch.log(torch.exp(lse) - torch.exp(sinks.float())[:, None]), delta)"
)  # fmt: skip

box, flash = placer("flash-black-box"), placer("flash")

INSIDE = (
    box("delta_dropped", "A", NO_DELTA, first="delta", head=0, own=names("delta"), inherited=names("dS dQ dK"),
        says=BOTH),
    box("delta_dropped_in_dkdv", "A", NO_DELTA[1:], first="dK", head=0, own=names("dK"), says=OF_DKDV),
    box("delta_halved", "A", (Edit(PREPROCESS, "tl.sum(do * o, 1)", "tl.sum(do * o, 1) * 0.5"),), first="delta",
        head=0, own=names("delta"), inherited=names("dS dQ dK"), says=BOTH, cause="factor/delta"),
    box("delta_of_row_0", "S3", (Edit(DQ, "delta_ptr + offs_m * stride_deltam", "delta_ptr + 0 * offs_m"),
        Edit(DKDV, "h * stride_deltah + offs_m * stride_deltam", "h * stride_deltah + 0 * offs_m")), first="delta",
        head=0, row=1, own=names("delta"), inherited=names("dS dQ dK"), says=BOTH, cause="index/delta-row"),
    box("mask_without_the_diagonal", "M1", everywhere(BACKWARD, SEEN, STRICTLY_BEFORE), first="P", head=0, row=0,
        own=names("P"), inherited=names("dP dS dQ dK dV"), options={"causal": True},
        says=("the backward has another mask: 71 entries are masked that are seen", *BOTH)),
    box("mask_of_head_0", "S3", (Edit(DQ, "h * stride_maskh + first_m * stride_maskm", "first_m * stride_maskm"),
        Edit(DKDV, "mask_ptr + h * stride_maskh", "mask_ptr")), first="P", head=1, own=names("P"),
        inherited=names("dP dS dQ dK dV"), options={"mask": "random"},
        says=("another mask", "entries are seen that are masked and", "entries are masked that are seen"),
        cause="index/mask-head"),
    box("do_read_with_q_head_stride", "S1", DO_STRIDES_OF_THE_HOST, first="dP", head=1, own=names("dP dV"),
        inherited=names("delta dS dQ dK"), passes=CONTIGUOUS, says=("dO is read with q's head stride", *BOTH),
        options={"heads": 3}),
    box("do_read_with_q_head_stride_in_dkdv", "S1", DO_BY_Q[1:], first="dK", head=1, own=names("dK dV"),
        passes=CONTIGUOUS, says=("dO is read with q's head stride", *OF_DKDV), cause="stride/do-head", seen="dP"),
    box("last_partial_row_tile_lost_in_dkdv", "M3", (LAST_ROWS_LOST,), first="P", head=0, row=32, own=names("P"),
        inherited=names("dS dK dV"), says=("whole rows of P are 0 (rows 32-35, heads 0-1)", *OF_DKDV)),
    box("last_partial_key_tile_lost_in_dq", "M3",
        (Edit(DQ, "range(first, end, BLOCK_N)", "range(first, end // BLOCK_N * BLOCK_N, BLOCK_N)"),), first="dQ",
        head=0, own=names("dQ"), says=OF_DQ, cause="tile/dQ-last-keys"),
    box("bias_of_head_0_in_dkdv", "S3", (Edit(DKDV, "bias_ptr + h * stride_biash", "bias_ptr"),), first="P",
        head=1, own=names("P"), inherited=names("dS dK dV"), options={"bias": True}, says=OF_DKDV,
        cause="index/bias-head"),
    box("dv_overwritten_instead_of_added", "ACC", (Edit(DKDV, "dv += tl.dot", "dv = tl.dot"),), first="dV",
        head=0, own=names("dV"), says=("what computes dV is at fault", "dS is right in dQ and dK"),
        cause="accumulation/dV"),
)  # fmt: skip

EXPORTED = (
    flash("delta_dropped", "A", NO_DELTA, first="dS", head=0, own=names("dS"), inherited=names("dQ dK")),
    flash("mask_without_the_diagonal_in_dq", "M1", everywhere((DQ,), SEEN, STRICTLY_BEFORE), first="P", head=0,
        row=0, own=names("P dP"), inherited=names("dS dQ"), options={"causal": True}),
    flash("window_one_short_in_dkdv", "M1", everywhere((DKDV,), SEEN, ONE_LESS_LEFT), first="dK", head=0, row=0,
        own=names("dK dV"), options={"window": (9, 4)}, cause="mask/window-left"),
    flash("lse_of_head_0", "S3", LSE_OF_HEAD_0, first="P", head=1, row=0, own=names("P"),
        inherited=names("dS dQ dK dV")),
    flash("scale_missing", "A", NO_SCALE, first="dQ", head=0, own=names("dQ dK"),
        cause="factor/dS factor/dQ factor/dK", why="dQ and dK lack one factor, which is as if dS lacked it"),
    flash("do_read_with_q_head_stride", "S1", DO_STRIDES_OF_THE_HOST, first="dP", head=1, own=names("dP dV"),
        inherited=names("delta dS dQ dK"), passes=CONTIGUOUS, options={"heads": 3}),
    flash("do_read_with_o_head_stride_in_preprocess", "S1", (DO_BY_O,), first="delta", head=1, own=names("delta"),
        inherited=names("dS dQ dK"), passes=CONTIGUOUS),
    flash("softcap_derivative_missing", "A", NO_STEEPNESS, first="dS", head=0, own=names("dS"),
        inherited=names("dQ dK"), options={"softcap": 2.0}, cause="softcap/derivative"),
    flash("kv_heads_mapped_by_remainder_in_dq", "S3", KV_HEADS[:1], first="P", head=1, own=names("P dP dQ"),
        inherited=names("dS"), options=GROUPED, cause="index/kv-head"),
    flash("v_read_with_k_row_stride", "S1", V_BY_K, first="dP", head=0, own=names("dP"),
        inherited=names("dS dQ dK"), passes=UNLESS_DISTINCT, cause="stride/v-row"),
    flash("sink_ignored", "M1", (NO_SINK,), first="P", head=0, row=0, own=names("P"),
        inherited=names("dS dQ dK dV"), options={"sinks": True}, cause="mask/sinks"),
)  # fmt: skip
