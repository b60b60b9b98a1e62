import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import run

pytestmark = pytest.mark.usefixtures("without_causes")

COARSE = Path(__file__).resolve().parents[1] / "commands" / "baseline" / "coarse.py"
# A head dim whose scale is no power of two: what is scaled by one is not rounded by that.
TINY = "--batch 1 --heads 2 --seqlen 40 --head-dim 24 --dtype float16"
FILE = Path("errors.json")
DIFF = f"check kernel.py:right {TINY} --baseline {FILE}"


@pytest.fixture(scope="module")
def saved():
    return []


@pytest.fixture
def kernel(folder, saved):
    shutil.copy(COARSE, folder / "kernel.py")
    if not saved:
        kept = run(DIFF)
        assert (kept.code, kept.err) == (0, "")
        assert (
            kept.out == f"kept kernel.py:right {TINY} in {FILE}\n  12 errors over draws 0 to 4\n"
        )
        saved.append(FILE.read_bytes())
    FILE.write_bytes(saved[0])
    return folder / "kernel.py"


def test_the_same_kernel_again_is_the_same_and_0(kernel):
    before = FILE.read_bytes()
    again = run(DIFF)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("NO GROWTH  kernel.py:right --batch 1")
    assert "12 errors over 5 draws, at most 1x" in " ".join(again.out.split())
    assert FILE.read_bytes() == before


def test_what_grew_or_is_gone_is_1_and_json_holds_the_table(kernel):
    document = json.loads(FILE.read_text())
    entry = document["entries"][0]
    errors = entry["errors"]
    figures = errors["contiguous"]["dQ"]
    figures["rms"] = [0.5 * figure for figure in figures["rms"]]
    errors["contiguous"]["LSE"] = errors["contiguous"].pop("O")
    errors["blhd"] = errors.pop("distinct")
    FILE.write_text(json.dumps(document))
    ran = run(f"{DIFF} --json found.json")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].startswith("GROWN  kernel.py:right")
    (grew,) = [line for line in lines if line.startswith("GREW ")]
    assert grew.split()[1:3] == ["dQ", "contiguous"]
    assert "rms error 1." in grew or "rms error 2" in grew
    assert "noise up to 1." in grew
    gone = [line for line in lines if line.startswith("GONE ")]
    assert {"GONE LSE in contiguous", "GONE dQ in blhd"} <= {*gone}
    assert len(gone) == 5
    found = json.loads(Path("found.json").read_text())
    assert (found["schema"], found["verdict"]) == ("gradprobe.baseline.diff/1", "grown")
    (cell,) = [one for one in found["entries"][0]["cells"] if one["grown"]]
    assert (cell["figure"], cell["factor"] > cell["noise"] > 1) == ("rms", True)


def test_a_mismatch_is_1_with_the_words_of_check_first_and_is_not_kept(kernel):
    right = '"dK": inner.mT @ wide_q * outer'
    kernel.write_text(kernel.read_text().replace(right, f"{right} * 2"))
    ran = run(f"{DIFF} --json found.json")
    assert (ran.code, ran.out.startswith("MISMATCH")) == (1, True)
    assert [line[:37] for line in ran.first_mismatches] == [
        "FIRST MISMATCH dK batch=0 head=0 row="
    ]
    found = json.loads(Path("found.json").read_text())
    assert found["verdict"] == "mismatch"
    assert found["entries"][0]["schema"] == "gradprobe.report/2"
    FILE.unlink()
    ran = run(DIFF)
    assert (ran.code, ran.out.startswith("MISMATCH")) == (1, True)
    assert ran.out.endswith("not kept: the errors of a mismatch are no baseline\n")
    assert not FILE.exists()
