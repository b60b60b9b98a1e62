"""What plants faults: each a function from a file of kernels to the changes that it can make there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..kernel_file import Change, KernelFile
from . import addresses, values

# By the name of each, in the order in which they are drawn from.
OPERATORS: dict[str, Callable[[KernelFile], Iterator[Change]]] = {
    operator.__name__.replace("_", "-"): operator
    for operator in (
        addresses.another_stride,
        addresses.other_tensors_strides,
        addresses.own_strides_swapped,
        addresses.term_dropped,
        addresses.divisions_mixed_up,
        values.wide_offset_dropped,
        values.bound_off_by_one,
        values.operand_dropped,
        values.guard_dropped,
        values.mask_dropped,
        values.padding_changed,
        addresses.range_cut,
        addresses.last_tile_lost,
        addresses.blocks_mixed_up,
        addresses.zeros_not_written,
        values.factor_dropped,
        values.subtrahend_changed,
        values.other_base,
        values.transpose_dropped,
        values.sum_overwritten,
        values.atomic_stored,
        values.barrier_dropped,
        values.rounded_early,
    )
}
