"""How many edits are tried in 20 s, on a small case of a fault that no single edit mends.

    python benchmarks/trials.py [--budget 120]

The fault is two slips in one statement of a copy of the lazy kernel. Printed are the edits that were tried, the
seconds that it took, and what that makes in 20 s; `--budget` is that of `gradprobe check --fix-budget`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL = ROOT / "kernels" / "triton" / "lazy.py"
RIGHT, WRONG = "ds = p * (dp - delta[:, None])", "ds = 1.37 * p * (dp - delta[:, None]) + 0.01"
CASE = "--heads 2 --batch 1 --seqlen 40 --head-dim 16 --runs contiguous"
SECONDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=120)
    budget = parser.parse_args().budget
    text = KERNEL.read_text()
    if RIGHT not in text:
        sys.exit(f"{KERNEL} has no {RIGHT!r} any more")
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder, "faulty.py"), Path(folder, "report.json")
        path.write_text(text.replace(RIGHT, WRONG))
        words = f"check {path}:lazy_intermediates {CASE} --fix-budget {budget} --json {report}"
        command = [sys.executable, "-m", "gradprobe", *words.split()]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        diagnoses = json.loads(report.read_text())["diagnoses"]
    edit = next(each["edit"] for each in diagnoses if each["edit"])
    rate = SECONDS * edit["tried"] / edit["seconds"]
    print(f"{edit['tried']:,} edits in {edit['seconds']} s: {rate:,.0f} in {SECONDS} s")


if __name__ == "__main__":
    main()
