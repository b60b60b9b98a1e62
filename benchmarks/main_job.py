"""The time that a person feels: of the default check, by stage. benchmarks/startup.py has that of help and refusals.

    python benchmarks/main_job.py [--runs N]

Whole processes, run in turn; medians. Ratios of one run hold on a noisy machine, seconds hardly do.
"""

from __future__ import annotations

import argparse
import json
import os
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
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def check_by_stage(runs: int) -> None:
    """The default check, cold: each run compiles every Python file anew, torch's and Triton's too."""
    whole, shares = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            check = [sys.executable, "-m", "gradprobe", "check", "--heads", "4", "--causal", "--json", str(file)]
            whole.append(seconds(check, bytecode=folder))
            shares.append(json.loads(file.read_text())["seconds"])
    total = statistics.median(whole)
    print(f"gradprobe check, cold  {total:6.2f} s  (wanted: under 10)")
    for stage in ("import", "target", "reference", "compare"):
        print(f"  {stage:<20} {statistics.median(share[stage] for share in shares):6.2f} s")
    rest = statistics.median(
        (wall - share["import"] - share["target"]) / wall for wall, share in zip(whole, shares, strict=True)
    )
    print(f"all but imports and target: {rest:.0%} of the wall time (wanted: under 30 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    check_by_stage(parser.parse_args().runs)


if __name__ == "__main__":
    main()
