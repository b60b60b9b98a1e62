"""Planted faults of the CUDA kernels: replacements in one kernel's source, and what must be said of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradprobe.numerics.evidence import ProbeResult
from tests.planted.planting import Edit
from tests.planted.trials import Changed

SMALL = {"head_dim": 16, "seqlen": 72, "block_m": 32, "block_n": 16, "causal": True, "batch": 1}


@dataclass(frozen=True)
class CudaFault:
    """A fault, and what must be found of it."""

    name: str
    family: str
    """flash or lazy: which file."""
    kernel: str
    edits: tuple[tuple[str, str], ...]
    """(what stands there once, what takes its place)."""
    first: str
    """The first wrong intermediate; of a race whose numbers come out right on the CPU, the array that is raced for."""
    head: int = 0
    row: int | None = None
    """Of the first mismatch, where it is known beforehand."""
    kind: str = ""
    """Of the finding about memory on the CPU; "" where there is none."""
    array: str = ""
    lines: tuple[str, ...] = ()
    """Code that its finding names, in the two lines of a race."""
    right_on_cpu: bool = False
    """Whether every number comes out right where threads run one after another."""
    cause: str = ""
    """As in `trials.Scored`; "" where the score does not count it. So are `fault_class` and `why`."""
    fault_class: str = ""
    why: str = ""

    @property
    def made(self) -> tuple[Edit, ...]:
        return tuple(Edit(self.kernel, *edit) for edit in self.edits)


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
    CudaFault("dk_summed_by_several_threads", "flash", "flash_dkdv",
        ((_OWN_SUM, _SHARED_SUM), ("    float dv[BLOCK_N / THREADS]", _ZEROED), (_STORED_DK, "")), first="dK",
        kind="race", array="dk", right_on_cpu=True,
        lines=("dk_ptr[(start_n + j) * stride_dkn + e * stride_dkd] += scale * sum;",), fault_class="RACE",
        cause="race/dK"),
    CudaFault("tile_summed_where_thread_y_is_0", "flash", "flash_dkdv",
        (("            for (int r = 0; r < BLOCK_N / THREADS; ++r) {\n"
        "                const int j = threadIdx.y + r * THREADS;",
        "            for (int r = 0; threadIdx.y == 0 && r < BLOCK_N / THREADS; ++r) {\n"
        "                const int j = threadIdx.y + r * THREADS;"),), first="dK", row=1),
    CudaFault("p_added_to_what_is_not_zeroed", "flash", "flash_dq",
        (("p_ptr[m * stride_pm + n * stride_pn] = p;", "p_ptr[m * stride_pm + n * stride_pn] += p;"),), first="P",
        row=0, kind="unwritten", array="p", lines=("p_ptr[m * stride_pm + n * stride_pn] += p;",), fault_class="N2",
        cause="unwritten/P"),
    CudaFault("mask_on_ds_in_place_of_p", "flash", "flash_dq",
        (("const float p = seen ? expf(s - tile.lse[i]) : 0.0f;", "const float p = expf(s - tile.lse[i]);"),
        ("const float dt = p * (dp - tile.delta[i]);", "const float dt = seen ? p * (dp - tile.delta[i]) : 0.0f;")),
        first="P", row=0, fault_class="M1", cause="mask/causal"),
    CudaFault("query_tiles_where_key_tiles_are_meant", "flash", "flash_dq",
        (("start_n < end_n; start_n += BLOCK_N", "start_n < end_n; start_n += BLOCK_M"),), first="P", row=16),
    CudaFault("barrier_after_the_tile_missing", "flash", "flash_dq",
        ((_LAST_BARRIER, _LAST_BARRIER.replace("        __syncthreads();\n", "")),), first="dQ", kind="race",
        array="memory",
        lines=("tile[i][d] = i < n_rows && d < n_cols ? widened(ptr[i * stride_row + d * stride_col]) : 0.0f;",
        "sum += tile.ds[i][j] * tile.k[j][d];"), fault_class="RACE", cause="race/dQ race/dS race/memory",
        why=_SHARED),
    CudaFault("barrier_before_the_sum_missing", "flash", "flash_dkdv",
        ((_BEFORE_THE_SUM, _BEFORE_THE_SUM.replace("            __syncthreads();\n", "")),), first="dK", kind="race",
        array="memory", lines=("sum += tile.ds[i][j] * tile.q[i][d];", "tile.ds[i][j] = dt * steepness;"),
        fault_class="RACE", cause="race/dK race/dS race/memory", why=_SHARED),
    CudaFault("tile_of_ds_not_reset", "flash", "flash_dq",
        (("                tile.ds[i][j] = ds;", "                if (seen) tile.ds[i][j] = ds;"),), first="dQ",
        kind="unwritten", array="memory", lines=("sum += tile.ds[i][j] * tile.k[j][d];",), fault_class="N2",
        cause="unwritten/dQ unwritten/dS unwritten/memory", why=_SHARED),
    CudaFault("shared_memory_out_of_bounds", "flash", "flash_dkdv",
        (("const float dt = p * (dp - tile.delta[i]);", "const float dt = p * (dp - tile.delta[i + BLOCK_M]);"),),
        first="dK", kind="outside", array="memory", lines=("const float dt = p * (dp - tile.delta[i + BLOCK_M]);",)),
    CudaFault("scale_missing_in_dk", "flash", "flash_dkdv", (("scale * dk[r][c]", "dk[r][c]"),), first="dK",
        fault_class="A", cause="factor/dK"),
    CudaFault("do_read_with_q_head_stride", "flash", "flash_dq",
        (("do_ptr += b * stride_dob + h * stride_doh;", "do_ptr += b * stride_dob + h * stride_qh;"),), first="dP",
        head=1, kind="outside", array="do", fault_class="S1", cause="stride/do-head"),
    CudaFault("lazy_barrier_after_the_tile_missing", "lazy", "lazy_dq",
        ((_AFTER_DBIAS, _AFTER_DBIAS.replace("        __syncthreads();\n", "")),), first="dQ", kind="race",
        array="memory",
        lines=("tile[i][d] = i < n_rows && d < n_cols ? widened(ptr[i * stride_row + d * stride_col]) : 0.0f;",
        "sum += tile.ds[i][j] * tile.k[j][d];"), fault_class="RACE", cause="race/dQ race/dS race/memory",
        why=_SHARED),
    CudaFault("lazy_tau_of_the_wrong_row", "lazy", "lazy_dq",
        (("const float z = p + tau / (float)(m + 1);", "const float z = p + tau / (float)(n + 1);"),), first="dP"),
)  # fmt: skip


def probed(fault: CudaFault, folder: Path, **options: Any) -> ProbeResult:
    """The report on a copy of the file with the fault in it, in distinct strides."""
    unzeroed = "not_zeroed" in fault.name
    changed = Changed(fault.name, f"{fault.family}-cuda", fault.made, SMALL | options, unzeroed)
    return changed.probe(folder, why=False)
