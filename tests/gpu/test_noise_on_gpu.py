import pytest

from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.probe import probe

pytestmark = pytest.mark.gpu


def test_what_atomics_add_up_differs_from_run_to_run_within_its_budget_and_nothing_else_does():
    case = lazy_case(seqlen=1500, head_dim=64, repeat=8, runs=((),))
    report = probe(case, find_target("lazy"), why=False)
    assert report.verdict == "match"
    (varying,) = [run.repeated for run in report.runs if run.repeats == 8]
    assert "dBias" in {one.name for one in varying} <= {"dBias", "dTau"}
    for one in varying:
        assert 0 < one.spread <= 1
        assert all(at.code.startswith("tl.atomic_add(d") for at in one.atomics)
        assert one.atomics
