"""A vector that meets scores along the wrong axis is told where it does, with the edit, and its load is not accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Fault
from gradprobe.source.rewrites.candidates import candidates_of
from tests.diagnosis.following import followed_edit
from tests.planted.planting import Edit, edited
from tests.strangers.faults import file_of

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
    tmp_path: Path, find, new, name, begins
) -> None:
    right = edited(
        file_of("grouped").read_text(), (Edit("grouped_dq", find, new.format("[:, None]")),)
    )
    source, run = followed_edit(
        tmp_path, Edit("grouped_dq", find, new.format("")), heads=2, kv_heads=1
    )
    found = suspects(run, ("dQ",))
    assert [(one.kind, one.name, one.is_sure) for one in found] == [("value", name, True)]
    (told,) = diagnoses_of(found)
    assert told.where[0].code.startswith(begins)
    assert not any("_vector" in where.code for where in told.where)
    candidates = candidates_of(
        KernelFile(str(tmp_path / "kernel.py"), source), [Fault(told.where[0].line, of="dS")]
    )
    assert right in [each.text for each, _ in zip(candidates, range(40), strict=False)]
