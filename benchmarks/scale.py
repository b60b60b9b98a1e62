"""What a check costs beside the float64 reference that it needs, and how that grows with length.

    python benchmarks/scale.py [--part layouts|exposed|lazy|lengths|growth ...]

The reference here is plain: forward and backward in float64, tiles of 1024 rows (256 on a CPU), tiles that causal hides
skipped. On a GPU the case is H = 16, L = 8192, D = 128 in bfloat16, causal, by PyTorch's flash attention; on a CPU
H = 8, L = 2048, D = 64 in float32. Each part prints ratios of one run.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import lazy_attention
import torch
from torch import Tensor

from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.run_check import run_check

ROWS = 1024 if torch.cuda.is_available() else 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OF_GPU = {"heads": 16, "seqlen": 8192, "head_dim": 128, "dtype": "bfloat16"}
OF_CPU = {"heads": 8, "seqlen": 2048, "head_dim": 64, "dtype": "float32"}
CASE: dict[str, Any] = (OF_GPU if DEVICE == "cuda" else OF_CPU) | {
    "batch": 1,
    "causal": True,
    "device": DEVICE,
}
TARGET = "sdpa-flash"


def now() -> float:
    """Seconds, once the device has done all that it was told."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(make: Callable[[], Any], runs: int = 3) -> float:
    """The median of some runs after a first one."""
    seconds = []
    for _ in range(runs + 1):
        start = now()
        make()
        seconds.append(now() - start)
    return statistics.median(seconds[1:])


def drawn(case: Mapping[str, Any]) -> list[Tensor]:
    """q, k, v and dO of a case, on its device."""
    shape = (1, case["heads"], case["seqlen"], case["head_dim"])
    generator = torch.Generator(DEVICE).manual_seed(0)
    dtype = getattr(torch, case["dtype"])
    return [torch.randn(shape, generator=generator, device=DEVICE).to(dtype) for _ in range(4)]


