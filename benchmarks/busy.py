"""Whether the same check tells the same alone and beside eight busy processes.

    python benchmarks/busy.py [--times 5] [--busy 8] [--only NAME]

Each fault is planted in a copy of a kernel of the repository, and checked so often alone and so often beside processes
that only compute. Compared are verdict, first mismatch, causes with their lines, the edits that were tried, how many,
and the notes. Exits with 1 where any of it differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Planted:
    """A fault: which file, what stands in place of what, and how it is checked."""

    file: str
    right: str
    wrong: str
    words: str


FAULTS = {
    "readme": Planted(
        "kernels/triton/lazy.py",
        "h * stride_doh",
        "h * stride_qh",
        "lazy.py:lazy_intermediates --heads 4",
    ),
    "delta": Planted(
        "examples/delta.py", "", "", "delta.py:delta --batch 1 --heads 2 --seqlen 16"
    ),
    "factor": Planted(
        "kernels/triton/flash.py",
        "dq * scale",
        "dq",
        "flash.py:flash_black_box --heads 2 --causal --head-dim 16",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--busy", type=int, default=8)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    same = [
        compared(name, given.times, given.busy) for name in FAULTS if name.startswith(given.only)
    ]
    sys.exit(not all(same))


def compared(name: str, times: int, busy: int) -> bool:
    """Whether all checks of a fault tell the same."""
    with tempfile.TemporaryDirectory() as folder:
        alone = [told(FAULTS[name], Path(folder)) for _ in range(times)]
        with busy_processes(busy):
            beside = [told(FAULTS[name], Path(folder)) for _ in range(times)]
    (first, _), *others = [*alone, *beside]
    same = sum(one == first for one, _ in others) + 1
    spans = (
        f"{min(took for _, took in ran):.0f} to {max(took for _, took in ran):.0f} s"
        for ran in (alone, beside)
    )
    print(
        f"{name}: the same in {same} of {2 * times}; {next(spans)} alone, {next(spans)} beside {busy}",
        flush=True,
    )
    for one, _ in others:
        for key in (key for key in first if one.get(key) != first[key]):
            print(f"  {key}: {one.get(key)}\n  for {first[key]}")
    return same == 2 * times


def told(fault: Planted, folder: Path) -> tuple[dict[str, Any], float]:
    """What a check tells, and the seconds that it took."""
    source = ROOT / fault.file
    text = source.read_text()
    assert fault.right in text, fault
    (folder / source.name).write_text(
        text.replace(fault.right, fault.wrong) if fault.right else text
    )
    command = [
        sys.executable,
        "-m",
        "gradprobe",
        "check",
        *shlex.split(fault.words),
        "--json",
        "report.json",
    ]
    start, environment = time.monotonic(), os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    report = json.loads((folder / "report.json").read_text())
    return compared_of(report), time.monotonic() - start


def compared_of(report: dict[str, Any]) -> dict[str, Any]:
    """What may not depend on the machine."""
    causes = [
        [
            one["fault"],
            one["explained"],
            [(at["file"], at["line"]) for at in one["where"]],
            _without_time(one["edit"]),
        ]
        for one in report["diagnoses"]
    ]
    kept = ("verdict", "first_mismatch", "known", "notes")
    return {"causes": causes, **{key: report.get(key) for key in kept}}


def _without_time(edit: dict[str, Any] | None) -> dict[str, Any] | None:
    return edit and {key: value for key, value in edit.items() if key != "seconds"}


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """While open, so many processes compute."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


if __name__ == "__main__":
    main()
