"""Faults of addressing: another tensor's stride, a layout assumed, an index missing, offsets too narrow."""

from tests.planted.battery_faults import LAZY, edits_of
from tests.planted.planting import planter

lazy, lazy_backward, flash = planter("lazy"), planter("lazy-backward"), planter("flash")
flash_backward, flash_cuda = planter("flash-backward"), planter("flash-cuda")
DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
HUGE_DO = (("do", "huge"),)

STRIDES = (
    flash("S1", "dq_stored_with_q_head_stride", "store/dq-head", "dQ",
        (DQ, "dq_ptr += b * stride_dqb + h * stride_dqh", "dq_ptr += b * stride_dqb + h * stride_qh")),
    lazy("S1", "k_read_with_q_row_stride_in_dq", "stride/k-row", "P",
        ("lazy_dq_kernel", "offs_n, offs_d, stride_kn", "offs_n, offs_d, stride_qm")),
)  # fmt: skip

LAYOUTS = (
    lazy_backward("S2", "lse_indexed_as_contiguous_in_dq", "layout/lse", "P",
        ("lazy_dq_kernel", "lse_ptr += b * stride_lseb + h * stride_lseh", "lse_ptr += (b * n_heads + h) * n_ctx"),
        ("lazy_dq_kernel", "lse_ptr + offs_m * stride_lsem", "lse_ptr + offs_m")),
    flash_backward("S2", "lse_indexed_as_contiguous_in_dkdv", "layout/lse", "P",
        (DKDV, "lse_ptr + h * stride_lseh + offs_m * stride_lsem", "lse_ptr + h * n_ctx_m + offs_m")),
    lazy("S2", "last_stride_of_q_taken_for_1_in_dq", "layout/q", "P",
        ("lazy_dq_kernel", "offs_m, offs_d, stride_qm, stride_qd", "offs_m, offs_d, stride_qm, 1")),
    flash("S2", "last_stride_of_k_taken_for_1_in_dkdv", "layout/k", "dK",
        (DKDV, "offs_n, offs_d, stride_kn, stride_kd", "offs_n, offs_d, stride_kn, 1")),
    flash("S2", "do_taken_for_contiguous_in_preprocess", "layout/do", "delta", ("flash_preprocess_kernel",
        "do_ptr += b * stride_dob + h * stride_doh", "do_ptr += (b * n_heads + h) * n_ctx_m * head_dim_v"),
        ("flash_preprocess_kernel", "offs_dv, stride_dom, stride_dod", "offs_dv, head_dim_v, 1")),
    flash("S2", "dv_stored_as_contiguous", "layout/dv", "dV", (DKDV, "dv_ptr += b * stride_dvb + kv_h * stride_dvh",
        "dv_ptr += (b * n_kv_heads + kv_h) * n_ctx_n * head_dim_v"),
        (DKDV, "offs_dv, stride_dvn, stride_dvd", "offs_dv, head_dim_v, 1")),
    lazy("S2", "bias_taken_for_dense_in_dkdv", "layout/bias", "dK",
        ("lazy_dkdv_kernel", "distance, stride_biasw, window", "distance, 1, window")),
    lazy("S2", "transposed_do_taken_for_blhd", "layout/do", "dP", *edits_of("transposed_do_taken_for_blhd", LAZY),
        layouts=(("do", "blhd"),)),
    flash("S2", "do_read_with_all_strides_of_o", "layout/do stride/do", "dP",
        ("flash_backward", "*o.stride(), *do.stride(), ", "*o.stride(), *o.stride(), "),
        ("flash_backward", "*v.stride(), *do.stride(), ", "*v.stride(), *o.stride(), "), layouts=(("do", "blhd"),),
        why="where O is contiguous, its strides are those of a contiguous dO"),
    flash_cuda("S2", "last_stride_of_v_taken_for_1_in_dq", "layout/v", "dP",
        ("flash_dq", "start_n * stride_vn, stride_vn, stride_vd", "start_n * stride_vn, stride_vn, 1")),
)  # fmt: skip

INDICES = (
    flash("S3", "delta_of_the_key_head_in_dkdv", "index/delta-kv-head", "dK",
        (DKDV, "delta_ptr + h * stride_deltah", "delta_ptr + kv_h * stride_deltah"), head=None, heads=4, kv_heads=2),
    flash_cuda("S3", "lse_of_head_0_in_dq", "index/lse-head", "P",
        ("flash_dq", "lse_ptr += b * stride_lseb + h * stride_lseh", "lse_ptr += b * stride_lseb"), head=1, row=0),
)  # fmt: skip

# Of two heads the head stride is itself 64 bits wide, so that the rows alone wrap: two terms that do would leave what
# lies before the tensor.
OFFSETS = (
    lazy("I64", "program_number_of_32_bits_in_preprocess", "wrap/do", "delta",
        ("lazy_preprocess_kernel", "pid = tl.program_id(0).to(tl.int64)", "pid = tl.program_id(0)"), batch=1,
        layouts=HUGE_DO),
    lazy("I64", "row_offsets_of_32_bits_in_dkdv", "wrap/do", "dK",
        ("lazy_dkdv_kernel", "tl.arange(0, BLOCK_M).to(tl.int64)", "tl.arange(0, BLOCK_M)"), ("lazy_dkdv_kernel",
        "range(tile_n * BLOCK_N // BLOCK_M * BLOCK_M, length, BLOCK_M)",
        "range(tile_n.to(tl.int32) * BLOCK_N // BLOCK_M * BLOCK_M, length.to(tl.int32), BLOCK_M)"), batch=1,
        layouts=HUGE_DO),
    flash("I64", "program_number_of_32_bits_in_dq", "wrap/q", "P",
        (DQ, "pid = tl.program_id(0).to(tl.int64)", "pid = tl.program_id(0)"), layouts=(("q", "huge"),)),
    flash("I64", "program_number_of_32_bits_in_dkdv", "wrap/v", "dK",
        (DKDV, "pid = tl.program_id(0).to(tl.int64)", "pid = tl.program_id(0)"), layouts=(("v", "huge"),)),
    lazy_backward("I64", "program_number_of_32_bits_in_dq", "wrap/lse", "P",
        ("lazy_dq_kernel", "pid = tl.program_id(0).to(tl.int64)", "pid = tl.program_id(0)"),
        layouts=(("lse", "huge"),)),
    flash("I64", "dq_stored_at_32_bits", "wrap/dq", "dQ",
        (DQ, "dq_ptr += b * stride_dqb + h * stride_dqh", "dq_ptr += b * stride_dqb + h.to(tl.int32) * stride_dqh"),
        head=3, heads=4, layouts=(("dq", "huge"),)),
)  # fmt: skip
