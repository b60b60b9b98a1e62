"""How much of the project a check loads and calls: what is not needed for an answer is not imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from .planted.lazy_faults import HISTORICAL

ROOT = Path(__file__).resolve().parent.parent
# Children are killed when they have answered, so each process notes every half second what it has, and at its end.
COUNTER = """
import atexit, os, sys, threading, time

folder, package, called = os.environ["COUNTED"], os.environ["COUNTED_PACKAGE"], set()


def profile(frame, event, argument):
    # A function's code: no module's or class's, and no comprehension's, which is code of its own up to Python 3.11.
    if event == "call" and frame.f_code.co_flags & 1 and not frame.f_code.co_name.endswith(("comp>", "genexpr>")):
        called.add(frame.f_code)


def note():
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    functions = {f"{code.co_filename}:{code.co_firstlineno}:{code.co_name}" for code in list(called)}
    mine = [line for line in files | functions if line.startswith(package)]
    with open(f"{folder}/{os.getpid()}.new", "w") as file:
        file.write("\\n".join(mine))
    os.replace(f"{folder}/{os.getpid()}.new", f"{folder}/{os.getpid()}")


def keep_noting():
    while True:
        time.sleep(0.5)
        note()


def start():
    sys.setprofile(profile)
    threading.setprofile(profile)
    atexit.register(note)
    threading.Thread(target=keep_noting, daemon=True).start()


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
    """Runs `gradprobe` with these words, and counts."""
    (tmp_path / "sitecustomize.py").write_text(COUNTER)
    folder = tmp_path / "counted"
    folder.mkdir()
    environment = {
        **os.environ, "COUNTED": str(folder), "COUNTED_PACKAGE": str(ROOT / "gradprobe"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-m", "gradprobe", *words]
    subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=600
    )
    lines = {
        line
        for file in folder.iterdir()
        if not file.suffix
        for line in file.read_text().splitlines()
    }
    functions = {line for line in lines if ":" in line}
    return Counts(
        len(lines - functions), len({line.split(":")[0] for line in functions}), len(functions)
    )


@pytest.mark.nightly
def test_a_matching_check_loads_and_calls_little(tmp_path):
    counts = counts_of(["check", "lazy"], tmp_path)
    assert 0 < counts.loaded <= 132
    assert 0 < counts.called <= 80


@pytest.mark.nightly
def test_the_first_fault_of_the_readme_calls_little(tmp_path):
    source = (ROOT / "kernels" / "triton" / "lazy.py").read_text()
    (tmp_path / "my_lazy.py").write_text(HISTORICAL.plant(source))
    counts = counts_of(
        ["check", "my_lazy.py:lazy_intermediates", "--heads", "4", "--causal"], tmp_path
    )
    assert 0 < counts.loaded <= 170
    assert 0 < counts.called <= 130
    assert 0 < counts.functions <= 1340
