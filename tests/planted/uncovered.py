"""Faults of kinds that no hypothesis is about: they must be found, and no cause may be named."""

from typing import Any

from tests.planted.planting import UNCOVERED as KIND
from tests.planted.planting import Edit, Planted

PREPROCESS, DQ, DKDV = "lazy_preprocess_kernel", "lazy_dq_kernel", "lazy_dkdv_kernel"
FLASH_PRE, FLASH_DQ, FLASH_DKDV = (
    f"flash_{name}_kernel" for name in ("preprocess", "dq", "dkdv")
)


def _in(of: str, name: str, *edits: tuple[str, str, str], **options: Any) -> Planted:
    return Planted(name, of, tuple(Edit(*edit) for edit in edits), options, KIND)


_OF_LAZY = (
    _in("lazy", "p_squared_in_ds", (DQ, "ds = p * (dp", "ds = p * p * (dp")),
    _in("lazy", "logistic_in_place_of_exp", (DQ, "p = tl.exp(s - lse[:, None])",
        "p = tl.where(valid, tl.sigmoid(tl.where(valid, s, 0.0) - lse[:, None]), 0.0)")),
    _in("lazy", "exp_by_three_terms_of_its_series", (DKDV, "p = tl.exp(s - lse[None, :])",
        "x = tl.where(valid, s, 0.0) - lse[None, :]\n" "        p = tl.where(valid, 1.0 + x + 0.5 * x * x, 0.0)")),
    _in("lazy", "dp_clamped", (DQ, "        ds = p * (dp - delta[:, None])",
        "        dp = tl.minimum(tl.maximum(dp, -1.0), 1.0)\n        ds = p * (dp - delta[:, None])")),
    _in("lazy", "odd_keys_count_half_as_much_again", (DQ, "ds = p * (dp - delta[:, None])",
        "ds = p * (dp - delta[:, None]) * tl.where(offs_n[None, :] % 2 == 1, 1.5, 1.0)")),
    _in("lazy", "sign_of_dk_by_the_parity_of_the_tile", (DKDV, "dk * scale", "dk * scale * (1 - 2 * (tile_n % 2))")),
    _in("lazy", "dbias_by_the_distance_from_the_other_end",
        (DQ, "dbias_ptr + distance * stride_dbiasw", "dbias_ptr + (window - 1 - distance) * stride_dbiasw")),
)  # fmt: skip

_OF_FLASH = (
    _in("flash", "scores_of_half_the_head_dim",
        (FLASH_DQ, "stride_kn, stride_kd, live_n, head_dim", "stride_kn, stride_kd, live_n, head_dim // 2")),
    _in("flash", "neighbours_of_the_head_dim_swapped_in_q",
        (FLASH_DKDV, "offs_m, offs_d, stride_qm", "offs_m, offs_d ^ 1, stride_qm")),
    _in("flash", "delta_smoothed_over_two_rows", (FLASH_DQ, "    dq = tl.zeros(",
        "    before = tl.load(delta_ptr + tl.maximum(offs_m - 1, 0) * stride_deltam, mask=offs_m <"
        " live_m, other=0.0)\n" "    delta = 0.5 * (delta + before)\n" "    dq = tl.zeros(")),
    _in("flash", "negative_ds_dropped", (FLASH_DKDV, "dk += tl.dot(ds.to", "dk += tl.dot(tl.maximum(ds, 0.0).to")),
    _in("flash", "largest_tile_in_place_of_their_sum_in_dv", (FLASH_DKDV,
        "dv += tl.dot(p.to(do.dtype), do, input_precision=DOTS)",
        "dv = tl.maximum(dv, tl.dot(p.to(do.dtype), do, input_precision=DOTS))")),
    _in("flash", "p_fades_with_the_distance", (FLASH_DKDV, "dv += tl.dot(p.to",
        "p = p * tl.exp(-0.002 * (distance * distance).to(tl.float32))\n            dv += tl.dot(p.to")),
    _in("flash", "cube_of_ds_added", (FLASH_DQ, "ds.to(k.dtype)", "(ds + 20.0 * ds * ds * ds).to(k.dtype)")),
)  # fmt: skip

_OF_CUDA = (
    _in("flash-cuda", "dk_mixed_with_its_neighbour", ("flash_dkdv", "sum += tile.ds[i][j] * tile.q[i][d];",
        "sum += (0.75f * tile.ds[i][j] + 0.25f * tile.ds[i][j ^ 1]) * tile.q[i][d];")),
    _in("flash-cuda", "v_of_the_neighbouring_key",
        ("flash_dq", "dot(tile.dout[i], tile.v[j])", "dot(tile.dout[i], tile.v[j ^ 1])")),
    _in("flash-cuda", "hyperbola_in_place_of_exp",
        ("flash_dq", "expf(s - tile.lse[i])", "1.0f / (1.0f + (tile.lse[i] - s) * (tile.lse[i] - s))")),
    _in("flash-cuda", "root_of_p_in_dv", ("flash_dkdv", "tile.p[i][j] = p;", "tile.p[i][j] = sqrtf(p);")),
)  # fmt: skip

UNCOVERED = (*_OF_LAZY, *_OF_FLASH, *_OF_CUDA)
