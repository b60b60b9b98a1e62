"""How much of its budget a right kernel uses: the largest ratio of each intermediate, over arithmetics and values.

    python benchmarks/calibration.py [--long]

One line a cell. tau = 1 keeps every entry off the ReLU's kink, where the ratio says nothing about rounding.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradprobe.backend import make_interpreter_right, prepare_backend
from gradprobe.case import PATTERNS, resolve
from gradprobe.probe import probe
from gradprobe.targets import find_target

ARITHMETIC = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="lengths to 4096 and dims to 128; wants a GPU")
    sizes = ((200, 64), (1024, 16), (4096, 64), (4096, 128)) if parser.parse_args().long else ((72, 24),)
    device = prepare_backend("auto")
    target = find_target("lazy")
    for (dtype, dots), (seqlen, head_dim), pattern in itertools.product(ARITHMETIC, sizes, PATTERNS):
        options = {
            "batch": 1, "heads": 2, "seqlen": seqlen, "head_dim": head_dim, "dtype": dtype, "dots": dots,
            "pattern": pattern,
            "tau": (1.0,), "bias_window": seqlen // 3, "device": device, "block_m": 32, "block_n": 32,
        }  # fmt: skip
        case = resolve(options, target.family, takes_bias=True)
        make_interpreter_right(case)
        report = probe(case, target)
        runs = [measured.comparison.findings for _, measured in report.measured]
        worst = {name: max(findings[name].max_ratio for findings in runs) for name in runs[0]}
        cells = " ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items())
        print(f"{report.verdict:<8} {dtype} {dots} L={seqlen} D={head_dim} {pattern:<9} {cells}", flush=True)


if __name__ == "__main__":
    main()
