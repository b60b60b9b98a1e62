"""What some rows and keys of a long black box tell of a fault, beside what everything tells of it in a short one.

    python benchmarks/black_box_faults.py [--length 4096] [--short 300] [--heads 2] [--device cpu]

One line a fault of a backward in plain torch, whose kernels of dQ and of dK and dV go wrong together or one alone; then
a line a class: how many faults were found, in how many the same intermediate is the first wrong one, the same ones are
wrong by themselves and inherited, and the same is said but for numbers. A fault that only a long case has (one tile in
the middle) is held against the same tile of the short one.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from gradprobe.model.resolution import resolve
from gradprobe.runtime.backend import prepare_backend
from tests.probe import probe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.emulated import target_of

TILE = 64
Change = Callable[[Tensor], Tensor]
PRE, DQ, DKDV = "preprocess", "dq", "dkdv"
BOTH = (DQ, DKDV)


def backward_with(
    name: str, kernels: tuple[str, ...], change: Change
) -> Callable[..., dict[str, Tensor]]:
    """A backward in which a change is made to one intermediate in some kernels."""

    def at(kernel: str, of: str, value: Tensor) -> Tensor:
        return change(value) if of == name and kernel in kernels else value

    def backward(
        q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float, causal: bool
    ) -> dict[str, Tensor]:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        seen = seen.tril() if causal else seen
        s = scale * q @ k.mT
        lse = s.masked_fill(~seen, -math.inf).logsumexp(-1)
        o = (s.masked_fill(~seen, -math.inf) - lse[..., None]).exp() @ v
        delta = at(PRE, "delta", (at(PRE, "dO", do) * o).sum(-1))
        results = {}
        for kernel in BOTH:
            read, row = at(kernel, "dO", do), at(kernel, "LSE", lse)[..., None]
            p = (
                (at(kernel, "S", s) - row)
                .masked_fill(~at(kernel, "seen", seen), -math.inf)
                .exp()
            )
            ds = p * (at(kernel, "dP", read @ v.mT) - at(kernel, "delta", delta)[..., None])
            ds = at(kernel, "dS", ds)
            if kernel == DQ:
                results["dQ"] = at(kernel, "dQ", scale * ds @ k)
            else:
                results["dK"] = at(kernel, "dK", scale * ds.mT @ q)
                results["dV"] = at(kernel, "dV", at(kernel, "P of dV", p).mT @ read)
        return results

    return backward


def faults(
    length: int, device: str
) -> Iterator[tuple[str, str, Callable[..., dict[str, Tensor]]]]:
    """Class, words, and the backward."""
    i, j = (
        torch.arange(length, device=device)[:, None],
        torch.arange(length, device=device)[None],
    )
    odd, partial = (length // 2) // TILE, (length - 1) // TILE

    def rows(first: int, change: Change) -> Change:
        def changed(value: Tensor) -> Tensor:
            part = slice(first * TILE, (first + 1) * TILE)
            value = value.clone()
            value[:, :, part] = change(value[:, :, part])
            return value

        return changed

    def of_head_0(value: Tensor) -> Tensor:
        return value[:, :1].expand_as(value)

    def of_tile_0(value: Tensor) -> Tensor:
        return value[..., :TILE].repeat(1, 1, -(-length // TILE))[..., :length]

    def seeing(rule: Tensor) -> Change:
        return lambda seen: seen & rule

    def times(by: float) -> Change:
        return lambda value: value * by

    for kernels in (BOTH, (DQ,), (DKDV,)):
        where = "both" if kernels == BOTH else kernels[0]
        for name in ("LSE", "delta", "dO"):
            yield "S3", f"{name} of head 0, {where}", backward_with(name, kernels, of_head_0)
        yield "S3", f"delta of row tile 0, {where}", backward_with("delta", kernels, of_tile_0)
        yield (
            "M1",
            f"strictly causal, {where}",
            backward_with("seen", kernels, lambda seen: j < i),
        )
        yield (
            "M1",
            f"a key too many, {where}",
            backward_with("seen", kernels, lambda seen: j <= i + 1),
        )
        yield (
            "M1",
            f"a window of 128, {where}",
            backward_with("seen", kernels, seeing(j > i - 128)),
        )
        yield (
            "M2",
            f"no diagonal tiles, {where}",
            backward_with("seen", kernels, seeing(j // TILE < i // TILE)),
        )
        yield "M2", f"no key tile 0, {where}", backward_with("seen", kernels, seeing(j >= TILE))
        yield (
            "M2",
            f"no row tile {odd}, {where}",
            backward_with("seen", kernels, seeing(i // TILE != odd)),
        )
        yield (
            "M2",
            f"no key tile {odd}, {where}",
            backward_with("seen", kernels, seeing(j // TILE != odd)),
        )
        yield (
            "M3",
            f"no partial row tile, {where}",
            backward_with("seen", kernels, seeing(i // TILE < partial)),
        )
        yield (
            "M3",
            f"no partial key tile, {where}",
            backward_with("seen", kernels, seeing(j // TILE < partial)),
        )
        yield (
            "M3",
            f"delta 0 in the last tile, {where}",
            backward_with("delta", kernels, rows(partial, times(0))),
        )
        yield "A", f"no delta, {where}", backward_with("delta", kernels, times(0))
        yield "A", f"dS times ln 2, {where}", backward_with("dS", kernels, times(math.log(2)))
        yield (
            "A",
            f"S in units of log 2, {where}",
            backward_with("S", kernels, times(1 / math.log(2))),
        )
        yield "A", f"dP halved, {where}", backward_with("dP", kernels, times(0.5))
    for name, kernel in (("dQ", DQ), ("dK", DKDV), ("dV", DKDV)):
        yield "A", f"{name} times 8", backward_with(name, (kernel,), times(8))
        yield (
            "ACC",
            f"{name} of tile {odd} added twice",
            backward_with(name, (kernel,), rows(odd, times(2))),
        )
        yield (
            "N2",
            f"{name} of tile {odd} unwritten",
            backward_with(name, (kernel,), rows(odd, times(math.nan))),
        )
    yield "S3", "dO of head 0, preprocess", backward_with("dO", (PRE,), of_head_0)
    yield "A", "dV of P less a tenth", backward_with("P of dV", (DKDV,), times(0.9))
    yield (
        "ACC",
        "dQ of the diagonal tiles alone",
        backward_with("dS", (DQ,), lambda ds: ds * (i // TILE == j // TILE)),
    )
    yield (
        "ACC",
        "dK of the last row tile alone",
        backward_with("dS", (DKDV,), lambda ds: ds * (i // TILE == partial)),
    )


def told(
    length: int, heads: int, device: str, backward: Callable[..., dict[str, Tensor]]
) -> tuple[dict, tuple]:
    """The statuses of all that is wrong, in dataflow order, and what is said but for numbers."""
    options = {
        "batch": 1,
        "heads": heads,
        "seqlen": length,
        "head_dim": 64,
        "causal": True,
        "device": device,
    }
    case = resolve({**options, "runs": ((),)}, "softmax", takes_bias=False)
    report = probe(case, target_of(backward), why=False)
    if report.failing is None:
        return {}, ()
    run, shown = report.failing
    found = {
        name: one.status for name, one in shown.comparison.findings.items() if one.mismatched
    }
    said = run.inside.sentences if run.inside else ()
    return found, tuple(
        re.sub(r"[\d,-]+|, in the .* shown|and .* more ranges", "", one) for one in said
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("length", 4096), ("short", 300), ("heads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    prepare_backend(asked.device)
    counts: dict[str, Counter[str]] = {}
    both = (faults(length, asked.device) for length in (asked.short, asked.length))
    for (of, words, short), (_, _, long) in zip(*both, strict=True):
        expected, said = told(asked.short, asked.heads, asked.device, short)
        found, says = told(asked.length, asked.heads, asked.device, long)
        verdicts = {
            "found": bool(found), "first": [*found][:1] == [*expected][:1], "table": found == expected,
            "words": says == said,
        }  # fmt: skip
        count = counts.setdefault(of, Counter(faults=0))
        count.update(faults=1, **{name: int(verdict) for name, verdict in verdicts.items()})
        lost = [name for name, verdict in verdicts.items() if not verdict]
        print(
            f"{of:4} {words:34} {', '.join(found) or 'nothing'}{'; other ' + ', '.join(lost) if lost else ''}",
            flush=True,
        )
        if lost:
            print(f"       short {expected} {said}\n       long  {found} {says}")
    print(f"\n{'class':6} {'faults':>7} {'found':>7} {'first':>7} {'table':>7} {'words':>7}")
    for of, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(
            f"{of:6} "
            + " ".join(
                f"{count[name]:7}" for name in ("faults", "found", "first", "table", "words")
            )
        )


if __name__ == "__main__":
    main()
