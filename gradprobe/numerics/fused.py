"""Rows of P, dP and dS judged in one pass by a kernel of Triton, which reads each number once.

It computes what `least.Least.of_matrix` and `walks` compute of the same values, and shares nothing with a kernel that
is checked. Of a tile of one key its rows are the elements: so a test holds each of them to the plain way.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .least import NEARLY_0, Terms

# Keys that a program holds at once.
BLOCK = 1024
WARPS = 8
NO_ERROR = tl.constexpr(NEARLY_0[torch.float])
MOST = tl.constexpr(torch.finfo(torch.float).max)


@dataclass(frozen=True)
class RowStatistics:
    """What the elements of each row came to, each [h, m] float64."""

    ratio: Tensor
    """The worst error as a multiple of its bound; not of NaN, which make NaN of `squares`."""
    squares: Tensor
    """The sum of the squares of these multiples."""
    largest: Tensor
    """The largest error."""
    bound: Tensor
    """The sum of the bounds."""
    expected: Tensor
    """The sum of the expected values."""
    came: Tensor
    """The sum of the values that came."""


@cache
def works(device: torch.device) -> bool:
    """Whether Triton compiles here, and gives what it should of one element."""
    if not isinstance(_rows, triton.runtime.JITFunction):  # but an interpreter's
        return False
    unit = torch.ones((1, 1, 1), dtype=torch.double, device=device)
    try:
        found = rows_of(
            "P", 2 * unit.float(), Terms(unit, unit, unit.bool(), unit.float(), unit[0].float(), 0.0, 0.0, 1.0)
        )
    except Exception:  # no compiler of C, or no code for this GPU: the plain way needs neither
        return False
    return [float(of) for of in vars(found).values()] == [0.5, 0.25, 1.0, 2.0, 1.0, 2.0]


def rows_of(name: str, came: Tensor, terms: Terms) -> RowStatistics:
    """What came of P, dP or dS [h, m, n] beside what its bounds are made of."""
    heads, rows, keys = came.shape
    into = came.new_empty((6, heads, rows), dtype=torch.double)
    valid = terms.valid.view(torch.uint8)
    with torch.cuda.device(came.device) if came.is_cuda else nullcontext():
        _rows[heads * rows,](
            came, terms.expected.contiguous(), terms.p.contiguous(), valid, terms.dot, terms.of_row.contiguous(), into,
            rows, keys, heads * rows, *came.stride(), *valid.stride(),
            terms.weight, terms.relative, terms.floor, NAME=name, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return RowStatistics(*into)


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    came, expected, p, valid, dot, of_row, into, m, n, every, came_h, came_m, came_n, valid_h, valid_m, valid_n,
    weight, relative, floor, NAME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    head, row = at // m, at % m
    row_term = tl.load(of_row + at)
    ratio = tl.zeros([BLOCK], tl.float64)
    squares, largest, bounds = ratio, ratio, ratio
    of_expected, of_came = ratio, ratio
    for first in range(0, n, BLOCK):
        key = first + tl.arange(0, BLOCK)
        there = key < n
        value = tl.load(came + head * came_h + row * came_m + key * came_n, there, 0.0).to(tl.float64)
        wanted = tl.load(expected + at * n + key, there, 0.0)
        seen = tl.load(valid + head * valid_h + row * valid_m + key * valid_n, there, 0).to(tl.float32)
        if NAME == "P":
            bound = wanted.to(tl.float32) * row_term + floor * seen
        else:
            size = tl.load(dot + at * n + key, there, 0.0)
            size = tl.where(size <= MOST, size, 0.0) * weight * seen  # what overflows bounds nothing
            if NAME == "dS":
                size = (size + row_term) * tl.load(p + at * n + key, there, 0.0).to(tl.float32) + floor * seen
            bound = size + tl.abs(wanted.to(tl.float32)) * relative
        error = tl.abs(value - wanted)
        multiple = error / tl.maximum(bound.to(tl.float64), NO_ERROR)
        ratio, largest = tl.maximum(ratio, multiple), tl.maximum(largest, error)
        squares += multiple * multiple
        bounds += bound.to(tl.float64)
        of_expected += wanted
        of_came += value
    into += at
    tl.store(into, tl.max(ratio, 0))
    tl.store(into + every, tl.sum(squares, 0))
    tl.store(into + 2 * every, tl.max(largest, 0))
    tl.store(into + 3 * every, tl.sum(bounds, 0))
    tl.store(into + 4 * every, tl.sum(of_expected, 0))
    tl.store(into + 5 * every, tl.sum(of_came, 0))
