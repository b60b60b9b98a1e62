"""Faults that the lazy family alone has: where tau and the ReLU stand, and the window of its bias."""

from tests.planted.planting import everywhere, planter

lazy = planter("lazy")
FORWARD, PREPROCESS, DQ, DKDV = (
    "lazy_forward_kernel", "lazy_preprocess_kernel", "lazy_dq_kernel", "lazy_dkdv_kernel",
)  # fmt: skip

LAZY_ALONE = (
    lazy("M1", "causal_mask_before_tau", "tau/mask", "O", (FORWARD,
        "tl.where(valid, tl.maximum(p + floor[:, None], 0.0), 0.0)", "tl.maximum(p + floor[:, None], 0.0)"),
        (DQ, "valid & (p + (tau", "(p + (tau"),
        (DKDV, "tl.where(valid, tl.maximum(z, 0.0), 0.0)", "tl.maximum(z, 0.0)"), head=1),
    lazy("M1", "causal_mask_before_tau_in_dkdv", "tau/mask", "dV",
        (DKDV, "tl.where(valid, tl.maximum(z, 0.0), 0.0)", "tl.maximum(z, 0.0)"), head=1),
    lazy("M1", "keys_beyond_the_window_of_the_bias_masked", "mask/bias-window", "P",
        (DQ, "valid = (distance >= 0)", "valid = (distance >= 0) & (distance < window)"), bias_window=9),
    lazy("M1", "tiles_beyond_the_window_of_the_bias_skipped", "mask/bias-window", "P", (DQ,
        "range(0, end_n, BLOCK_N)",
        "range(tl.maximum(tile_m * BLOCK_M - window + 1, 0) // BLOCK_N * BLOCK_N, end_n, BLOCK_N)"), bias_window=9),
    lazy("M1", "last_distance_of_the_bias_beyond_its_window", "mask/bias-window", "LSE",
        ("add_bias", "in_window = (distance >= 0) & (distance < window)", "in_window = distance >= 0"), ("add_bias",
        "bias_ptr + distance * stride_biasw", "bias_ptr + tl.minimum(distance, window - 1) * stride_biasw"),
        bias_window=9),
    lazy("A", "relu_mask_missing_in_dtau", "tau/gradient", "dTau",
        (DQ, "dtau += tl.sum(dp, 1)", "dtau += tl.sum(tl.where(valid, dpe, 0.0), 1)")),
    lazy("A", "relu_mask_missing_in_dp_of_dkdv", "relu/mask", "dK", (DKDV, "valid & (z > 0.0)", "valid")),
    lazy("A", "relu_missing_in_pe", "relu/missing", "O",
        (FORWARD, "tl.maximum(p + floor[:, None], 0.0)", "p + floor[:, None]"), (DKDV, "tl.maximum(z, 0.0)", "z")),
)  # fmt: skip

# Beyond those in the proportions of the field.
BACKWARD, AS_FLOAT = (PREPROCESS, DQ, DKDV), ".to(tl.float32){}\n    q_ptr +="
MORE = (
    lazy("A", "dtau_doubled", "factor/dTau", "dTau", (DQ, "dtau += tl.sum(dp, 1)", "dtau += 2.0 * tl.sum(dp, 1)")),
    lazy("A", "dp_doubled", "factor/dP", "dP", *everywhere(BACKWARD, "dpe = tl.dot(", "dpe = 2.0 * tl.dot(")),
    lazy("M1", "tau_forgotten", "mask/tau", "O",
        *everywhere((FORWARD, *BACKWARD), AS_FLOAT.format(""), AS_FLOAT.format(" * 0.0"))),
    lazy("S3", "v_of_batch_0_in_dq", "index/v-batch", "dP",
        (DQ, "v_ptr += b * stride_vb + h * stride_vh", "v_ptr += h * stride_vh"), in_batch=1),
)  # fmt: skip
