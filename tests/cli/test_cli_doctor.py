"""gradprobe doctor: the first rung that fails is the story, and what runs that is not what the file holds is told."""

import json
import py_compile
import shutil

import pytest

from tests.cli import test_cli_cuda
from tests.cli.command import ROOT, run, run_process
from tests.cli.test_cli_cuda import SOURCE

DELTA = (ROOT / "examples" / "delta.py").read_text()
CASE = "--heads 2 --seqlen 16 --head-dim 8"
SMALL = f"soft.py:backward {CASE} --batch 1"


def test_a_wrong_stride_is_red_first_where_do_moves_between_two_heads(folder):
    (folder / "mine.py").write_text(DELTA)
    ran = run(f"doctor mine.py:delta {CASE} --json out.json")
    assert ran.code == 1
    first = 'RED  first at "2 heads, dO moved"; 2 of 2 rungs below it green (mine.py:delta)'
    assert ran.out.splitlines()[0] == first
    assert "\n  in full: gradprobe check mine.py:delta " in ran.out
    assert len(ran.first_mismatches) == 1
    told = json.loads((folder / "out.json").read_text())
    assert (told["schema"], told["verdict"], told["first_bad"]["rung"]) == (
        "gradprobe.doctor/1", "red", "2 heads, dO moved",
    )  # fmt: skip
    assert [rung["state"] for rung in told["rungs"][:4]] == ["green", "green", "red", "not run"]
    assert told["closer"] == []


def test_stale_bytecode_is_named_though_every_rung_is_green(folder):
    text = (folder / "soft.py").read_text()
    py_compile.compile(
        "soft.py", invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    (folder / "soft.py").write_text(text + "EDITED = True\n")
    ran = run_process(f"doctor {SMALL} --json -")
    told = json.loads(ran.out)
    assert (ran.code, told["verdict"], told["first_bad"]) == (1, "stale", None)
    assert "Python runs a stale compiled file, not what soft.py holds now" in told["stale"][0]


@pytest.mark.nightly
def test_a_compiled_file_of_another_source_is_named_where_the_rung_is_green_without_it(folder):
    command = test_cli_cuda.written(folder).replace("check", "doctor")
    right = SOURCE.replace("BARRIER", "__syncthreads();")
    built = {}
    for name, text in (("wrong", right.replace("total +=", "total -=")), ("right", right)):
        (folder / "delta.cu").write_text(text)
        run_process(command, GRADPROBE_CACHE_DIR=str(folder / name))
        (built[name],) = (folder / name / "cuda-on-cpu").glob("delta-*.so")
    shutil.copy(built["wrong"], built["right"])
    ran = run_process(f"{command} --json out.json", GRADPROBE_CACHE_DIR=str(folder / "right"))
    told = json.loads((folder / "out.json").read_text())
    assert (ran.code, told["first_bad"]["rung"]) == (1, "1 head")
    assert told["stale"] == [
        "a cache of compiled kernels is stale: with every cache empty it is green"
    ]
    assert [file["file"].rpartition("/")[2] for file in told["files"]] == ["mine.py"]
    assert run_process(f"{command} --fresh", GRADPROBE_CACHE_DIR=str(folder / "right")).code == 0


def test_a_check_with_empty_caches_repeats_itself(folder):
    assert run(f"check {SMALL} --runs contiguous --fresh --json out.json").code == 0
    assert json.loads((folder / "out.json").read_text())["reproduce"].endswith(" --fresh")
