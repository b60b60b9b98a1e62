"""The stride faults planted in lazy and flash are named at their lines; faults of other kinds are not accused."""

import pytest

from gradprobe.commands.kernel_reading import CLEAN, inquire
from tests.planted import flash_faults, lazy_faults
from tests.planted.planting import KERNELS, edited
from tests.planted.stride_mixups import mixups, source_of
from tests.sampling import sampled

AXES = {"batch": "b", "head": "h", "row": "m", "dim": "d"}

# What a planted fault of classes S1 and S3 is, in lint's words; the others have no stride in them.
FOUND = {
    "do_read_with_q_head_stride": ("do", "q"),
    "do_read_with_q_head_stride_in_preprocess_alone": ("do", "q"),
    "v_read_with_k_row_stride_in_dkdv": ("v", "k"),
}


def lint(folder, file, edits):
    """What is found in a copy of a kernel file with edits, and the lines that these changed."""
    before = (KERNELS / f"{file}.py").read_text()
    after = edited(before, edits)
    path = folder / f"{file}_edited.py"
    path.write_text(after)
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    return inquire(str(path), None).findings, {at for at, (a, b) in enumerate(pairs, 1) if a != b}


@pytest.mark.parametrize("word", ["lazy", "flash"])
def test_right_kernels_have_no_finding_and_all_of_them_are_read(word):
    found = inquire(word, None)
    assert (found.verdict, found.findings, len(found.kernels)) == (CLEAN, (), 4)


@sampled("fault", lazy_faults.FAULTS, push=6, ids=lambda fault: fault.name)
def test_of_the_faults_planted_in_lazy_those_of_strides_are_named_at_their_lines(fault, tmp_path):
    findings, lines = lint(tmp_path, "lazy", fault.edits)
    expected = FOUND.get(fault.name)
    assert {(finding.tensor, finding.other) for finding in findings} == (
        {expected} if expected else set()
    )
    assert {finding.where.line for finding in findings} == (lines if expected else set())


@sampled(
    "fault",
    [fault for fault in flash_faults.INSIDE if fault.fault_class not in ("S1", "S3")],
    push=4,
)
def test_no_fault_of_another_kind_in_flash_is_taken_for_a_stride(fault, tmp_path):
    assert lint(tmp_path, "flash", fault.edits)[0] == ()


# One of 101 on every push.
@sampled("part", range(101), push=1)
@pytest.mark.parametrize("file", ["lazy", "flash"])
def test_every_mix_up_of_two_tensors_strides_is_named_with_tensor_axis_and_line(
    file, part, tmp_path, record_property
):
    planted = [mixup for mixup in mixups(file) if not mixup.obstacle][part::101]
    missed = [mixup.name for mixup in planted if not is_named(mixup, file, tmp_path)]
    record_property(
        "figure",
        f"{file}: of {len(planted)} mix-ups of strides lint names {len(planted) - len(missed)}",
    )
    assert missed == []


def is_named(mixup, file, folder):
    """Whether every line that a mix-up changed has its finding, and nothing else has one."""
    path = mixup.write(folder)
    pairs = zip(source_of(file).splitlines(), path.read_text().splitlines(), strict=True)
    lines = [at for at, (before, after) in enumerate(pairs, 1) if before != after]
    expected = [(line, mixup.tensor, mixup.other, AXES[mixup.dim]) for line in lines]
    found = inquire(str(path), None).findings
    return [(each.where.line, each.tensor, each.other, each.axis) for each in found] == expected
