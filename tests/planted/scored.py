"""The planted faults that the score counts, in about the proportions in which people make them; and all records."""

from __future__ import annotations

from tests.planted import address_faults, mask_faults, number_faults, thread_faults, tile_faults
from tests.planted.battery_faults import HIDDEN
from tests.planted.cuda_faults import CUDA_FAULTS
from tests.planted.equivalents import EQUIVALENTS
from tests.planted.flash_faults import EXPORTED, INSIDE
from tests.planted.lazy_alone import LAZY_ALONE
from tests.planted.lazy_faults import FAULTS
from tests.planted.planting import Planted
from tests.planted.strange_faults import STRANGE_FAULTS
from tests.planted.uncovered import UNCOVERED

# Of 178 faults in public attention kernels, how many were of each class.
SEEN = {
    "S1": 11, "S2": 17, "S3": 15, "I64": 10, "M1": 15, "M2": 9, "M3": 17, "N1": 9, "N2": 7, "A": 19, "DRP": 7,
    "RACE": 10, "ACC": 4, "ATUNE": 3, "COMP": 7, "PREC": 7, "H1": 10, "GRID": 1,
}  # fmt: skip
# What is right in the interpreter and wrong compiled, and grids of more than 65535 blocks, show on a GPU alone.
ON_A_GPU_ALONE = {"COMP", "GRID"}

_ALL: tuple[Planted, ...] = (
    *FAULTS, *EXPORTED, *INSIDE, *CUDA_FAULTS,
    *address_faults.STRIDES, *address_faults.LAYOUTS, *address_faults.INDICES, *address_faults.OFFSETS,
    *mask_faults.MASKS, *mask_faults.DEAD,
    *tile_faults.TILES, *tile_faults.TAILS, *tile_faults.UNWRITTEN,
    *number_faults.ALGEBRA, *number_faults.PRECISION, *number_faults.SUMS, *number_faults.FIRST_CALL,
    *number_faults.HOST, *number_faults.DROPOUT,
    *thread_faults.RACES, *LAZY_ALONE,
)  # fmt: skip
SCORED = tuple(fault for fault in _ALL if fault.is_scored)
TRIALS = {one.title: one for one in (*SCORED, *EQUIVALENTS, *UNCOVERED)}
"""What the score probes, by title."""
CORPUS: tuple[Planted, ...] = (*_ALL, *EQUIVALENTS, *UNCOVERED, *HIDDEN, *STRANGE_FAULTS)
"""Every record."""
