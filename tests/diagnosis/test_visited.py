"""Which tiles each result was summed over: what a range leaves out is shown, and nothing where something is misread."""

import numpy as np
import pytest

from gradprobe.diagnosis.explainers.sums import _sign
from gradprobe.model.documents import load
from gradprobe.model.layout_run import ASKED, LACKING, MORE, NONE, TWICE
from tests.cli.command import run
from tests.planted.lazy_faults import FAULTS
from tests.planted.planting import KERNELS

YES, NO = np.ones((2, 2), bool), np.zeros((2, 2), bool)
CORNER = np.array([[True, False], [True, True]])


@pytest.mark.parametrize(
    ("valid", "came", "sign"),
    [
        (YES, YES, ASKED), (NO, NO, NONE), (NO, YES, MORE), (YES, NO, LACKING), (YES, 2 * YES, TWICE),
        (CORNER, YES, ASKED), (CORNER, CORNER, ASKED), (YES, CORNER, LACKING), (CORNER, 1 + ~CORNER, ASKED),
    ],
)  # fmt: skip
def test_a_tile_says_whether_it_holds_what_is_asked_for(valid, came, sign):
    assert _sign(valid, came.astype(int)) == sign


def checked(folder, name):
    """The report of a planted fault of lazy, in its first failing layout."""
    (planted,) = (one for one in FAULTS if one.name == name)
    (folder / "planted.py").write_text(planted.plant((KERNELS / "lazy.py").read_text()))
    run(f"check {folder}/planted.py:lazy_intermediates --batch 1 --heads 2 --json {folder}/out")
    report = load((folder / "out").read_bytes())
    return report, {one.name: one.tiles for one in report.failing.visited}


@pytest.mark.nightly
def test_a_row_tile_that_is_skipped_lacks_in_dk_and_dv_alone(tmp_path):
    report, tiles = checked(tmp_path, "first_row_tile_skipped_in_dkdv")
    assert tiles["O"] == tiles["dQ"] == ("==...", "====.", "=====")
    assert tiles["dK"] == tiles["dV"] == ("--...", "==--.", "====-")
    assert [one.name for one in report.runs[0].laid][:4] == ["q", "k", "v", "do"]


@pytest.mark.nightly
def test_what_is_misread_lacks_nothing_and_is_told_where_it_is_read(tmp_path):
    report, tiles = checked(tmp_path, "do_read_with_q_head_stride")
    assert not any({LACKING, TWICE} & set("".join(lines)) for lines in tiles.values())
    read, laid = report.diagnoses[0].misread, {one.name: one for one in report.failing.laid}
    assert read.due == laid["do"].strides
    assert read.taken[1] == laid["q"].strides[1] != read.due[1]
