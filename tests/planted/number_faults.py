"""Faults of arithmetic and of the host: algebra, precision, sums that lose a term, first calls, results mixed up."""

from tests.planted.battery_faults import FLASH, edits_of
from tests.planted.planting import planter

lazy, flash, dropout = planter("lazy"), planter("flash"), planter("dropout")
DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
SQUARE = {"block_m": 16, "block_n": 16}

ALGEBRA = (
    flash("A", "dv_from_p_not_transposed", "transposed/dV", "dV",
        (DKDV, "dv += tl.dot(p.to(do.dtype), do", "dv += tl.dot(tl.trans(p).to(do.dtype), do"), **SQUARE),
    flash("A", "dk_from_k_in_place_of_q", "operand/dK", "dK",
        (DKDV, "dk += tl.dot(ds.to(q.dtype), q", "dk += tl.dot(ds.to(q.dtype), k"), **SQUARE),
    flash("A", "exp2_without_log2e_in_dq", "factor/S", "P", (DQ, "p = tl.exp(tl.where", "p = tl.exp2(tl.where"),
        causal=True),
    lazy("A", "scale_twice_in_the_scores_of_dkdv", "factor/S", "dK",
        ("lazy_dkdv_kernel", "input_precision=DOTS) * scale\n", "input_precision=DOTS) * scale * scale\n")),
    flash("A", "delta_added", "delta/sign", "dS", (DQ, "dp - delta[:, None]", "dp + delta[:, None]"),
        (DKDV, "dp - delta[None, :]", "dp + delta[None, :]")),
)  # fmt: skip

PRECISION = (
    lazy("PREC", "p_to_bfloat16_before_dv", "precision/P", "dV",
        ("lazy_dkdv_kernel", "pe.to(do.dtype)", "pe.to(tl.bfloat16).to(do.dtype)"), strict=True),
    flash("PREC", "ds_to_bfloat16_before_dq", "precision/dS", "dQ",
        (DQ, "ds.to(k.dtype)", "ds.to(tl.bfloat16).to(k.dtype)"), strict=True),
    flash("PREC", "dk_summed_in_float16", "precision/dK", "dK", (DKDV,
        "dk += tl.dot(ds.to(q.dtype), q, input_precision=DOTS)",
        "dk = (dk + tl.dot(ds.to(q.dtype), q, input_precision=DOTS)).to(tl.float16).to(tl.float32)"), strict=True),
    flash("PREC", "p_and_ds_to_float16_before_dv_and_dk", "precision/P-dS", "dK",
        (DKDV, "tl.dot(p.to(do.dtype)", "tl.dot(p.to(tl.float16).to(do.dtype)"),
        (DKDV, "ds.to(q.dtype)", "ds.to(tl.float16).to(q.dtype)"), strict=True),
    flash("PREC", "delta_to_bfloat16", "precision/delta", "delta",
        ("flash_preprocess_kernel", "tl.sum(do * o, 1)", "tl.sum(do * o, 1).to(tl.bfloat16).to(tl.float32)")),
    flash("PREC", "lse_kept_in_float16", "precision/LSE", "P", ("flash_backward",
        "inputs = (q, k, v, do, *extras, lse, delta)", "inputs = (q, k, v, do, *extras, lse.half().float(), delta)"),
        strict=True),
)  # fmt: skip

SUMS = (
    flash("ACC", "first_head_of_a_group_alone", "accumulation/dK", "dK",
        *edits_of("first_head_of_a_group_alone", FLASH), heads=4, kv_heads=2),
)  # fmt: skip

# What an autotuner leaves behind that tries several configurations on the real outputs.
FIRST_CALL = (
    lazy("ATUNE", "dbias_summed_by_each_configuration_tried", "autotune/dBias", "dBias", ("lazy_backward",
        "    lazy_dkdv_kernel[(columns,)](",
        '    if dbias is not None and not vars(lazy_backward).setdefault("tuned", False):\n'
        "        lazy_backward.tuned = True\n" "        dbias *= 3\n" "    lazy_dkdv_kernel[(columns,)](")),
    lazy("ATUNE", "dtau_summed_by_each_configuration_tried", "autotune/dTau", "dTau", ("lazy_backward",
        "    lazy_dkdv_kernel[(columns,)](", '    if not vars(lazy_backward).setdefault("tuned", False):\n'
        "        lazy_backward.tuned = True\n" "        dtau *= 2\n" "    lazy_dkdv_kernel[(columns,)](")),
)  # fmt: skip

HOST = (
    lazy("H1", "dk_and_dv_returned_in_each_others_place", "swap/dK-dV", "dK",
        ("lazy_backward", '"dK": dk, "dV": dv', '"dK": dv, "dV": dk')),
    flash("H1", "dq_and_dk_returned_in_each_others_place", "swap/dQ-dK", "dQ",
        ("flash_backward", '"dQ": dq, "dK": dk', '"dQ": dk, "dK": dq')),
    flash("H1", "dk_and_dv_stored_in_each_others_place", "swap/dK-dV", "dK",
        (DKDV, "store_tile(dk_ptr, dk * scale,", "store_tile(dk_ptr, dv,"),
        (DKDV, "store_tile(dv_ptr, dv,", "store_tile(dv_ptr, dk * scale,")),
    flash("H1", "dv_never_added_to", "zero/dV", "dV",
        (DKDV, "dv += tl.dot(p.to(do.dtype), do", "added = dv + tl.dot(p.to(do.dtype), do")),
    flash("H1", "dq_written_into_a_copy", "zero/dQ", "dQ",
        ("flash_backward", '"dQ": dq,', '"dQ": torch.zeros_like(dq),')),
    lazy("H1", "dbias_zero", "zero/dBias", "dBias",
        ("lazy_backward", "dbias.to(bias.dtype)", "torch.zeros_like(bias)")),
)  # fmt: skip

DROPOUT = (
    dropout("DRP", "scale_of_what_is_kept_missing_in_dv", "dropout/scale", "dV",
        ("of_keys", "(p * keep * lift).mT", "(p * keep).mT")),
    dropout("DRP", "scale_of_what_is_kept_missing_in_dp", "dropout/scale", "dP",
        ("of_rows", "v.mT * keep * lift", "v.mT * keep"), ("of_keys", "v.mT * keep * lift", "v.mT * keep")),
    dropout("DRP", "mask_missing_in_dp", "dropout/dp", "dP",
        ("of_rows", "v.mT * keep * lift", "v.mT"), ("of_keys", "v.mT * keep * lift", "v.mT")),
    dropout("DRP", "mask_missing_in_dv", "dropout/dv", "dV", ("of_keys", "(p * keep * lift).mT", "p.mT")),
)  # fmt: skip