def reference(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> list[Tensor]:
    """O, dQ, dK and dV [B, H, L, D] of causal attention in float64, tile by tile."""
    o, dq, dk, dv = (
        torch.zeros(t.shape, dtype=torch.double, device=t.device) for t in (q, q, k, v)
    )
    scale, length = q.shape[-1] ** -0.5, q.shape[2]
    for b, h in torch.cartesian_prod(
        torch.arange(q.shape[0]), torch.arange(q.shape[1])
    ).tolist():
        wide = [t[b, h].double() for t in (q, k, v, do)]
        for first in range(0, length, ROWS):
            end = min(first + ROWS, length)
            rows, (qh, doh), (kh, vh) = (
                slice(first, end),
                (t[first:end] for t in wide[::3]),
                (t[:end] for t in wide[1:3]),
            )
            s = scale * qh @ kh.T
            hidden = torch.ones(
                end - first, end - first, dtype=torch.bool, device=q.device
            ).triu(1)
            s[:, first:end].masked_fill_(hidden, -math.inf)
            p = (s - s.logsumexp(-1, keepdim=True)).exp()
            o[b, h, rows] = p @ vh
            ds = p * (doh @ vh.T - (o[b, h, rows] * doh).sum(-1, keepdim=True))
            dq[b, h, rows] = scale * ds @ kh
            dk[b, h, :end] += scale * ds.T @ qh
            dv[b, h, :end] += p.T @ doh
    return [o, dq, dk, dv]


def check(target: Any = TARGET, **options: Any) -> Mapping[str, float]:
    """The seconds of a check that matches, by stage."""
    name, function = (target, None) if isinstance(target, str) else ("function", target)
    case = {name: value for name, value in (CASE | options).items() if value is not None}
    report = run_check(CheckRequest(name, None, None, case), "", target=function)
    assert report.verdict == "match", report.verdict
    return report.seconds


def exposing(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool, scale: float
) -> dict[str, Tensor]:
    """Causal attention in float32 by plain torch, head by head, with every intermediate."""
    assert causal
    o, dq, dk, dv = (torch.empty_like(t) for t in (q, q, k, v))
    shape = (*q.shape[:3], k.shape[2])
    p, dp, ds = (torch.empty(shape, device=q.device) for _ in range(3))
    lse, delta = (torch.empty(shape[:3], device=q.device) for _ in range(2))
    visible = torch.ones(shape[2:], dtype=torch.bool, device=q.device).tril()
    for b, h in torch.cartesian_prod(
        torch.arange(q.shape[0]), torch.arange(q.shape[1])
    ).tolist():
        qh, kh, vh, doh = (t[b, h].float() for t in (q, k, v, do))
        s = (scale * qh @ kh.T).masked_fill_(~visible, -math.inf)
        lse[b, h] = s.logsumexp(-1)
        p[b, h] = (s - lse[b, h][:, None]).exp()
        narrow = p[b, h].to(q.dtype).float()
        oh = narrow @ vh
        o[b, h] = oh.to(q.dtype)
        dp[b, h] = (doh @ vh.T) * visible
        delta[b, h] = (o[b, h].float() * doh).sum(-1)
        ds[b, h] = p[b, h] * (dp[b, h] - delta[b, h][:, None])
        of_ds = ds[b, h].to(q.dtype).float()
        dq[b, h], dk[b, h] = (scale * of_ds @ kh).to(q.dtype), (scale * of_ds.T @ qh).to(q.dtype)
        dv[b, h] = (narrow.T @ doh).to(q.dtype)
    return {
        "LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds, "dQ": dq, "dK": dk, "dV": dv,
    }  # fmt: skip


def seconds_of(stages: Mapping[str, float]) -> float:
    """Of a check: all but imports and the runs of the target."""
    return stages["total"] - stages["import"] - stages["target"]


def told(words: str, seconds: float, beside: float, wanted: str = "") -> None:
    print(f"{words:<60}{seconds:9.3f} s {seconds / beside:7.1f} x{wanted}", flush=True)


def told_of(words: str, stages: list[Mapping[str, float]], beside: float, wanted: str) -> None:
    """Of some checks of one case the medians."""
    for name, part in (
        ("reference, comparison", [one["compare"] + one["reference"] for one in stages]),
        ("all but imports and the target", [seconds_of(one) for one in stages]),
    ):
        told(f"{words}: {name}", statistics.median(part), beside, wanted)


def layouts(beside: float) -> None:
    """The whole check of three gradients and O in one layout, with what one-hot problems show as well, and in three."""
    for words, runs, recover, wanted in (
        ("one layout", ["contiguous"], False, "  (wanted: 3)"),
        ("one layout, looked into", ["contiguous"], True, "  (wanted on a CPU: 10)"),
        ("three layouts", ["contiguous", "do=blhd", "q=blhd"], False, "  (wanted: 4)"),
    ):
        told_of(words, [check(runs=runs, recover=recover) for _ in range(4)][1:], beside, wanted)


def exposed(beside: float) -> None:
    """The same with every intermediate."""
    stages = [check(exposing, runs=["contiguous"]) for _ in range(4)][1:]
    told_of("every intermediate exported", stages, beside, "  (wanted: 4)")


def lazy(_beside: float) -> None:
    """The lazy family, tau = -1, beside a plain streaming reference of its own; and with a bias by distance."""
    heads = CASE["heads"]
    tau, bias = (
        torch.full(shape, value, device=DEVICE)
        for shape, value in (((heads,), -1.0), ((heads, 128), 0.5))
    )
    inputs, case = (
        drawn(CASE),
        {"causal": None, "tau": "-1", "runs": ["contiguous"], "recover": False},
    )
    for words, given, options in (
        ("lazy", (tau,), {"bias": False}),
        ("lazy, dBias of 128 distances", (tau, bias), {"bias_window": 128}),
    ):
        beside = timed(lambda given=given: lazy_attention.reference(*inputs, *given))
        told(f"{words}: float64 reference, streaming", beside, beside)
        stages = [check(lazy_attention.rounding, **case, **options) for _ in range(4)][1:]
        seconds = statistics.median(one["compare"] + one["reference"] for one in stages)
        told(f"{words}: reference, comparison", seconds, beside, "  (wanted: 3)")


def peak(case: Mapping[str, Any]) -> tuple[Mapping[str, float], float]:
    """The seconds of a check, and the bytes that it held at most beyond what was there, its inputs and its outputs.

    What the target holds for itself while it runs, and the second run's inputs and outputs, count.
    """
    tensors = [case[name] for name in ("heads", "seqlen", "head_dim")]
    of_case = 8 * math.prod(tensors) * getattr(torch, CASE["dtype"]).itemsize
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        of_case += torch.cuda.memory_allocated()
    stages = check(runs=["contiguous"], **case)
    return stages, (
        torch.cuda.max_memory_allocated() - of_case if DEVICE == "cuda" else math.nan
    )


def lengths(_beside: float) -> None:
    """L = 65,536."""
    case = {"heads": 8, "seqlen": 65_536, "head_dim": 128}
    stages, held = peak({**case, "recover": False})
    print(
        f"L = 65,536 H = 8 D = 128: {stages['total']:.1f} s, {held / 2**30:.2f} GiB beyond inputs and outputs"
    )
    print("  " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items()))


def growth(_beside: float) -> None:
    """How time and memory grow with length, by least squares of their logarithms."""
    sizes = [1024 << step for step in range(7 if DEVICE == "cuda" else 3)]
    case = {"heads": 4, "head_dim": 64, "recover": False}
    check(runs=["contiguous"], seqlen=sizes[0], **case)
    found = [peak({**case, "seqlen": size}) for size in sizes]
    for size, (stages, held) in zip(sizes, found, strict=True):
        print(f"L = {size:>6}: {seconds_of(stages):8.3f} s {held / 2**30:8.3f} GiB")
    for words, values in (
        ("time", [seconds_of(one) for one, _ in found]),
        ("memory", [held for _, held in found]),
    ):
        print(
            f"{words} grows as L^{exponent(sizes[-4:], values[-4:]):.2f} over the last {len(sizes[-4:])} lengths"
        )


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of a line through logarithms."""
    x, y = ([math.log(one) for one in those] for those in (sizes, values))
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - mean_x) ** 2 for a in x)


PARTS = {
    "layouts": layouts, "exposed": exposed, "lazy": lazy, "lengths": lengths, "growth": growth,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=[*PARTS])
    inputs = drawn(CASE)
    beside = timed(lambda: reference(*inputs))
    told("float64 reference, streaming", beside, beside)
    for name in parser.parse_args().part:
        PARTS[name](beside)


if __name__ == "__main__":
    main()
