"""Planted faults of the CUDA kernels: replacements in one kernel's source, and what must be said of each."""

from typing import Any

from tests.planted.planting import Edit, Planted

SMALL = {"head_dim": 16, "seqlen": 72, "block_m": 32, "block_n": 16, "causal": True, "batch": 1}
LAID = SMALL | {"heads": 2, "layouts": (("all", "distinct"),)}
"""The case on which they are found, one by one."""


def cuda(
    name: str, family: str, kernel: str, edits: tuple[tuple[str, str], ...], **fields: Any
) -> Planted:
    return Planted(
        name, f"{family}-cuda", tuple(Edit(kernel, *edit) for edit in edits), **fields
    )


_OWN_SUM = """                    for (int i = 0; i < BLOCK_M; ++i) {
                        sum += tile.ds[i][j] * tile.q[i][d];
                    }
                    dk[r][c] += sum;
"""
# Each thread of a row of threads takes every 16th row of the tile, for every element of dK.
_SHARED_SUM = """                    for (int e = 0; e < head_dim; ++e) {
                        sum = 0.0f;
                        for (int i = threadIdx.x; i < BLOCK_M; i += THREADS) {
                            sum += tile.ds[i][j] * tile.q[i][e];
                        }
                        if (c == 0 && start_n + j < n_ctx_n) {
                            dk_ptr[(start_n + j) * stride_dkn + e * stride_dkd] += scale * sum;
                        }
                    }
"""
_ZEROED = """    for (int i = threadIdx.y; i < BLOCK_N; i += THREADS) {
        for (int d = threadIdx.x; d < head_dim; d += THREADS) {
            if (start_n + i < n_ctx_n) dk_ptr[(start_n + i) * stride_dkn + d * stride_dkd] = 0.0f;
        }
    }
    float dv[BLOCK_N / THREADS]"""
_LAST_BARRIER = """                dq[r][c] += sum;
            }
        }
        __syncthreads();
"""
_BEFORE_THE_SUM = """                    tile.ds[i][j] = dt * steepness;
                }
            }
            __syncthreads();
"""
_AFTER_DBIAS = """                    dbias_parts_ptr[distance] += sum;
                }
            }
        }
        __syncthreads();
"""
_STORED_DK = "                store(dk_ptr + n * stride_dkn + d * stride_dkd, scale * dk[r][c]);"
_SHARED = "what is made of the tile in shared memory, its contents, and that memory are one and the same here"

CUDA_FAULTS = (
    cuda("dk_summed_by_several_threads", "flash", "flash_dkdv",
        ((_OWN_SUM, _SHARED_SUM), ("    float dv[BLOCK_N / THREADS]", _ZEROED), (_STORED_DK, "")), first="dK",
        memory="race", array="dk", right_on_cpu=True,
        code=("dk_ptr[(start_n + j) * stride_dkn + e * stride_dkd] += scale * sum;",), fault_class="RACE",
        cause="race/dK"),
    cuda("p_added_to_what_is_not_zeroed", "flash", "flash_dq", unzeroed=True, edits=
        (("p_ptr[m * stride_pm + n * stride_pn] = p;", "p_ptr[m * stride_pm + n * stride_pn] += p;"),), first="P",
        row=0, memory="unwritten", array="p", code=("p_ptr[m * stride_pm + n * stride_pn] += p;",), fault_class="N2",
        cause="unwritten/P"),
    cuda("mask_on_ds_in_place_of_p", "flash", "flash_dq",
        (("const float p = seen ? expf(s - tile.lse[i]) : 0.0f;", "const float p = expf(s - tile.lse[i]);"),
        ("const float dt = p * (dp - tile.delta[i]);", "const float dt = seen ? p * (dp - tile.delta[i]) : 0.0f;")),
        first="P", row=0, fault_class="M1", cause="mask/causal"),
    cuda("barrier_after_the_tile_missing", "flash", "flash_dq",
        ((_LAST_BARRIER, _LAST_BARRIER.replace("        __syncthreads();\n", "")),), first="dQ", memory="race",
        array="memory",
        code=("tile[i][d] = i < n_rows && d < n_cols ? widened(ptr[i * stride_row + d * stride_col]) : 0.0f;",
        "sum += tile.ds[i][j] * tile.k[j][d];"), fault_class="RACE", cause="race/dQ race/dS race/memory",
        why=_SHARED),
    cuda("barrier_before_the_sum_missing", "flash", "flash_dkdv",
        ((_BEFORE_THE_SUM, _BEFORE_THE_SUM.replace("            __syncthreads();\n", "")),), first="dK", memory="race",
        array="memory", code=("sum += tile.ds[i][j] * tile.q[i][d];", "tile.ds[i][j] = dt * steepness;"),
        fault_class="RACE", cause="race/dK race/dS race/memory", why=_SHARED),
    cuda("tile_of_ds_not_reset", "flash", "flash_dq",
        (("                tile.ds[i][j] = ds;", "                if (seen) tile.ds[i][j] = ds;"),), first="dQ",
        memory="unwritten", array="memory", code=("sum += tile.ds[i][j] * tile.k[j][d];",), fault_class="N2",
        cause="unwritten/dQ unwritten/dS unwritten/memory", why=_SHARED),
    cuda("shared_memory_out_of_bounds", "flash", "flash_dkdv",
        (("const float dt = p * (dp - tile.delta[i]);", "const float dt = p * (dp - tile.delta[i + BLOCK_M]);"),),
        first="dK", memory="outside", array="memory", code=("const float dt = p * (dp - tile.delta[i + BLOCK_M]);",)),
    cuda("scale_missing_in_dk", "flash", "flash_dkdv", (("scale * dk[r][c]", "dk[r][c]"),), first="dK",
        fault_class="A", cause="factor/dK"),
    cuda("do_read_with_q_head_stride", "flash", "flash_dq",
        (("do_ptr += b * stride_dob + h * stride_doh;", "do_ptr += b * stride_dob + h * stride_qh;"),), first="dP",
        head=1, memory="outside", array="do", fault_class="S1", cause="stride/do-head"),
    cuda("lazy_barrier_after_the_tile_missing", "lazy", "lazy_dq",
        ((_AFTER_DBIAS, _AFTER_DBIAS.replace("        __syncthreads();\n", "")),), first="dQ", memory="race",
        array="memory",
        code=("tile[i][d] = i < n_rows && d < n_cols ? widened(ptr[i * stride_row + d * stride_col]) : 0.0f;",
        "sum += tile.ds[i][j] * tile.k[j][d];"), fault_class="RACE", cause="race/dQ race/dS race/memory",
        why=_SHARED),
)  # fmt: skip
