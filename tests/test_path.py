"""The path of a check in DESIGN.md: each file calls those that are set under it, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Every process notes at once, when for the first time a function of one file calls one of another, and when.
TRACER = """
import os, sys, threading, time

file, package, called = os.environ["TRACED"], os.environ["TRACED_PACKAGE"], set()


def profile(frame, event, argument):
    before = frame.f_back
    if event != "call" or before is None or not frame.f_code.co_flags & 1:  # a module's or a class's code
        return
    pair = (before.f_code.co_filename, frame.f_code.co_filename)
    if pair not in called and pair[0] != pair[1] and all(name.startswith(package) for name in pair):
        called.add(pair)
        with open(file, "a") as notes:
            notes.write(" ".join([str(time.monotonic()), *(os.path.relpath(name, package) for name in pair)]) + "\\n")


sys.setprofile(profile)
threading.setprofile(profile)
"""
SMALL = [
    "--batch", "1", "--heads", "1", "--seqlen", "16", "--head-dim", "16", "--runs", "contiguous",
]  # fmt: skip


def steps_of(page: str) -> list[tuple[str, str]]:
    """The files of the path in order, each with the one that it is set under."""
    above: list[str] = []
    steps = []
    for indent, file in re.findall(r"^    ((?:  )*)([a-z_/]+\.py)\b", page, re.MULTILINE):
        above[len(indent) // 2 :] = [file]
        steps.append((above[-2] if len(above) > 1 else "", file))
    return steps


def test_each_file_of_the_path_calls_the_next(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(TRACER)
    notes = tmp_path / "calls"
    environment = {
        **os.environ, "TRACED": str(notes), "TRACED_PACKAGE": str(ROOT / "gradprobe"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-m", "gradprobe", "check", "lazy", *SMALL]
    subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300
    )
    first: dict[tuple[str, str], float] = {}
    for line in notes.read_text().splitlines():
        moment, *pair = line.split()
        first[pair[0], pair[1]] = min(float(moment), first.get((pair[0], pair[1]), float("inf")))
    start, *steps = steps_of((ROOT / "DESIGN.md").read_text())
    assert (start, len(steps)) == (("", "cli/check_command.py"), 11)
    assert [step for step in steps if step not in first] == []
    assert sorted(steps, key=first.__getitem__) == steps
