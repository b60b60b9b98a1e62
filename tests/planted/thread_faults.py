"""Faults of threads that run at once: barriers left out, sums that several threads add to."""

from tests.planted.planting import planter

flash_cuda, lazy_cuda = planter("flash-cuda"), planter("lazy-cuda")

RACES = (
    flash_cuda("RACE", "barrier_after_loading_missing_in_dq", "race/P race/memory", "P", ("flash_dq",
        "load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, live_n - start_n," " head_dim_v);\n"
        "        __syncthreads();\n",
        "load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, live_n - start_n," " head_dim_v);\n"),
        why="what is made of the tile in shared memory, and that memory"),
    lazy_cuda("RACE", "one_dbias_for_all_blocks", "race/dbias_parts", "dBias",
        ("lazy_dq", "dbias_parts_ptr += (long long)blockIdx.x * window;", "")),
)  # fmt: skip
