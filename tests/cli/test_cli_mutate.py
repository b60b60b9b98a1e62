import json
import shlex
import signal
import sys
import time

import pytest

from tests.cli.command import run, start
from tests.commands.mutate.written import TINY

CASE = "--batch 2 --heads 2 --seqlen 9 --head-dim 8"


@pytest.fixture
def tiny(folder, monkeypatch):
    (folder / "tiny.py").write_text(TINY)
    return folder


@pytest.mark.nightly
def test_gradprobe_s_own_gate_kills_a_stride_of_another_tensor_and_says_how(tiny):
    ran = run(f"mutate tiny.py:tiny {CASE} --sample 3 --json all.json")
    assert ran.err == ""
    assert f"tiny.py:tiny, by gradprobe check tiny.py:tiny {CASE} " in " ".join(ran.out.split())
    document = json.loads((tiny / "all.json").read_text())
    assert (document["schema"], document["planted"]) == ("gradprobe.mutate/1", 3)
    (stride,) = [one for one in document["mutants"] if one["class"] == "S1"]
    assert stride["words"].startswith("FIRST MISMATCH ")
    assert (tiny / "tiny.py").read_text() == TINY
    assert not (tiny / ".gradprobe").exists()


# A gate that sees every line but those that name a stride; it loads the file alone.
BLIND = """
import sys
from unittest.mock import MagicMock
sys.modules.update(dict.fromkeys(("torch", "triton", "triton.language"), MagicMock()))
import tiny
texts = [open(file).read().splitlines() for file in ("plain", tiny.tiny.__code__.co_filename)]
plain, loaded = ([line for line in text if "stride" not in line] for text in texts)
assert plain == loaded
"""


def test_a_gate_that_sees_no_strides_lets_a_fault_of_them_survive_and_kills_the_algebra(tiny):
    (tiny / "blind.py").write_text(BLIND)
    (tiny / "plain").write_text(TINY)
    words = ["mutate", "tiny.py", "--check", f"{shlex.quote(sys.executable)} blind.py"]
    ran = run([*words, "--sample", "9", "--json", "all.json"])
    assert ran.code == 1
    document = json.loads((tiny / "all.json").read_text())
    verdicts = {mutant["class"]: mutant["verdict"] for mutant in document["mutants"]}
    assert (verdicts["S1"], verdicts["A"]) == ("survived", "killed")
    mutant = next(one for one in document["mutants"] if one["verdict"] == "survived")
    line, out = mutant["line"], " ".join(ran.out.split())
    assert f" tiny.py:{line} {mutant['class']} {mutant['name']} in " in out
    assert f" - {mutant['before']} + {mutant['after']} " in out
    assert mutant["diff"].startswith(f"--- tiny.py\n+++ tiny.py\n@@ -{line} +{line} @@\n-")
    assert ran.out.startswith(f"SURVIVED  {document['survived']} of 9 faults: tiny.py, by ")
    assert "survived: the gate has a gap, or the edit changes no result" in ran.out


def test_an_interrupt_shows_the_fault_that_was_tried_and_keeps_it_in_the_file(tiny):
    # A gate that passes the file, fails at the first fault, and never ends at the second. It loads the file alone.
    (tiny / "gate.py").write_text(
        "import pathlib, sys, time\nfrom unittest.mock import MagicMock\nfile = pathlib.Path('runs')\n"
        "sys.modules.update(dict.fromkeys(('torch', 'triton', 'triton.language'), MagicMock()))\n"
        "runs = len(file.read_text()) if file.exists() else 0\nfile.write_text('x' * (runs + 1))\n"
        "if runs < 2:\n    import tiny\n"
        "time.sleep(600 if runs == 2 else 0)\nsys.exit(runs)\n"
    )
    (tiny / "gate.sh").write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} gate.py\n")
    (tiny / "gate.sh").chmod(0o755)
    with start(
        "mutate tiny.py --check ./gate.sh --sample 5 --workers 1 --json all.json"
    ) as process:
        while not ((tiny / "runs").exists() and (tiny / "runs").read_text() == "xxx"):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
    assert process.returncode == 130
    assert out.startswith(
        "INTERRUPTED  1 of 5 faults were tried; of these:\nKILLED  1 of 1 fault: tiny.py, by "
    )
    assert "gradprobe: interrupted after 1 of 5 faults\n" in err
    document = json.loads((tiny / "all.json").read_text())
    assert (document["verdict"], document["chosen"], document["killed"]) == ("incomplete", 5, 1)
