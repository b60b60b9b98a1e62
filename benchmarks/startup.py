"""How long a person waits for what needs no kernel, beside an empty typer program, as a ratio of processor time.

    python benchmarks/startup.py [--runs 30]

Each round runs every command once, in turn, so that what else the machine does falls on all of them. A ratio is the
median over rounds of a command's time over the empty program's of the same round; the quickest times are beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMPTY = "import typer\napp = typer.Typer()\n@app.command()\ndef main() -> None:\n    'Nothing.'\napp()\n"
KERNEL = "import torch\ndef lazy_attention(q, k, v, do):\n    return {}\n"
GRADPROBE = [sys.executable, "-m", "gradprobe"]
# Each command, with its exit code.
COMMANDS = {
    "--help": 0,
    "--version": 0,
    "check --help": 0,
    "check lasy": 2,
    "check kernel.py:lazy_atention": 2,
    "check --dtype flota16": 2,
}
WANTED = {"--help": "1.5", "--version": "1.5"}


def used(command: list[str], folder: str, code: int) -> tuple[float, float]:
    """Seconds of processor and of wall that a process takes, with those of its children; its output is thrown away."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, check=False, capture_output=True, cwd=folder, env=environment)
    assert ran.returncode == code, ran.stderr.decode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        time.perf_counter() - start,
    )


def first_output(command: list[str], folder: str) -> float:
    """Seconds until a command on a terminal shows anything; it is interrupted then."""
    start = time.perf_counter()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"})
    os.read(terminal, 1)
    seconds = time.perf_counter() - start
    os.kill(process, signal.SIGINT)
    with contextlib.suppress(OSError):  # by which a terminal tells that the other end is closed
        while os.read(terminal, 1 << 16):
            pass
    os.close(terminal)
    os.waitpid(process, 0)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    commands = {"empty": ([sys.executable, "empty.py", "--help"], 0)}
    commands |= {words: ([*GRADPROBE, *words.split()], code) for words, code in COMMANDS.items()}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "empty.py").write_text(EMPTY)
        Path(folder, "kernel.py").write_text(KERNEL)
        for command, code in commands.values():
            used(command, folder, code)  # Python compiles what was never run
        rounds = [
            {words: used(command, folder, code) for words, (command, code) in commands.items()}
            for _ in range(runs)
        ]
        shown = [
            first_output([*GRADPROBE, "check", "lazy"], folder) for _ in range(max(3, runs // 3))
        ]
    print(f"{'':<32}{'ratio':>7}{'wanted':>8}{'least CPU':>11}{'median wall':>13}")
    for words in commands:
        ratio = statistics.median(one[words][0] / one["empty"][0] for one in rounds)
        least, wall = (
            min(one[words][0] for one in rounds),
            statistics.median(one[words][1] for one in rounds),
        )
        print(
            f"{words:<32}{ratio:>6.2f}x{WANTED.get(words, ''):>8}{least:>9.3f} s{wall:>11.3f} s"
        )
    print(f"first output of check lazy on a terminal: {statistics.median(shown):.2f} s")


if __name__ == "__main__":
    main()
