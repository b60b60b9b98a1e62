"""Edits after which a kernel is as right as before, as people make them to be faster: none may be flagged."""

from typing import Any

from tests.planted.planting import EQUIVALENT, Edit, Planted

DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
LOG2E = "1.4426950408889634"


def _in(of: str, name: str, *edits: tuple[str, str, str], **options: Any) -> Planted:
    return Planted(name, of, tuple(Edit(*edit) for edit in edits), options, EQUIVALENT)


_OF_LAZY = (
    _in("lazy", "other_blocks_in_the_launch",
        ("lazy_backward", "    dq, dk, dv = _written(", "    block_m, block_n = 16, 32\n    dq, dk, dv = _written(")),
    _in("lazy", "exp2_of_scaled_differences",
        ("lazy_preprocess_kernel", "tl.exp(s - lse[:, None])", f"tl.exp2((s - lse[:, None]) * {LOG2E})"),
        ("lazy_dq_kernel", "tl.exp(s - lse[:, None])", f"tl.exp2((s - lse[:, None]) * {LOG2E})"),
        ("lazy_dkdv_kernel", "tl.exp(s - lse[None, :])", f"tl.exp2((s - lse[None, :]) * {LOG2E})")),
    _in("lazy", "key_tiles_from_the_last_to_the_first", ("lazy_dq_kernel",
        "for start_n in range(0, end_n, BLOCK_N):\n",
        "for back in range(0, end_n, BLOCK_N):\n        start_n = (end_n - 1) // BLOCK_N * BLOCK_N - back\n")),
    _in("lazy", "dk_before_dv",
        ("lazy_dkdv_kernel", "        dv += tl.dot(pe.to(do.dtype), do, input_precision=DOTS)\n", ""),
        ("lazy_dkdv_kernel", "        dk += tl.dot(ds.to(q.dtype), q, input_precision=DOTS)\n",
        "        dk += tl.dot(ds.to(q.dtype), q, input_precision=DOTS)\n"
        "        dv += tl.dot(pe.to(do.dtype), do, input_precision=DOTS)\n")),
    _in("lazy", "masked_by_a_large_finite_number",
        ("lazy_dq_kernel", 'HAS_BIAS), float("-inf"))', "HAS_BIAS), -1.0e30)"),
        ("lazy_dkdv_kernel", 'HAS_BIAS), float("-inf"))', "HAS_BIAS), -1.0e30)")),
    _in("lazy", "dq_added_by_atomics",
        ("lazy_backward", "    lazy_dq_kernel[(rows,)](", "    dq.zero_()\n    lazy_dq_kernel[(rows,)]("),
        ("lazy_dq_kernel", "dq += tl.dot(ds.to(k.dtype), k, input_precision=DOTS)",
        "tl.atomic_add(dq_ptr + offs_m[:, None] * stride_dqm + offs_d[None, :] * stride_dqd,"
        " tl.dot(ds.to(k.dtype), k, input_precision=DOTS) * scale, mask=(offs_m[:, None] < n_ctx)"
        " & (offs_d[None, :] < head_dim))"), ("lazy_dq_kernel",
        "    store_tile(dq_ptr, dq * scale, offs_m, offs_d, stride_dqm, stride_dqd, n_ctx, head_dim)\n", "")),
    _in("lazy", "do_made_contiguous",
        ("lazy_backward", "    dq, dk, dv = _written(", "    do = do.contiguous()\n    dq, dk, dv = _written(")),
    _in("lazy", "delta_from_what_o_is_made_of", ("lazy_preprocess_kernel", "delta += tl.sum(p * dp, 1)",
        "delta += tl.sum((p + floor[:, None]) * dp, 1) - floor * tl.sum(dp, 1)")),
)  # fmt: skip

