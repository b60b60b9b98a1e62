"""Looks for faults of gradprobe itself: drawn combinations of options, commands and planted faults.

    python benchmarks/combinations.py 2000 [--seed 0] [--workers 2] [--device cpu] [--interpret] [--first 0] [--only N]

Each combination is a program of its own: a command, a target with a fault planted in it (in Triton kernels, in plain
torch, or none), and options of a case. What must not come of it: an exit code other than 0 to 3, or 3 without a reason;
a traceback, an AssertionError, "gradprobe itself failed", "by a fault of gradprobe"; no end within ten minutes.

--interpret sets TRITON_INTERPRET=1, which on a machine with a GPU runs kernels on its tensors in the interpreter.
It prints each combination that failed, with the command that repeats it, and exits with 1 where there is one. The same
seed and numbers give the same combinations on every machine; --only makes one of them again and shows what it says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

KERNELS = ROOT / "kernels" / "triton"
LONGEST = 600.0
OF_GRADPROBE = re.compile(
    r"by a fault of gradprobe|gradprobe itself failed|Traceback \(most recent|AssertionError(?!: \S)|ERROR +$"
)

# A backward in plain torch that takes whatever a case may have, and what may be wrong in it.
TORCH = '''
import torch


def backward(
    q, k, v, do, *, scale, causal=False, align="bottom-right", window=None, softcap=None, bias=None, alibi=None,
    mask=None, sinks=None, seqlens=None,
):
    """Softmax attention and its gradients, of [B, H, L, D] tensors; key heads may be fewer."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    given = [None if one is None else one.float() for one in (q, k, v, do, bias, alibi, sinks)]
    q, k, v, do, bias, alibi, sinks = given
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    rows, keys = q.shape[2], k.shape[2]
    i, j = torch.arange(rows, device=q.device)[:, None], torch.arange(keys, device=q.device)
    last = i + (keys - rows if align == "bottom-right" else 0)
    s = q @ k.mT * scale
    steep = torch.ones_like(s)
    if softcap is not None:
        tanh = torch.tanh(s / softcap)
        s, steep = softcap * tanh, 1 - tanh * tanh
    if bias is not None:
        s = s + bias
    if alibi is not None:
        s = s - alibi.reshape(1, -1, 1, 1) * (last - j).abs()
    seen = torch.ones_like(s, dtype=torch.bool)
    if causal:
        seen = seen & (j <= last)
    if window is not None:
        left, right = window
        seen = seen & ((j >= last - left) | (left < 0)) & ((j <= last + right) | (right < 0))
    if mask is not None:
        seen = seen & mask
    if seqlens is not None:
        lengths = seqlens.to(q.device).reshape(-1, 1, 1, 1)
        seen = seen & (j < lengths) & (i < lengths)
    s = s.masked_fill(~seen, -torch.inf)
    logits = s if sinks is None else torch.cat([s, sinks.reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(logits, -1, keepdim=True)
    p = torch.where(seen, torch.exp(s - lse), 0.0)
    dp = do @ v.mT
    delta = (do * (p @ v)).sum(-1, keepdim=True)
    ds = p * (dp - delta)
    raw = ds * steep
    dq, dk, dv = raw @ k * scale, raw.mT @ q * scale, p.mT @ do
    dk, dv = (one.unflatten(1, (-1, group)).sum(2) for one in (dk, dv))
    results = {"dQ": dq.to(dtype), "dK": dk.to(dtype), "dV": dv.to(dtype)}
    if bias is not None:
        axes = [axis for axis in range(4) if bias.shape[axis] == 1 and ds.shape[axis] != 1]
        results["dBias"] = ds.sum(axes, keepdim=True) if axes else ds
    if sinks is not None:
        results["dSink"] = -(torch.exp(sinks.reshape(1, -1, 1, 1) - lse) * delta).sum((0, 2, 3))
    return results | {}
'''
PLANTED_IN_TORCH: tuple[tuple[str, str], ...] = (
    ("", ""),
    ("s = q @ k.mT * scale", "s = q @ k.mT"),
    ("(j <= last)", "(j < last)"),
    ("seen = seen & mask", "seen = seen & ~mask"),
    ("seen = seen & mask", "pass"),
    ("p = torch.where(seen, torch.exp(s - lse), 0.0)", "p = torch.exp(s)"),
    ("dp = do @ v.mT", "dp = do.roll(1, 1) @ v.mT"),
    ("(do * (p @ v)).sum(-1, keepdim=True)", "(do * (p @ v)).sum(-1, keepdim=True) * 0"),
    ("(do * (p @ v)).sum(-1, keepdim=True)", "(do * (p @ v)).sum(2, keepdim=True).mean(-1, keepdim=True)"),
    ("ds = p * (dp - delta)", "ds = p * dp - delta"),
    ("raw = ds * steep", "raw = ds"),
    ("raw @ k * scale", "raw @ k"),
    ("raw.mT @ q * scale", "raw.mT @ q.roll(1, 2) * scale"),
    ("p.mT @ do", "p.mT @ do * float('nan')"),
    ("p.mT @ do", "p.mT @ do / 0"),
    (".sum(2) for one in (dk, dv)", ".mean(2) for one in (dk, dv)"),
    ("results | {}", 'results | {"dQ": dq[:, :, :-1]}'),
    ("results | {}", 'results | {"dQ": dq.to(dtype).as_strided(dq.shape, (0, 0, 0, 1))}'),
    ("results | {}", 'results | {"P": p, "dS": ds, "dP": dp, "delta": delta[..., 0], "LSE": lse[..., 0]}'),
    ("results | {}", 'results | {"P": p * 1.5, "delta": -delta[..., 0]}'),
    ("dtype, group = q.dtype", 'assert q.is_contiguous()\n    dtype, group = q.dtype'),
    ("dtype, group = q.dtype", "q.mul_(2)\n    dtype, group = q.dtype"),
    ("results | {}", "1 / 0"),
    ("results | {}", "None"),
)  # fmt: skip


@dataclass(frozen=True)
class Combination:
    """One program that is run."""

    number: int
    command: tuple[str, ...]
    file: str
    source: str
    fault: str


@dataclass(frozen=True)
class Ended:
    """How it ended."""

    of: Combination
    code: int
    wrong: str
    """What must not come; "" where all is well."""
    seconds: float


def planted_sources() -> dict[str, list[tuple[str, str]]]:
    """By file: (name, source) of each fault that can be planted in it, and of none."""
    from tests.planted.planting import FAULT, file_of
    from tests.planted.scored import CORPUS

    sources = {file: (KERNELS / file).read_text() for file in ("flash.py", "lazy.py")}
    found = {file: [("none", source)] for file, source in sources.items()}
    for fault in {one.name: one for one in CORPUS if one.kind == FAULT}.values():
        file = file_of(fault.of).name
        if file in found:
            found[file].append((fault.name, fault.plant()))
    torch_sources = [
        (new or "none", TORCH.replace(old, new) if old else TORCH)
        for old, new in PLANTED_IN_TORCH
    ]
    return {**found, "plain.py": torch_sources}


_FUNCTIONS = {
    "flash.py": ("flash_black_box", "flash_intermediates"),
    "lazy.py": ("lazy_backward", "lazy_intermediates"),
    "plain.py": ("backward",),
}
_ANY: Mapping[str, Sequence[Any]] = {
    "batch": (1, 2), "heads": (1, 2, 4), "seqlen": (1, 7, 20, 33, 40), "head-dim": (4, 8, 16, 17, 24),
    "dtype": ("float32", "float32", "float16", "bfloat16"), "seed": range(1000), "repeat": (1, 1, 1, 2),
    "pattern": ("normal", "normal", "small", "large", "negative", "offset", "lowrank", "dyadic"),
    "layout": ("all=blhd", "all=packed", "all=distinct", "do=expanded", "k=strided-last", "all=offset", "v=blhd"),
    "runs": ("contiguous", "distinct", "all=blhd"), "block-m": (16, 32, 64), "block-n": (16, 32),
    "dots": ("ieee", "tf32"), "inplace": ("q", "do"), "strict": (True,), "poison": (True,), "recover": (True, False),
    "scale": (0.05, 1.0, 0.3), "as-cuda": (True,),
    "shapes": ("blhd",), "arch": ("sm_75", "gfx942"),
}  # fmt: skip
_OF_SOFTMAX: Mapping[str, Sequence[Any]] = {
    "kv-heads": (1, 2), "causal": (True, False), "align": ("top-left", "bottom-right"), "softcap": (5.0, 0.5),
    "window": ("7,3", "0,0", "5,-1", "-1,2"), "bias": (True,), "bias-axes": ("hmn", "bhmn", "mn", "n", "bn", "h"),
    "alibi": (True,), "mask": ("random", "dead-rows", "padding"), "mask-axes": ("bhmn", "mn", "hmn", "bn"),
    "sinks": (True,), "seqlens": ("20,7", "7", "0,5"), "seqlen-q": (9, 20), "seqlen-k": (12, 31),
    "head-dim-v": (8, 16), "dropout": (0.2,), "mask-as": ("additive",), "window-as": ("number",),
    "bias-rank": (3, 4), "mask-rank": (2, 4), "cu-seqlens": ("0,9,20",), "ranks": (2,),
}  # fmt: skip
_OF_LAZY: Mapping[str, Sequence[Any]] = {
    "tau": ("0.0", "-1.0", "0.5,0.0"),
    "bias": (True, False),
    "bias-window": (1, 7, 40),
    "seqlens": ("20,7", "5,0"),
}
_ALWAYS = ("batch", "heads", "seqlen", "head-dim")


def combinations(count: int, seed: int, device: str) -> Iterator[Combination]:
    """So many, drawn."""
    sources = planted_sources()
    for number in range(count):
        rng = random.Random(f"{seed}:{number}")
        file = rng.choice(sorted(sources))
        fault, source = rng.choice(sources[file])
        words = [
            *_command(rng),
            f"{file}:{rng.choice(_FUNCTIONS[file])}",
            *_options(rng, file),
            "--device",
            device,
        ]
        yield Combination(number, tuple(words), file, source, fault)


def _command(rng: random.Random) -> list[str]:
    other = rng.random()
    if other < 0.1:
        return ["diff", rng.choice(["P", "dP", "dS", "delta", "dQ", "dK", "dV", "LSE", "O"])]
    if other < 0.14:
        return [rng.choice(["strides", "fix"])]
    budget = rng.choice(["0", "2", "5"])
    return ["check", "--json", "report.json", "--fix-budget", budget]


def _options(rng: random.Random, file: str) -> Iterator[str]:
    more = _OF_LAZY if file == "lazy.py" else _OF_SOFTMAX
    drawn = {name: rng.choice(_ANY[name]) for name in _ALWAYS}
    names = [name for name in (*_ANY, *more) if name not in _ALWAYS]
    for name in rng.sample(names, rng.choice([0, 1, 1, 2, 2, 3, 4])):
        drawn[name] = rng.choice((_ANY | more)[name])
    if "mask-axes" in drawn and "mask" not in drawn:
        drawn["mask"] = "random"
    if "bias-axes" in drawn:
        drawn["bias"] = True
    if drawn.get("kv-heads", 1) > 1:
        drawn["heads"] = 4
    if {"seqlen-q", "seqlen-k"} & drawn.keys():
        drawn |= {"seqlen-q": drawn.get("seqlen-q", 20), "seqlen-k": drawn.get("seqlen-k", 20)}
        del drawn["seqlen"]
    for name, value in drawn.items():
        yield f"--no-{name}" if value is False else f"--{name}"
        if not isinstance(value, bool):
            yield str(value)


def run(of: Combination, environment: Mapping[str, str], *, show: bool = False) -> Ended:
    """Runs it in a folder of its own."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / of.file).write_text(of.source)
        words = [sys.executable, "-m", "gradprobe", *of.command]
        try:
            ended = subprocess.run(
                words,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return Ended(of, -1, f"no end within {LONGEST:.0f} s", LONGEST)
        written = Path(folder) / "report.json"
        report = written.read_text() if written.exists() else ""
    if show:
        print(ended.stdout, ended.stderr, sep="\n")
    return Ended(of, ended.returncode, wrong_in(ended, report), time.monotonic() - start)


def wrong_in(ended: subprocess.CompletedProcess[str], report: str) -> str:
    """What must not come of a program; "" where nothing did."""
    if ended.returncode not in (0, 1, 2, 3):
        return f"exit code {ended.returncode}: {ended.stderr[-300:]}"
    if found := OF_GRADPROBE.search(f"{ended.stdout}\n{ended.stderr}\n{report}"):
        whole = f"{ended.stdout}\n{ended.stderr}"
        return (
            whole[max(0, whole.find(found[0]) - 200) :][:600]
            or report[found.start() - 200 : found.end() + 300]
        )
    error = (json.loads(report).get("error") or {}) if report else {}
    if ended.returncode == 3 and not (error.get("message") or ended.stderr.strip()):
        return "exit code 3 without a reason"
    has_place = "MISMATCH" in ended.stdout or "check" not in ended.args
    return "exit code 1 without a place" if ended.returncode == 1 and not has_place else ""


def main() -> int:
    """Runs them, prints what failed, and a count of exit codes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first that is run"
    )
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment |= {"TRITON_INTERPRET": "1"} if given.interpret else {}
    chosen = list(
        combinations(
            given.count if given.only is None else given.only + 1, given.seed, given.device
        )
    )
    chosen = chosen[given.first if given.only is None else given.only :]
    codes, failed = Counter[int](), 0
    with ThreadPoolExecutor(given.workers) as pool:
        for ended in pool.map(
            lambda one: run(one, environment, show=given.only is not None), chosen
        ):
            codes[ended.code] += 1
            if ended.wrong:
                failed += 1
                print(
                    f"{ended.of.number}: {ended.of.fault!r} in gradprobe {shlex.join(ended.of.command)}",
                    flush=True,
                )
                print("    " + "\n    ".join(ended.wrong.splitlines()), flush=True)
    print(
        f"{sum(codes.values())} combinations, {failed} failed; exit codes {dict(sorted(codes.items()))}"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
