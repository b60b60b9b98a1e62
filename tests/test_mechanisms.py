"""Each mechanism has a door; shut, a check still comes to its end; each file belongs to one of them, or to the core."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradprobe.model import mechanisms

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="a checkout alone has the benchmarks"
)


def _table():
    if not (ROOT / "benchmarks").is_dir():
        return None
    spec = importlib.util.spec_from_file_location(
        "mechanisms", ROOT / "benchmarks/mechanisms.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["mechanisms"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TABLE = _table()
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


def test_every_door_asks_for_its_mechanism():
    for one in TABLE.MECHANISMS:
        text = (ROOT / "gradprobe" / f"{one.door}.py").read_text()
        is_hypothesis = one.name.startswith("faults") and '"faults/' in text
        assert f'"{one.name}"' in text or is_hypothesis, one.name


def test_every_kind_of_hypothesis_is_in_the_table():
    from gradprobe.faults.table import _KINDS

    asked = {name for name, _ in _KINDS}
    assert asked <= set(NAMES)
    assert len(NAMES) == len(set(NAMES))


def test_what_is_off_says_nothing_and_what_ran_is_recorded(monkeypatch, tmp_path):
    record = tmp_path / "record"
    monkeypatch.setattr(mechanisms, "_RECORD", str(record))

    @mechanisms.door("quiet", lambda given: given)
    def mended(given):
        return [*given, 1]

    assert mended([2]) == [2, 1]
    assert mechanisms.gathered("several", iter, [3, 4]) == [3, 4]
    lines = [line.split() for line in record.read_text().splitlines()]
    assert [(name, spoke) for name, _, spoke in lines] == [("quiet", "1"), ("several", "1")]
    monkeypatch.setattr(mechanisms, "_OFF", frozenset({"quiet", "several"}))
    assert mended([2]) == [2]
    assert mechanisms.gathered("several", iter, [3]) == []


@pytest.mark.parametrize("is_wrong", [True, False], ids=["wrong", "right"])
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
        env=os.environ | {"GRADPROBE_WITHOUT": ",".join(names)},
    )  # fmt: skip
    assert ran.returncode == int(is_wrong), ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert report["verdict"] == ("mismatch" if is_wrong else "match")
    assert "by a fault of gradprobe" not in json.dumps(report) + ran.stdout
