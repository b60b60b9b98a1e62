"""A wrong number of a head that several addresses share: they are told with its line, and nothing that meets them."""

from __future__ import annotations

from pathlib import Path

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from tests.diagnosis.following import followed_edit
from tests.planted.planting import Edit

RIGHT = "    K += b * kb + h // GROUP * kh\n    V += b * vb + h // GROUP * vh\n"
WRONG = """\
    of_keys = h % (HEADS // GROUP)
    K += b * kb + of_keys * kh
    V += b * vb + of_keys * vh
"""


def test_the_line_of_the_index_is_told_and_what_meets_the_misread_is_not_accused(
    tmp_path: Path,
) -> None:
    source, run = followed_edit(tmp_path, Edit("grouped_dq", RIGHT, WRONG), heads=4, kv_heads=2)
    found = suspects(run, ("dQ",))
    assert [one.name for one in found] == ["k", "v"]
    for told in diagnoses_of(found):
        lines = [source.splitlines()[where.line - 1].strip() for where in told.where]
        assert "of_keys = h % (HEADS // GROUP)" in lines
        assert not any(line.startswith(("q = ", "g = ", "h = ", "b = ")) for line in lines)
        assert all("of q" in said or "of do" in said for said in told.evidence)
