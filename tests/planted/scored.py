"""The planted faults that the score counts, in about the proportions in which people make them."""

from __future__ import annotations

from tests.planted import address_faults, mask_faults, number_faults, thread_faults, tile_faults
from tests.planted.cuda_faults import CUDA_FAULTS, CudaFault
from tests.planted.flash_faults import EXPORTED, INSIDE
from tests.planted.lazy_alone import LAZY_ALONE
from tests.planted.lazy_faults import FAULTS
from tests.planted.planting import Planted
from tests.planted.trials import Changed, Scored

# Of 178 faults in public attention kernels, how many were of each class.
SEEN = {
    "S1": 11, "S2": 17, "S3": 15, "I64": 10, "M1": 15, "M2": 9, "M3": 17, "N1": 9, "N2": 7, "A": 19, "DRP": 7,
    "RACE": 10, "ACC": 4, "ATUNE": 3, "COMP": 7, "PREC": 7, "H1": 10, "GRID": 1,
}  # fmt: skip
# What is right in the interpreter and wrong compiled, and grids of more than 65535 blocks, show on a GPU alone.
ON_A_GPU_ALONE = {"COMP", "GRID"}


def _of_planted(fault: Planted, of: str) -> Scored:
    changed = Changed(fault.name, of, fault.edits, fault.options)
    at = (fault.seen or fault.first, fault.head, fault.batch, fault.row)
    return Scored(changed, fault.fault_class, fault.cause, *at, fault.why)


def _of_cuda(fault: CudaFault) -> Scored:
    changed = Changed(
        fault.name, f"{fault.family}-cuda", fault.made, {}, "not_zeroed" in fault.name
    )
    at = (fault.first, fault.head, None, fault.row)
    return Scored(changed, fault.fault_class, fault.cause, *at, fault.why)


SCORED: tuple[Scored, ...] = (
    *(_of_planted(fault, "lazy") for fault in FAULTS if fault.cause),
    *(_of_planted(fault, "flash") for fault in EXPORTED if fault.cause),
    *(_of_planted(fault, "flash-black-box") for fault in INSIDE if fault.cause),
    *(_of_cuda(fault) for fault in CUDA_FAULTS if fault.cause),
    *address_faults.STRIDES, *address_faults.LAYOUTS, *address_faults.INDICES, *address_faults.OFFSETS,
    *mask_faults.MASKS, *mask_faults.DEAD,
    *tile_faults.TILES, *tile_faults.TAILS, *tile_faults.UNWRITTEN,
    *number_faults.ALGEBRA, *number_faults.PRECISION, *number_faults.SUMS, *number_faults.FIRST_CALL,
    *number_faults.HOST, *number_faults.DROPOUT,
    *thread_faults.RACES, *LAZY_ALONE,
)  # fmt: skip
