"""Whatever a target does to its process, the command that was typed reports it, and has imported none of its torch."""

import json
import sys

import pytest

from tests.cli.command import ROOT, SMALL, start
from tests.cli.written_targets import write_targets
from tests.sampling import sampled

PROGRAM = """
import os
import torch
def f(q, k, v):
    if "GRADPROBE_WATCH" not in os.environ:  # in the program all goes well
        os.kill(os.getpid(), 11)
    return torch.softmax(q @ k.mT, -1) @ v
def main():
    q, k, v = (torch.randn(1, 1, 5, 4, requires_grad=True) for _ in range(3))
    f(q, k, v).sum().backward()
"""
DIES = "import os\ndef f(q, k, v, do):\n    os.kill(os.getpid(), 11)\n"
FATAL = {
    "at its import": (
        "import os, torch\nos._exit(0)\n",
        "ended with exit code 0 before it answered",
    ),
    "in a call": (DIES, "killed by SIGSEGV"),
}
COMMANDS = {
    "check": "check fatal.py:f --json out.json",
    "battery": "check fatal.py:f --battery quick --json out.json",
    "diff": f"diff dQ fatal.py:f {SMALL} --json out.json",
    "strides": "strides fatal.py:f --fast --json out.json",
    "lint": "lint fatal.py:f --json out.json",
    "shrink": f"shrink fatal.py:f {SMALL} --json out.json",
    "doctor": f"doctor fatal.py:f {SMALL} --json out.json",
    "audit": "audit fatal.py:f --json out.json",
    "baseline": f"check fatal.py:f {SMALL} --baseline kept.json",
    "contract": "check fatal.py:f --contract --json out.json",
}
# A battery is tried at the import alone, and lint calls no target.
IMPORTED_ALONE = ("battery", "lint")
CASES = [(command, "at its import") for command in COMMANDS]
CASES += [(command, "in a call") for command in COMMANDS if command not in IMPORTED_ALONE]
# Written into by whichever process looks for torch.
SPY = """
import os, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn":  # torch itself is looked for, and not imported, to know its folder
            with open(os.environ["SPIED"], "a") as file:
                print(os.getpid(), file=file)
sys.meta_path.insert(0, Spy())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_targets(tmp_path)
    return tmp_path


def ended(words, **environment):
    with start(words, **environment) as process:
        out, err = (stream.decode() for stream in process.communicate(timeout=300))
    return process, out, err


@sampled("command, moment", CASES, push=2)
def test_a_target_that_ends_its_process_ends_no_command(command, moment, folder):
    source, words = FATAL[moment]
    (folder / "fatal.py").write_text(source)
    process, out, err = ended(COMMANDS[command])
    assert process.returncode == 3
    assert words in out + err
    assert "Traceback" not in out + err
    if "--json" in COMMANDS[command]:
        assert json.loads((folder / "out.json").read_text())["verdict"] == "error"


def test_a_target_that_dies_on_the_inputs_of_a_program_ends_no_command(folder):
    (folder / "model.py").write_text(PROGRAM)
    (folder / "run.py").write_text("import model\nmodel.main()\n")
    process, out, err = ended(f"run --watch model:f --json out.json -- {sys.executable} run.py")
    assert process.returncode == 3
    assert json.loads((folder / "out.json").read_text())["verdict"] == "error"
    assert "target 'model:f' crashed (as-saved): killed by SIGSEGV" in out


@sampled(
    "words",
    [f"check soft.py:backward {SMALL}", "lint lazy", f"diff dQ soft.py:backward {SMALL}",
     f"strides soft.py:backward --fast {SMALL}", "check fatal.py:f --battery"],
    push=1,
)  # fmt: skip
def test_the_process_that_was_typed_imports_no_torch(words, folder):
    (folder / "fatal.py").write_text(FATAL["at its import"][0])
    (folder / "spy").mkdir()
    (folder / "spy" / "sitecustomize.py").write_text(SPY)
    spied = folder / "spied"
    process, _, err = ended(words, PYTHONPATH=f"{folder / 'spy'}:{ROOT}", SPIED=str(spied))
    assert process.returncode == (3 if "fatal" in words else 0), err
    importing = set(spied.read_text().split())
    assert importing
    assert str(process.pid) not in importing
