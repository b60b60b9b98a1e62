"""Whatever a target does to its process, the command that was typed reports it, and has imported none of its torch."""

import json
import sys

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
LEAVES = "import os, torch\nos._exit(0)\n"
FATAL = {
    "at its import": (LEAVES, "ended with exit code 0 before it answered"),
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
RUN = f"run --watch model:f --json out.json -- {sys.executable} run.py"
# A battery is tried at the import alone, and lint calls no target.
CALLED = [words for name, words in COMMANDS.items() if name not in ("battery", "lint")]
RIGHT = [f"check soft.py:backward {SMALL}", "lint lazy", f"diff dQ soft.py:backward {SMALL}"]
CASES = [(words, "at its import") for words in COMMANDS.values()]
CASES += [(words, "in a call") for words in [*CALLED, RUN]] + [(words, "") for words in RIGHT]
ON_PUSH = [(COMMANDS["lint"], "at its import"), (COMMANDS["strides"], "in a call")]
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


@sampled("words, moment", CASES, push=ON_PUSH)
def test_a_target_that_ends_its_process_ends_no_command(words, moment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_targets(tmp_path)
    source, told = FATAL.get(moment, ("", ""))
    (tmp_path / "spy").mkdir()
    files = {"fatal": source, "model": PROGRAM, "run": "import model\nmodel.main()\n"}
    for name, text in {**files, "spy/sitecustomize": SPY}.items():
        (tmp_path / f"{name}.py").write_text(text)
    spied = tmp_path / "spied"
    with start(words, PYTHONPATH=f"{tmp_path / 'spy'}:{ROOT}", SPIED=str(spied)) as process:
        out, err = (stream.decode() for stream in process.communicate(timeout=300))
    assert process.returncode == (3 if moment else 0), err
    assert told in out + err
    assert "Traceback" not in out + err
    if "--json" in words:
        assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "error"
    importing = set(spied.read_text().split())
    assert importing
    assert str(process.pid) not in importing
