"""Every mix-up of two tensors' strides is named at its lines, and faults of other kinds are not accused."""

import pytest

from gradprobe.commands.kernel_reading import CLEAN, inquire
from tests.planted import flash_faults, lazy_faults
from tests.planted.planting import file_of
from tests.planted.stride_mixups import mixups, source_of
from tests.sampling import sampled

AXES = {"batch": "b", "head": "h", "row": "m", "dim": "d"}
OTHERS = [
    fault for fault in (*lazy_faults.FAULTS, *flash_faults.INSIDE)
    if fault.fault_class not in ("S1", "S3")
]  # fmt: skip


@pytest.mark.parametrize("word", ["lazy", "flash"])
def test_right_kernels_have_no_finding_and_all_of_them_are_read(word):
    found = inquire(word, None)
    assert (found.verdict, found.findings, len(found.kernels)) == (CLEAN, (), 4)


@sampled("fault", OTHERS, push=4, ids=lambda fault: fault.title)
def test_no_fault_of_another_kind_is_taken_for_a_stride(fault, tmp_path):
    path = tmp_path / file_of(fault.of).name
    path.write_text(fault.plant())
    assert inquire(str(path), None).findings == ()


# One of 101 on every push.
@sampled("part", range(101), push=1)
@pytest.mark.parametrize("file", ["lazy", "flash"])
def test_every_mix_up_of_strides_is_named_with_tensor_axis_and_line(file, part, tmp_path):
    for mixup in mixups(file)[part::101]:
        path = mixup.write(tmp_path)
        pairs = zip(source_of(file).splitlines(), path.read_text().splitlines(), strict=True)
        lines = [at for at, (before, after) in enumerate(pairs, 1) if before != after]
        found = inquire(str(path), None).findings
        told = [(each.where.line, each.tensor, each.other, each.axis) for each in found]
        own = (mixup.tensor, mixup.other, AXES[mixup.dim])
        assert told == [(line, *own) for line in lines], mixup.name
