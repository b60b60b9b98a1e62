"""Times of the CUDA kernels on a GPU, each beside PyTorch's fused backward of the same case, as a ratio.

    python benchmarks/cuda_kernels.py [--seqlen 2048] [--head-dim 64] [--heads 16] [--dtype float16]

A figure and no gate: the kernels are written to be read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradprobe.frontends.cuda import module as cuda_module
from gradprobe.targets.adapters import cuda_kernels

sys.path.insert(0, str(Path(__file__).parents[1]))


ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("batch", 1), ("heads", 16), ("seqlen", 2048), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float16")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device")
    shape = (given.batch, given.heads, given.seqlen, given.head_dim)
    q, k, v, do = (
        torch.randn(shape, device="cuda", dtype=getattr(torch, given.dtype)) for _ in range(4)
    )
    fused = timed(fused_backward(q, k, v, do))
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {tuple(shape)} {given.dtype}, causal"
    )
    print(f"PyTorch's fused backward takes {fused:.3f} ms; beside it:")
    scale = given.head_dim**-0.5
    tau = torch.full(shape[1:2], -1.0, device="cuda")
    runs = {
        "flash-cuda": lambda: cuda_kernels.flash_cuda(q, k, v, do, scale=scale, causal=True),
        "lazy-cuda": lambda: cuda_kernels.lazy_cuda(q, k, v, do, scale=scale, tau=tau),
    }
    for label, run in runs.items():
        for kernel, milliseconds in by_kernel(run).items():
            print(
                f"  {label:<12}{kernel:<18}{milliseconds / fused:8.1f}x  {milliseconds:8.3f} ms"
            )


def fused_backward(q: Any, k: Any, v: Any, do: Any) -> Callable[[], object]:
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    return lambda: torch.autograd.grad(out, leaves, do, retain_graph=True)


def by_kernel(run: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each kernel that a function launches, the median of some rounds, by name."""
    times: dict[str, list[float]] = {}
    launch = cuda_module.nvrtc.run

    def timing(plan: Any) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch(plan)
        end.record()
        end.synchronize()
        times.setdefault(plan.kernel.name, []).append(start.elapsed_time(end))

    cuda_module.nvrtc.run = timing
    try:
        for _ in range(ROUNDS):
            run()
    finally:
        cuda_module.nvrtc.run = launch
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def timed(run: Callable[[], object]) -> float:
    """Milliseconds, the median of some rounds."""
    found = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found[1:])


if __name__ == "__main__":
    main()
