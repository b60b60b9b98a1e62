"""How much of its budget a right kernel uses: the largest ratio of each intermediate, over arithmetics and values.

    python benchmarks/calibration.py [TARGET ...] [--long]

One line a cell; lazy and flash where no target is named. tau = 1 keeps every entry off the ReLU's kink, where the ratio
says nothing about rounding. A cell that a target does not take is left out.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

from gradprobe.model.case import PATTERNS
from gradprobe.model.failures import TargetFailure
from gradprobe.model.resolution import resolve
from gradprobe.runtime.backend import make_interpreter_right, prepare_backend
from gradprobe.targets.find import find_target
from tests.probe import probe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


ARITHMETIC = (
    ("float32", "ieee"),
    ("float32", "tf32"),
    ("float16", "ieee"),
    ("bfloat16", "ieee"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=["lazy", "flash"])
    parser.add_argument(
        "--long", action="store_true", help="lengths to 4096 and dims to 128; wants a GPU"
    )
    given = parser.parse_args()
    sizes = ((200, 64), (1024, 16), (4096, 64), (4096, 128)) if given.long else ((72, 24),)
    device = prepare_backend("auto")
    for word, (dtype, dots), (seqlen, head_dim), pattern in itertools.product(
        given.targets,
        ARITHMETIC,
        sizes,
        (pattern for pattern in PATTERNS if pattern != "dyadic"),
    ):
        options = {
            "batch": 1, "heads": 2, "seqlen": seqlen, "head_dim": head_dim, "dtype": dtype, "dots": dots,
            "pattern": pattern, "device": device, "block_m": 32, "block_n": 32,
        }  # fmt: skip
        worst = ratios(word, options)
        if worst:
            cells = " ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items())
            print(
                f"{word} {dtype} {dots} L={seqlen} D={head_dim} {pattern:<9} {cells}", flush=True
            )


def ratios(word: str, options: dict[str, Any]) -> dict[str, float]:
    """The worst ratio of each intermediate over all layouts; nothing where the target does not take the case."""
    target = find_target(word)
    of_family = (
        {"tau": (1.0,), "bias_window": options["seqlen"] // 3}
        if target.family == "lazy"
        else {"causal": True}
    )
    case = resolve(options | of_family, target.family, takes_bias=True)
    make_interpreter_right(case)
    try:
        report = probe(case, target)
    except TargetFailure as failure:
        print(f"{word} {options['dtype']}: {failure}", file=sys.stderr)
        return {}
    worst: dict[str, float] = {}
    for _, measured in report.measured:
        for name, finding in measured.comparison.findings.items():
            worst[name] = max(worst.get(name, 0.0), finding.max_ratio)
    return worst


if __name__ == "__main__":
    main()
