"""Commands of gradprobe in a process of their own, with the GPU of this machine."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def gradprobe(words: str | Sequence[str], folder: Path, timeout: int = 600, **environment: str):
    """What a command printed, and its exit code, as subprocess has them; both are printed too."""
    words = words.split() if isinstance(words, str) else words
    path, not_taken = os.pathsep.join([str(ROOT), *sys.path]), ("TRITON_INTERPRET", "NO_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in not_taken}
    ran = subprocess.run(
        [sys.executable, "-m", "gradprobe", *words], cwd=folder, timeout=timeout, capture_output=True, text=True,
        check=False, env={**inherited, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    print(ran.stdout[-4000:], ran.stderr[-4000:])
    return ran


def shown(report):
    """By layout and intermediate, how much of its budget a probe used."""
    return {
        run.layout: {name: round(one.max_ratio, 2) for name, one in measured.comparison.findings.items()}
        for run, measured in report.measured
    }  # fmt: skip
