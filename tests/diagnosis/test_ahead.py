"""What a fork follows while the target still runs: the report is the same as where it is followed afterwards."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from gradprobe.diagnosis import ahead
from gradprobe.model.report import Report
from gradprobe.pipeline.probe import probe
from gradprobe.pipeline.reported import report_of
from gradprobe.processes.forks import ParallelWork
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.planted.flash_faults import NO_DELTA
from tests.planted.planting import KERNELS, edited


def test_a_layout_that_a_fork_follows_ahead_is_told_as_one_that_is_followed_afterwards(tmp_path, monkeypatch):
    file = tmp_path / "planted.py"
    file.write_text(edited((KERNELS / "flash.py").read_text(), NO_DELTA[1:]))
    case = softmax_case(batch=1, heads=2, seqlen=20, head_dim=16, layouts=(("all", "contiguous"),))

    def reported() -> Report:
        return structs.replace(report_of(probe(case, find_target(f"{file}:flash_black_box"))), seconds={})

    begun: list[Callable[[], object]] = []
    monkeypatch.setattr(ahead, "may_fork", lambda: False)
    afterwards = reported()
    monkeypatch.setattr(ahead, "may_fork", lambda: True)
    monkeypatch.setattr(ahead, "ParallelWork", lambda work: begun.append(work) or ParallelWork(work))
    assert reported() == afterwards
    assert len(begun) == 1
    assert afterwards.diagnoses
    assert {one.key for one in afterwards.runs[0].invariants} >= {"I8", "I9"}
