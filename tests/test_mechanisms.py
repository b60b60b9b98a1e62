"""Each mechanism has a door; shut, a check still comes to its end; each file belongs to one of them, or to the core."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled

ROOT = Path(__file__).resolve().parent.parent
PUT_ON = {"PYTHONPATH": f"{ROOT}/benchmarks/doors{os.pathsep}{ROOT}"}
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="a checkout alone has the benchmarks"
)


def _loaded(file):
    path = ROOT / "benchmarks" / file
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TABLE, DOORS = _loaded("mechanisms.py"), _loaded("doors/sitecustomize.py")
NAMES = [one.name for one in TABLE.MECHANISMS] if TABLE else []


def test_every_file_belongs_to_one_mechanism_or_to_the_core():
    entries = [*TABLE.CORE, *(file for one in TABLE.MECHANISMS for file in one.files)]
    owned = [path for entry in entries for path in TABLE.paths_of(entry)]
    package, there = ROOT / "gradprobe", set[Path]()
    for folder in TABLE.FOLDERS:
        there |= {*(package / folder).rglob("*.py")} - {package / folder / "__init__.py"}
    of_folders = [path for path in owned if path.relative_to(package).parts[0] in TABLE.FOLDERS]
    lost = sorted(str(path.relative_to(ROOT)) for path in there - set(of_folders))
    assert not lost, f"name {lost} in benchmarks/mechanisms.py, in a mechanism or in the core"
    assert len(set(of_folders)) == len(of_folders), "a file belongs to two"
    assert all(path.is_file() for path in owned)


def test_every_mechanism_has_doors_on_functions_that_are_there():
    names = {name for _, _, name, _ in DOORS.DOORS} | {f"faults/{name}" for name in DOORS.KINDS}
    assert names | {"faults"} == {*NAMES, "check"}
    assert len(NAMES) == len(set(NAMES))
    on = "import gradprobe.{0}; assert hasattr(gradprobe.{0}.{1}, '__wrapped__')"
    lines = [on.format(of, path) for of, path, *_ in DOORS.DOORS if path != "Memory.findings"]
    lines.append("from gradprobe.faults import table; assert table._KINDS[0].__wrapped__")
    env = os.environ | PUT_ON | {"GRADPROBE_WITHOUT": "all"}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, env=env)


def test_what_is_off_says_nothing_and_what_ran_is_recorded(monkeypatch, tmp_path):
    record = tmp_path / "record"
    monkeypatch.setattr(DOORS, "RECORD", str(record))
    mended = DOORS.door("quiet", lambda given: given, lambda given: [*given, 1])
    several = DOORS.door("several", DOORS.NO_LIST, lambda given: (each for each in given))
    assert mended([2]) == [2, 1]
    assert several([3, 4]) == [3, 4]
    assert several([]) == []
    lines = [line.split() for line in record.read_text().splitlines()]
    spoke = [(name, spoke) for name, _, spoke in lines]
    assert spoke == [("quiet", "1"), ("several", "1"), ("several", "0")]
    monkeypatch.setattr(DOORS, "OFF", frozenset({"quiet", "several"}))
    assert mended([2]) == [2]
    assert several([3]) == []


@sampled(
    "is_wrong", [True, False], push=1, ids=lambda is_wrong: "wrong" if is_wrong else "right"
)
@pytest.mark.parametrize(
    "names",
    [pytest.param([name], id=name, marks=pytest.mark.nightly) for name in NAMES]
    + [pytest.param(NAMES, id="all")],
)
def test_a_check_without_it_comes_to_its_end(names, is_wrong, tmp_path):
    kernel = (ROOT / "kernels/triton/lazy.py").read_text()
    (tmp_path / "my_lazy.py").write_text(
        kernel.replace("h * stride_doh", "h * stride_qh") if is_wrong else kernel
    )
    words = "check my_lazy.py:lazy_backward --batch 1 --heads 2 --seqlen 24 --head-dim 16 --json report --fix-budget 8"
    ran = subprocess.run(
        [sys.executable, "-m", "gradprobe", *words.split()], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | PUT_ON | {"GRADPROBE_WITHOUT": ",".join(names)},
    )  # fmt: skip
    assert ran.returncode == int(is_wrong), ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert report["verdict"] == ("mismatch" if is_wrong else "match")
    assert "by a fault of gradprobe" not in json.dumps(report) + ran.stdout
