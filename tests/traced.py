"""Which functions of gradprobe a command calls, in all of its processes: each file's from each other file once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Noted when it is first called, since children are killed when they have answered.
TRACER = """
import os, sys, threading, time

noted = os.open(os.environ["TRACED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
package, seen = os.environ["TRACED_PACKAGE"], set()


def profile(frame, event, argument):
    code, before = frame.f_code, frame.f_back
    caller = before.f_code.co_filename if before else ""
    if event == "call" and (caller, code) not in seen:
        seen.add((caller, code))
        # Modules and functions: no class's code, and no comprehension's, which is code of its own up to Python 3.11.
        is_meant = code.co_name == "<module>" or code.co_flags & 1 and not code.co_name.endswith(("comp>", "genexpr>"))
        if is_meant and code.co_filename.startswith(package):
            words = time.monotonic(), caller, code.co_filename, code.co_firstlineno, code.co_name
            os.write(noted, ("\\t".join(map(str, words)) + "\\n").encode())


def start():
    sys.setprofile(profile)
    threading.setprofile(profile)


start()
os.register_at_fork(after_in_child=start)
"""


class Call(NamedTuple):
    moment: str
    caller: str
    file: str
    line: str
    function: str


def calls_of(words: list[str], tmp_path: Path, package: Path = ROOT / "gradprobe") -> list[Call]:
    (tmp_path / "sitecustomize.py").write_text(TRACER)
    noted = tmp_path / "calls"
    # As a user runs it: not with what tests set.
    own = {name: word for name, word in os.environ.items() if not name.startswith("GRADPROBE_")}
    path = os.pathsep.join([str(tmp_path), str(ROOT), own.get("PYTHONPATH", "")])
    own |= {"TRACED": str(noted), "TRACED_PACKAGE": str(package), "PYTHONPATH": path}
    command = [sys.executable, "-m", "gradprobe", *words]
    subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, check=False, timeout=600)
    return [Call(*line.split("\t")) for line in noted.read_text().splitlines()]
