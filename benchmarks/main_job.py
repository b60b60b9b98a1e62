"""The time that a person feels: of the default check, by stage. benchmarks/startup.py has that of help and refusals.

    python benchmarks/main_job.py [--runs N]
    python benchmarks/main_job.py --base FOLDER [--runs N] [WORDS OF CHECK ...]
    python benchmarks/main_job.py --without NAME [--runs N] [WORDS OF CHECK ...]

Whole processes, run in turn; medians. Ratios of one run hold on a noisy machine, seconds hardly do.
With --base, a checkout of another commit, a check by each, in turn, after one of each that is not counted. With
--without the base is this checkout without a mechanism of mechanisms.py. A file is to be named by its whole path. The
seconds of the check's own process, without its forks, are what a machine with free cores waits for at least: they say
more than the wall time where others have the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(command: list[str], bytecode: str | None = None) -> float:
    """Wall seconds of one process; its output is thrown away. `bytecode`: the folder of Python's compiled files."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment |= {"PYTHONPYCACHEPREFIX": bytecode} if bytecode else {}
    start = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    return time.perf_counter() - start


def check_by_stage(runs: int) -> None:
    """The default check, cold: each run compiles every Python file anew, torch's and Triton's too."""
    whole, shares = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            check = [
                sys.executable,
                "-m",
                "gradprobe",
                "check",
                "--heads",
                "4",
                "--causal",
                "--json",
                str(file),
            ]
            whole.append(seconds(check, bytecode=folder))
            shares.append(json.loads(file.read_text())["seconds"])
    total = statistics.median(whole)
    print(f"gradprobe check, cold  {total:6.2f} s  (wanted: under 10)")
    for stage in ("import", "target", "reference", "compare"):
        print(f"  {stage:<20} {statistics.median(share[stage] for share in shares):6.2f} s")
    rest = statistics.median(
        (wall - share["import"] - share["target"]) / wall
        for wall, share in zip(whole, shares, strict=True)
    )
    print(f"all but imports and target: {rest:.0%} of the wall time (wanted: under 30 %)")


def paired(base: Path, without: str, words: list[str], runs: int) -> None:
    """Of both sides the time of its check, and how many times faster this one is than the base."""
    sides = {"base": (base.resolve(), without), "this": (ROOT, "")}
    took: dict[str, list[tuple[float, ...]]] = {"base": [], "this": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs + 1):
            for name, side in sides.items():
                took[name].append(_seconds(*side, words, folder))
    print(f"gradprobe check {' '.join(words)}, {runs} pairs".replace("  ", " "))
    for at, what in enumerate(("wall", "processor", "its own")):
        base_took, this_took = (
            [all_three[at] for all_three in took[name][1:]] for name in sides
        )
        if not all(base_took) or not all(this_took):  # an older checkout does not tell its own
            continue
        ratio = statistics.median(b / t for b, t in zip(base_took, this_took, strict=True))
        seconds = " and ".join(
            f"{statistics.median(one):.2f} (least {min(one):.2f})"
            for one in (base_took, this_took)
        )
        print(f"  {what:<10} {seconds} s: {ratio:.2f} times faster")


def _seconds(
    tree: Path, without: str, words: list[str], folder: str
) -> tuple[float, float, float]:
    """Of one warm check, which may end with 0 or 1: wall; the processor's of all processes; of the one that checks."""
    before, start, record = (
        resource.getrusage(resource.RUSAGE_CHILDREN),
        time.perf_counter(),
        Path(folder) / "record",
    )
    of_mechanisms = {"GRADPROBE_WITHOUT": without, "GRADPROBE_MECHANISMS": str(record)}
    done = subprocess.run(
        [sys.executable, "-m", "gradprobe", "check", *words],
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{tree}/benchmarks/doors{os.pathsep}{tree}",
            **of_mechanisms,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"check {' '.join(words)} of {tree} ended with {done.returncode}")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
    record.unlink(missing_ok=True)
    own = sum(float(seconds) for name, seconds, _ in lines if name == "check")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, own


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--base", type=Path, help="a checkout of another commit, to be compared with this one"
    )
    parser.add_argument("--without", default="", help="a mechanism that the base lacks")
    options, words = parser.parse_known_args()
    if options.base or options.without:
        paired(options.base or ROOT, options.without, words, options.runs)
    else:
        check_by_stage(options.runs)


if __name__ == "__main__":
    main()
