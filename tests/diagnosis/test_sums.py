"""Sums, shared indices and wrong axes that the dataflow of interpreted kernels shows."""

import pytest

from gradprobe.diagnosis.causes import with_dataflow
from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.model.report import Diagnosis
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Fault
from gradprobe.source.rewrites.candidates import candidates_of
from tests.diagnosis.following import followed_edit, planted
from tests.planted.planting import Edit, edited, file_of

FORWARD, DKDV = "flash_forward_kernel", "flash_dkdv_kernel"
RESULTS = ("O", "dQ", "dK", "dV")
LOST = Diagnosis("accumulation/dK", "ACC", "it is overwritten", 1.0)


def test_what_is_made_of_a_sum_that_lacks_keys_is_not_accused_beside_the_sum(tmp_path):
    cut = Edit(FORWARD, "range(first, end, BLOCK_N)", "range(first + BLOCK_N, end, BLOCK_N)")
    inverse = Edit(FORWARD, "o / safe_sum[:, None]", "o * (1.0 / safe_sum)[:, None]")
    _, run = planted(tmp_path, cut, inverse)
    sure = [(one.kind, one.name) for one in suspects(run, RESULTS) if one.is_sure]
    assert sure == [("pairs", "O")]


def test_what_a_loop_leaves_out_is_one_cause_told_from_what_is_overwritten(tmp_path):
    def told(find, replace):
        changed, run = planted(tmp_path, Edit(DKDV, find, replace), heads=1, causal=True)
        found = diagnoses_of(suspects(run, ("dK", "dV")))
        assert changed.lines() & {where.line for where in found[0].where}
        return found

    found = told("range(first, end, BLOCK_M)", "range(first, end - BLOCK_M, BLOCK_M)")
    assert [one.fault for one in found] == ["pairs/dK"]
    assert found[0].summary.startswith("dK and dV are not summed over")
    assert with_dataflow([LOST], found) == found
    assert with_dataflow([LOST], told("dk += tl.dot(", "dk = tl.dot("))[0].fault == LOST.fault


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
def test_the_operation_is_told_and_its_axis_is_tried(tmp_path, find, new, name, begins):
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
