"""A fault in a flash kernel that exposes dQ, dK and dV alone is placed inside it, by what its answers show."""

import pytest

from gradprobe.diagnosis import smaller
from tests.cases import softmax_case
from tests.planted.flash_faults import EXPORTED, INSIDE
from tests.planted.planting import assert_as_recorded, probe_planted

# What is tried on every push, an address and a formula; the others at night, and by the score.
OFTEN = ("do_read_with_q_head_stride_in_dq", "delta_dropped_in_dkdv")
EXPOSED = [fault.name for fault in EXPORTED][:1]


def probed(fault, folder, function, on_push):
    """At night 36 rows and keys: a full and a partial tile along both axes."""
    case = softmax_case(
        **{"batch": 1, "heads": 2, "seqlen": 20 if on_push else 36, "head_dim": 16}
        | fault.options
    )
    return probe_planted(fault, folder, "flash.py", function, case)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.name, marks=[] if f.name in OFTEN else [pytest.mark.nightly])
        for f in INSIDE
    ],
)
def test_a_fault_in_a_black_box_that_cannot_be_watched_is_placed_and_told(
    fault, tmp_path, monkeypatch, on_push
):
    monkeypatch.setattr(smaller, "INTERPRETED", "nowhere")
    report = probed(fault, tmp_path, "flash_black_box", on_push)
    assert_as_recorded(fault, report)
    said = "\n".join(report.failing[0].inside.sentences)
    for words in fault.says:
        assert words in said
    assert bool(said) == bool(fault.says)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.name, marks=[] if f.name in EXPOSED else [pytest.mark.nightly])
        for f in EXPORTED
    ],
)
def test_a_fault_in_flash_that_exposes_all_is_placed(fault, tmp_path, on_push):
    report = probed(fault, tmp_path, "flash_intermediates", on_push)
    assert_as_recorded(fault, report)
    assert report.failing[0].inside is None


def test_the_planted_faults_are_at_least_20_inside_and_8_exported_over_five_classes():
    assert len(INSIDE) >= 20
    assert len(EXPORTED) >= 8
    assert len({fault.fault_class for fault in INSIDE}) >= 5
