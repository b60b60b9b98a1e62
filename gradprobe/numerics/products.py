"""Products of float64 matrices by exact products of float32, for devices where float64 is slow.

Each row of a, and each column of b, is scaled by a power of two to below 1/4 and cut off after s digits of 8 bits. A
digit is a whole number from -128 to 127 (which is why not to 1/2), so what a product of two digits adds up over CHUNK
terms, for up to MOST pairs at once, is at most MOST * CHUNK * 2^14 = 2^24: float32 holds it, and every sum on the way,
exactly, in whatever order. The sums of pairs of one weight are added up in float64.

With a', b' the numbers that the digits hold, and r = a - a', of a's sign and at most min(|a|, 2^-8s) of the scale:

    |a b - a' b'| <= |r_a| |b| + |a| |r_b|        0 where the digits hold all of both, as they soon do of 16 bits

and adding up at most 15 weights rounds by less than 2^-45 |a| |b|: the digits of a number add up to 3.1 times it at
most, so no sum on the way is larger than 10 |a| |b|. Digits are added until both bounds, computed in float32, are a
wanted share of |a| |b| in every element. Where MOST - 1 digits do not reach it, or an element is not finite, float64
has to do it.

Source: Ozaki, Ogita, Oishi and Rump, Error-free transformations of matrix multiplication (2012), with digits of fixed
point in place of rounded remainders, and weights in place of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS, CHUNK, MOST = 8, 128, 8
# Digits that are tried first, where there are numbers of more than so many.
FIRST = 4
# Elements of the larger operand of which digits are held at once.
PIECE = 1 << 22
# Rows and columns of larger or smaller elements are float64's: no scale of theirs leaves its range.
RANGE = 400
# Elements that are not 0 count as this at least in bounds, so that float32 holds the product of any two.
SMALLEST = 2.0**-60
# Terms beyond which bounds in float32 may be off by a quarter.
LONGEST = 1 << 19


def split_product(a: Tensor, b: Tensor, wanted: float) -> Tensor | None:
    """a @ b for [g, m, K] and [g, K, n] in float64; None where it is not known to be as good as wanted.

    Args:
        wanted: the error of each element as a share of |a| @ |b|, 2^-44 at least.
    """
    if b.shape[2] > a.shape[1]:
        turned = split_product(b.mT, a.mT, wanted)
        return None if turned is None else turned.mT
    if not a.numel() or not b.numel() or a.shape[2] > LONGEST:
        return None
    with _ieee():
        columns, found = _Rows.of(b.mT), a.new_empty(*a.shape[:2], b.shape[2])
        if columns is None:
            return None
        step = max(1, PIECE // (a.shape[0] * max(a.shape[2], b.shape[2])))
        for first in range(0, a.shape[1], step):
            rows = _Rows.of(a[:, first : first + step])
            counts = None if rows is None else _digits(rows, columns, wanted)
            if rows is None or counts is None:
                return None
            found[:, first : first + step] = _product(rows, columns, counts)
    return found


@contextmanager
def _ieee() -> Iterator[None]:
    """Products of float32 on a GPU without TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@dataclass
class _Rows:
    """Rows of an operand, and what they are scaled by."""

    scaled: Tensor
    """[g, r, K], below 1/4."""
    scale: Tensor
    """[g, r, 1], powers of two."""

    @classmethod
    def of(cls, rows: Tensor) -> _Rows | None:
        """None where elements are not finite, or rows out of range."""
        _, exponent = torch.frexp(largest := torch.linalg.vector_norm(rows, math.inf, 2, keepdim=True))
        if not bool((largest.isfinite() & (exponent.abs() < RANGE)).all()):
            return None
        unit = torch.ones_like(largest)
        return cls(rows * torch.ldexp(unit, -exponent - 2), torch.ldexp(unit, exponent + 2))

    @cached_property
    def sizes(self) -> Tensor:
        """|scaled| in float32, for bounds."""
        return self.scaled.abs().float().clamp_(min=SMALLEST).mul_(self.scaled != 0)

    @cached_property
    def exact(self) -> int | None:
        """How many digits hold all of every element; None where MOST - 1 do not."""
        some = self.scaled[:, :: max(1, self.scaled.shape[1] // 4)]
        return next((n for n in range(1, MOST) if _fits(some, n) and _fits(self.scaled, n)), None)

    def digits(self, count: int, *, falling: bool) -> Tensor:
        """[g * chunks, r, count * chunk] float32: of each chunk of a row the digits, from the first or the last on."""
        groups, rows, terms = self.scaled.shape
        chunks = math.ceil(terms / CHUNK)
        chunk = math.ceil(terms / chunks)
        fixed = pad(self.scaled * 2.0 ** (BITS * count), (0, chunks * chunk - terms)).long().contiguous()
        # Bytes are from 0 to 255: half of that is added to each, and taken off again.
        fixed += sum(128 << (BITS * at) for at in range(count))
        bytes_of = fixed.view(torch.uint8).view(groups, rows, chunks, chunk, 8).transpose(1, 2)
        made = fixed.new_empty(groups, chunks, rows, count, chunk, dtype=torch.float)
        for at in range(count):
            torch.sub(bytes_of[..., at], 128.0, out=made[..., at if falling else count - 1 - at, :])
        return made.view(groups * chunks, rows, count * chunk)


def _fits(scaled: Tensor, count: int) -> bool:
    return bool((scaled * 2.0 ** (BITS * count)).frac().eq(0).all())


def _digits(rows: _Rows, columns: _Rows, wanted: float) -> tuple[int, int] | None:
    """How many digits of each are enough; None where MOST - 1 are not.

    Bounds in float32 are off by a quarter at most, and what counts as SMALLEST is in `left` as in the size: twice is
    enough for both.
    """
    if rows.exact and columns.exact:
        return rows.exact, columns.exact
    size = rows.sizes @ columns.sizes.mT
    for count in range(FIRST, MOST):
        unit, left = 2.0 ** (-BITS * count), torch.zeros((), device=size.device)
        if not rows.exact:
            left = left + rows.sizes.clamp(max=unit) @ columns.sizes.mT
        if not columns.exact:
            left = left + rows.sizes @ columns.sizes.clamp(max=unit).mT
        if bool((left * (2 / wanted) <= size).all()):
            return rows.exact or count, columns.exact or count
    return None


def _product(rows: _Rows, columns: _Rows, counts: tuple[int, int]) -> Tensor:
    """[g, r, n]: the product of what so many digits of each hold."""
    groups, terms = rows.scaled.shape[0], rows.scaled.shape[2]
    chunk = math.ceil(terms / math.ceil(terms / CHUNK))
    ours, theirs = rows.digits(counts[0], falling=False), columns.digits(counts[1], falling=True)
    found = rows.scaled.new_zeros((1, 1, 1))
    for weight in range(sum(counts), 1, -1):  # the digits p of ours and q of theirs with p + q = weight
        first, last = max(1, weight - counts[1]), min(counts[0], weight - 1)
        start = counts[1] - (weight - first)
        a = ours[..., (first - 1) * chunk : last * chunk]
        b = theirs[..., start * chunk : (start + last - first + 1) * chunk]
        sums = a @ b.mT
        sums = sums if len(sums) == groups else sums.unflatten(0, (groups, -1)).sum(1, dtype=torch.double)
        found = torch.add(sums, found, alpha=2.0**-BITS)
    return found.mul_(rows.scale * 2.0 ** (-2 * BITS)).mul_(columns.scale.mT)
