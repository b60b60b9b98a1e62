"""What recovering P and dS costs: a check with recovery over the same check without, at L = 200 and D = 64.

    python benchmarks/recovery.py

One line a target: seconds of the fastest of three checks without and with, and their ratio, which must stay below 10.
"""

from __future__ import annotations

import inspect
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.runtime.backend import make_interpreter_right, prepare_backend
from gradprobe.targets.find import Target, find_target
from gradprobe.targets.naming import source_of
from tests.probe import probe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


MOST = 10.0


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)


def seconds(case: Case, target: Target) -> float:
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        probe(case, target)
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    device = prepare_backend("auto")
    torch.set_num_threads(1)
    takes = {name: name for name in inspect.signature(attention).parameters}
    in_torch = Target(
        "sdpa", attention, takes, frozenset(("q", "k", "v")), "softmax", source_of(attention)
    )  # fmt: skip
    in_triton = find_target("gradprobe.kernels.triton.flash:flash_black_box")
    options = {"batch": 1, "heads": 2, "seqlen": 200, "head_dim": 64, "device": device}
    case = resolve(options, "softmax", takes_bias=False)
    make_interpreter_right(case)
    for target in (in_torch, in_triton):
        probe(case, target)
        without, recovering = (
            seconds(replace(case, recover=False), target),
            seconds(case, target),
        )
        ratio = recovering / without
        print(
            f"{target.name}: {without:.3f} s without, {recovering:.3f} s with recovery, {ratio:.2f} times",
            flush=True,
        )
        if ratio >= MOST:
            raise SystemExit(
                f"recovery costs {ratio:.1f} times a check, and may cost {MOST:.0f}"
            )


if __name__ == "__main__":
    main()
