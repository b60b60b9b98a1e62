"""What a save costs under `gradprobe watch`, beside a cold check of the same text.

    python benchmarks/watch.py [--pairs N] [--wrong] [WORDS OF CHECK ...]

A copy of kernels/triton/lazy.py is watched. Each save of it changes one of its kernels, in turn, and is followed by a
cold check, so that a busy machine slows both. Medians; the ratios are those of one pair. Last comes the memory of the
process that waits, after the first save and after the last.

With --wrong every save of a kernel is followed by one of a wrong stride: then what is measured is how soon the layout
that failed is known to be right again.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
KERNEL = (ROOT / "kernels/triton/lazy.py").read_text()
WRONG = KERNEL.replace("h * stride_doh", "h * stride_qh")
# By kernel: a line, and another in its place, in which a number is another one at each save. What it makes of the last
# bits of delta and LSE, the kernels behind it read.
EDITS = {
    "lazy_dq_kernel": ("(dp - delta[:, None])", "(dp - delta[:, None] + {} * 1e-12)"),
    "lazy_dkdv_kernel": ("(dp - delta[None, :])", "(dp - delta[None, :] + {} * 1e-12)"),
    "lazy_preprocess_kernel": ("tl.sum(p * dp, 1)", "tl.sum(p * dp, 1) + {} * 1e-8"),
    "lazy_forward_kernel": ("row_max + tl.log(", "{} * 2e-7 + row_max + tl.log("),
}
_TICKS = os.sysconf("SC_CLK_TCK")


def edited(kernel: str, number: int) -> str:
    """The text with a change of one kernel."""
    start = KERNEL.index(f"def {kernel}(")
    line, other = EDITS[kernel]
    assert line in KERNEL[start:]
    return KERNEL[:start] + KERNEL[start:].replace(line, other.format(number), 1)


def processor(process: int) -> float:
    """Seconds of the processor that a process has taken, with all that it has started."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        own = sum(map(int, fields[11:15])) / _TICKS
        return own + sum(map(processor, children(process)))
    except OSError:
        return 0.0


def children(process: int) -> list[int]:
    return [
        int(name)
        for name in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def resident(process: int) -> float:
    """Megabytes."""
    return (
        int(Path(f"/proc/{process}/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 2**20
    )


def until(stream: IO[str], *words: str) -> str:
    """The next line that holds one of the words."""
    return next(line for line in stream if any(word in line for word in words))


def cold(words: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a check."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "gradprobe", "check", *words], check=False, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.perf_counter() - start,
        after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--wrong", action="store_true")
    given, words = parser.parse_known_args()
    words = ["my_lazy.py:lazy_intermediates", *words]
    took: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    held = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = str(ROOT)
        os.chdir(folder)
        file = Path("my_lazy.py")
        file.write_text(KERNEL)
        command = [sys.executable, "-m", "gradprobe", "watch", *words]
        watch = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert watch.stdout is not None
        until(watch.stdout, "to be saved")
        for number, kernel in (
            (number, kernel) for number in range(1, given.pairs + 1) for kernel in EDITS
        ):
            if given.wrong:
                file.write_text(WRONG)
                until(watch.stdout, "to be saved")
            # What an earlier text took in processes that still lived is not counted twice.
            before, start = processor(watch.pid), time.perf_counter()
            file.write_text(edited(kernel, number))
            for name, word in (
                ("first answer", "the rest follows"),
                ("whole report", "to be saved"),
            ):
                until(watch.stdout, word)
                took[kernel, name].append(
                    (time.perf_counter() - start, processor(watch.pid) - before)
                )
            held.append(resident(watch.pid))
            took[kernel, "cold"].append(cold(words))
        watch.send_signal(signal.SIGINT)
        watch.wait()
    print(f"{given.pairs} pairs of each, {' '.join(words)}")
    for (kernel, name), times in took.items():
        wall, used = (statistics.median(column) for column in zip(*times, strict=True))
        pairs = list(zip(times, took[kernel, "cold"], strict=True))
        ratios = [
            statistics.median(one[at] / other[at] for one, other in pairs) for at in (0, 1)
        ]
        shown = f"{wall:6.2f} s, {used:6.2f} s of processor: {ratios[0]:.2f} and {ratios[1]:.2f} of cold"
        print(f"  {kernel:<23} {name:<13} {shown}")
    print(f"  it holds {held[0]:.0f} MB after the first save, {held[-1]:.0f} MB after the last")


if __name__ == "__main__":
    main()