_OF_FLASH = (
    _in("flash", "log2e_folded_into_the_scale", (DQ, "s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale",
        f"s = tl.dot(q, tl.trans(k), input_precision=DOTS) * (scale * {LOG2E})"), (DQ,
        'p = tl.exp(tl.where(seen, s, float("-inf")) - lse[:, None])',
        f'p = tl.exp2(tl.where(seen, s, float("-inf")) - lse[:, None] * {LOG2E})')),
    _in("flash", "ds_scaled_before_its_product", (DQ, "ds.to(k.dtype)", "(ds * scale).to(k.dtype)"),
        (DQ, "dq * scale", "dq"), (DKDV, "ds.to(q.dtype)", "(ds * scale).to(q.dtype)"), (DKDV, "dk * scale", "dk")),
    _in("flash", "p_multiplied_out", (DQ, "p * (dp - delta[:, None])", "p * dp - p * delta[:, None]"),
        (DKDV, "p * (dp - delta[None, :])", "p * dp - p * delta[None, :]")),
    _in("flash", "product_transposed_in_place_of_k", (DQ, "s = tl.dot(q, tl.trans(k), input_precision=DOTS)",
        "s = tl.trans(tl.dot(k, tl.trans(q), input_precision=DOTS))")),
    _in("flash", "lse_in_units_of_log_2_inside", ("flash_forward_kernel", "row_max + tl.log(safe_sum)",
        f"(row_max * {LOG2E} + tl.log2(safe_sum)) * 0.6931471805599453")),
    _in("flash", "pointers_of_a_tile_moved_along", (DQ, "    for start_n in range(first, end, BLOCK_N):\n",
        "    p_k = k_ptr + (first + tl.arange(0, BLOCK_N).to(tl.int64))[:, None] * stride_kn +"
        " offs_d[None, :] * stride_kd\n" "    for start_n in range(first, end, BLOCK_N):\n"), (DQ,
        "        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, live_n, head_dim)\n",
        "        k = tl.load(p_k, mask=(offs_n[:, None] < live_n) & (offs_d[None, :] < head_dim)," " other=0.0)\n"
        "        p_k += BLOCK_N * stride_kn\n")),
    _in("flash", "one_masked_tile_more", (DQ, "range(first, end, BLOCK_N)", "range(first, end + BLOCK_N, BLOCK_N)")),
    _in("flash", "scale_moved_onto_q", (DQ, "s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale",
        "s = tl.dot((q * scale).to(q.dtype), tl.trans(k), input_precision=DOTS)")),
    _in("flash", "rows_from_the_last_tile_to_the_first", (DKDV,
        "        for start_m in range(first, end, BLOCK_M):\n", "        for back in range(first, end, BLOCK_M):\n"
        "            start_m = first + (end - 1 - first) // BLOCK_M * BLOCK_M - (back - first)\n"), causal=True),
)  # fmt: skip

_OF_CUDA = (
    _in("flash-cuda", "exp2f_with_log2e",
        ("flash_dq", "expf(s - tile.lse[i])", "exp2f((s - tile.lse[i]) * 1.44269504f)")),
    _in("flash-cuda", "last_tile_split_off", ("flash_dq",
        "    for (long long start_n = first_n; start_n < end_n; start_n += BLOCK_N) {",
        "    const long long whole_n = max(first_n, end_n / BLOCK_N * BLOCK_N);\n"
        "    for (int part = 0; part < 2; ++part)\n"
        "    for (long long start_n = part ? whole_n : first_n; start_n < (part ? end_n : whole_n);\n"
        "         start_n += BLOCK_N) {")),
    _in("flash-cuda", "sums_of_a_tile_from_the_last_to_the_first", ("flash_dq",
        "for (int j = 0; j < BLOCK_N; ++j) {\n                    sum += tile.ds",
        "for (int j = BLOCK_N - 1; j >= 0; --j) {\n                    sum += tile.ds")),
    _in("flash-cuda", "p_multiplied_out", ("flash_dkdv", "p * (dp - tile.delta[i])", "p * dp - p * tile.delta[i]")),
    _in("flash-cuda", "sums_of_tiles_added_by_fma",
        ("flash_dkdv", "dk[r][c] += sum;", "dk[r][c] = fmaf(1.0f, sum, dk[r][c]);")),
)  # fmt: skip

_OF_DROPOUT = (
    _in("dropout", "delta_from_p_and_dp",
        ("plain_backward", "delta = (do * o).sum(-1)", "delta = (p * (do @ v.mT * keep * lift)).sum(-1)")),
)  # fmt: skip

EQUIVALENTS = (*_OF_LAZY, *_OF_FLASH, *_OF_CUDA, *_OF_DROPOUT)
