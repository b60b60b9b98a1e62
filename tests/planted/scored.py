"""The planted faults that the score counts, and all records."""

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
