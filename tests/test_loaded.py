"""How much of the project a check loads and calls: what is not needed for an answer is not imported for it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from .planted.lazy_faults import HISTORICAL

ROOT = Path(__file__).resolve().parent.parent
# A function is noted when it is first called, since children are killed when they have answered.
COUNTER = """
import os, sys, threading

noted = os.open(os.environ["COUNTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
package, seen = os.environ["COUNTED_PACKAGE"], set()


def profile(frame, event, argument):
    code = frame.f_code
    if event != "call" or code in seen:
        return
    seen.add(code)
    if not code.co_filename.startswith(package):
        return
    if code.co_name == "<module>":
        os.write(noted, f"{code.co_filename}\\n".encode())
    # A function's code: no class's, and no comprehension's, which is code of its own up to Python 3.11.
    elif code.co_flags & 1 and not code.co_name.endswith(("comp>", "genexpr>")):
        os.write(noted, f"{code.co_filename}:{code.co_firstlineno}:{code.co_name}\\n".encode())


def start():
    sys.setprofile(profile)
    threading.setprofile(profile)


start()
os.register_at_fork(after_in_child=start)
"""


@dataclass(frozen=True)
class Counts:
    """What all processes of one command had."""

    loaded: int
    """Files of the project that were imported."""
    called: int
    """Files of the project in which a function was called."""
    functions: int


def counts_of(words: list[str], tmp_path: Path) -> Counts:
    (tmp_path / "sitecustomize.py").write_text(COUNTER)
    noted = tmp_path / "counted"
    # As a user runs it: not with what tests set.
    own = {name: word for name, word in os.environ.items() if not name.startswith("GRADPROBE_")}
    environment = {
        **own, "COUNTED": str(noted), "COUNTED_PACKAGE": str(ROOT / "gradprobe"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), own.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-m", "gradprobe", *words]
    subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=600
    )
    lines = set(noted.read_text().splitlines())
    functions = {line for line in lines if ":" in line}
    return Counts(
        len(lines - functions), len({line.split(":")[0] for line in functions}), len(functions)
    )


@pytest.mark.nightly
def test_a_matching_check_loads_and_calls_little(tmp_path):
    counts = counts_of(["check", "lazy"], tmp_path)
    assert 0 < counts.loaded <= 124
    assert 0 < counts.called <= 80


@pytest.mark.nightly
def test_the_first_fault_of_the_readme_calls_little(tmp_path):
    source = (ROOT / "kernels" / "triton" / "lazy.py").read_text()
    (tmp_path / "my_lazy.py").write_text(HISTORICAL.plant(source))
    counts = counts_of(
        ["check", "my_lazy.py:lazy_intermediates", "--heads", "4", "--causal"], tmp_path
    )
    assert 0 < counts.loaded <= 162
    assert 0 < counts.called <= 125
    assert 0 < counts.functions <= 1300
