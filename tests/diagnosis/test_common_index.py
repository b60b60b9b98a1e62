"""A wrong index that several addresses share, and a vector along the wrong axis of scores, are told by their lines."""

import pytest

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Fault
from gradprobe.source.rewrites.candidates import candidates_of
from tests.diagnosis.following import followed_edit
from tests.planted.planting import Edit, edited
from tests.strangers.faults import file_of

RIGHT = "    K += b * kb + h // GROUP * kh\n    V += b * vb + h // GROUP * vh\n"
WRONG = """\
    of_keys = h % (HEADS // GROUP)
    K += b * kb + of_keys * kh
    V += b * vb + of_keys * vh
"""


def test_the_line_of_the_index_is_told_and_what_meets_the_misread_is_not_accused(tmp_path):
    source, run = followed_edit(tmp_path, Edit("grouped_dq", RIGHT, WRONG), heads=4, kv_heads=2)
    found = suspects(run, ("dQ",))
    assert [one.name for one in found] == ["k", "v"]
    for told in diagnoses_of(found):
        lines = [source.splitlines()[where.line - 1].strip() for where in told.where]
        assert "of_keys = h % (HEADS // GROUP)" in lines
        assert not any(line.startswith(("q = ", "g = ", "h = ", "b = ")) for line in lines)
        assert all("of q" in said or "of do" in said for said in told.evidence)


WITH_ACC = "ds = p * tl.dot(g, tl.trans(v), acc=less, "
OF_DELTA = (
    'dp = tl.dot(g, tl.trans(v), input_precision="ieee")\n        ds = p * (dp - delta{})  # '
)
PLACES = {
    "delta": (WITH_ACC, OF_DELTA, "dP - delta", "ds = p * (dp - delta)"),
    "lse": ("tl.exp(s - lse[:, None])", "tl.exp(s - lse{})", "S - LSE", "p = tl.where("),
}


@pytest.mark.parametrize(("find", "new", "name", "begins"), PLACES.values(), ids=PLACES)
def test_the_operation_is_told_and_the_edit_of_its_axis_is_tried(
    tmp_path, find, new, name, begins
):
    mended = Edit("grouped_dq", find, new.format("[:, None]"))
    right = edited(file_of("grouped").read_text(), (mended,))
    wrong = Edit("grouped_dq", find, new.format(""))
    source, run = followed_edit(tmp_path, wrong, heads=2, kv_heads=1)
    found = suspects(run, ("dQ",))
    assert [(one.kind, one.name, one.is_sure) for one in found] == [("value", name, True)]
    (told,) = diagnoses_of(found)
    assert told.where[0].code.startswith(begins)
    assert not any("_vector" in where.code for where in told.where)
    file = KernelFile(str(tmp_path / "kernel.py"), source)
    candidates = candidates_of(file, [Fault(told.where[0].line, of="dS")])
    assert right in [each.text for each, _ in zip(candidates, range(40), strict=False)]
