"""Runs that forks make beforehand: the report is that of one run after another, whatever the target keeps."""

import shutil
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from gradprobe.model.documents import document_of
from gradprobe.model.failures import Failure
from gradprobe.pipeline.probe import probe
from gradprobe.pipeline.reported import report_of
from gradprobe.probing import beforehand
from gradprobe.processes import forks
from gradprobe.runtime import remembered
from gradprobe.targets.find import find_target
from gradprobe.targets.surroundings import values_of_spaces
from tests.cases import softmax_case
from tests.sampling import NIGHT, sampled

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Where no package is, as a user's kernel stands."""
    return shutil.copy(Path(__file__).with_name("keeping.py"), tmp_path_factory.mktemp("targets"))


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """The keys of the runs that were taken over."""
    found, take = [], beforehand.Beforehand.taken

    def noted(self, key, experiment):
        made = take(self, key, experiment)
        found.extend([key] if made is not None else [])
        return made

    monkeypatch.setattr(forks, "CROWDED", set())
    monkeypatch.setattr(beforehand, "_GRACE", 30.0)  # on a busy machine, too, a fork comes in time
    monkeypatch.setattr(beforehand.Beforehand, "taken", noted)
    monkeypatch.setattr(
        remembered, "_LOADED", {name.partition(".")[0] for name in sys.modules if "keeping" not in name}
    )
    monkeypatch.setattr(remembered, "_GIVEN", values_of_spaces())
    before = children()
    yield found
    assert children() <= before


def children():
    """The processes that this one began and that are not gone."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def document(file, name, cores, monkeypatch, **options):
    """The report of a target as it is written, but for the seconds; or what kept it from being made."""
    target = find_target(f"{file}:{name}")
    target.function.__globals__["forget"](name)
    monkeypatch.setattr(forks, "cores", lambda: cores)
    case = softmax_case(batch=1, heads=2, seqlen=20, head_dim=8, **options)
    try:
        report = report_of(probe(case, target, why=NIGHT))
    except Failure as failure:
        return type(failure).__name__, str(failure)
    return document_of(msgspec.structs.replace(report, seconds={}))


TARGETS = (
    "plain", "cached", "wrong_stride", "writes_into_do", "refuses", "raises", "prints", "workspace_not_cleared",
    "of_its_shape", "of_its_place", "from_the_fourth_call", "from_a_count", "from_a_default", "in_a_cache",
    "on_itself", "on_torch", "where_nobody_looks", "crashes_in_forks", "hangs_in_forks", "of_random", "of_numpy",
    "of_torch", "of_a_generator",
)  # fmt: skip
# Of what is wrong in one layout nothing is taken over after it.
TAKEN = {"plain": 1, "cached": 1, "of_its_shape": 1}
# On a push one of each way in which a fork's runs are of no use, and two in which they are.
PUSH = ("plain", "cached", "where_nobody_looks", "from_the_fourth_call", "of_random", "crashes_in_forks")


@sampled("name", TARGETS, PUSH)
def test_the_report_is_that_of_one_run_after_another(name, file, taken, monkeypatch):
    if name == "hangs_in_forks":
        monkeypatch.setattr(beforehand, "_GRACE", 0.5)
    one_by_one = document(file, name, 1, monkeypatch)
    assert not taken
    assert document(file, name, 2, monkeypatch) == one_by_one
    assert len(taken) == TAKEN.get(name, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*TARGETS])
@pytest.mark.parametrize("cores", [3, 8])
def test_so_it_is_with_several_forks_and_more_layouts(name, cores, file, monkeypatch):
    if name == "hangs_in_forks":
        monkeypatch.setattr(beforehand, "_GRACE", 0.5)
    runs = ((), (("all", "blhd"),), (("all", "distinct"),), (("do", "expanded"),), (("all", "offset"),))
    assert document(file, name, cores, monkeypatch, runs=runs) == document(file, name, 1, monkeypatch, runs=runs)
