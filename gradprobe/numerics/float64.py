"""How float64 matrices are multiplied on a device: as they are, or split where that was measured to be faster.

`multiplying` answers every product of float64 matrices inside it, whoever asks: the reference knows nothing of it. What
the split products may err by is a share of what the kernel's own may, and `own_error` adds it to the budget.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..model.failures import UsageFailure
from ..model.report import SplitProducts
from .declared_precision import Precision, long_sum

VARIABLE, WAYS = "GRADPROBE_FLOAT64", ("native", "split")
# What products may err by, as a share of what a kernel's are allowed: far below what its reference may use up of it.
SHARE, SHARE_OF_FLOAT32 = 2.0**-10, 2.0**-16
# Multiplications of a product below which it is not split: launching a few dozen kernels takes longer.
LEAST = 1 << 26
# By how much split products must be faster, so that noise does not decide.
FASTER = 1.2
# [m, K] and [K, n] of the product that is timed: a tile of P and a head of V.
TIMED = ((1, 1024, 4096), (1, 4096, 128))

_aten = torch.ops.aten


@dataclass
class SplitCounts:
    """How many products of float64 were split, and how many of those that were tried could not be."""

    split: int = 0
    native: int = 0


@dataclass(frozen=True)
class Way:
    """How a device multiplies."""

    is_split: bool
    is_forced: bool = False
    ratio: float | None = None
    """How many times as long float64's own product took as the split one, where that was measured."""


def way_on(device: torch.device) -> Way:
    """How products are made on a device.

    Raises:
        UsageFailure: GRADPROBE_FLOAT64 is none of WAYS.
    """
    word = os.environ.get(VARIABLE, "")
    if word and word not in WAYS:
        raise UsageFailure(f"the environment variable {VARIABLE} must be {' or '.join(WAYS)}, got {word!r}")
    if word:
        return Way(word == "split", is_forced=True)
    return _measured(device) if device.type == "cuda" else Way(False)


@cache
def _measured(device: torch.device) -> Way:
    """Both timed once in a process: some milliseconds."""
    generator = torch.Generator(device).manual_seed(0)
    logits, v = (torch.randn(shape, generator=generator, device=device, dtype=torch.double) for shape in TIMED)
    p, v, wanted = logits.softmax(-1), v.bfloat16().double(), SHARE * 2.0**-23 * long_sum(v.shape[1])
    native = _seconds(lambda: p @ v, device)
    from .products import split_product

    ratio = native / _seconds(lambda: split_product(p, v, wanted), device)
    return Way(ratio > FASTER, ratio=ratio)


def _seconds(make: Callable[[], object], device: torch.device) -> float:
    """The least of three runs after a first one."""
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        make()
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


_open: ContextVar[_Products | None] = ContextVar("_open", default=None)


@contextmanager
def multiplying(device: torch.device, precision: Precision, counts: SplitCounts) -> Iterator[None]:
    """While open, products of float64 matrices are made as is faster on a device.

    Args:
        precision: the contract of the kernel, against whose budget the products are held. Where it leaves nothing to
            round, products stay float64's own.
        counts: of what is done.
    """
    way = way_on(device)
    if not way.is_split or precision.exact or _open.get() is not None:
        yield
        return
    products = _Products(precision, counts, 0 if way.is_forced else LEAST)
    token = _open.set(products)
    try:
        with products:
            yield
    finally:
        _open.reset(token)


def split_share() -> float:
    """What products may now err by, as a share of what the kernel's are allowed; 0 where they are float64's own."""
    products = _open.get()
    return 0.0 if products is None else products.share


def products_of(counts: SplitCounts, device: torch.device) -> SplitProducts | None:
    """What a report says of it; None where nothing was split."""
    if not counts.split:
        return None
    way = way_on(device)
    return SplitProducts(split=counts.split, native=counts.native, forced=way.is_forced, ratio=way.ratio)


class _Products(TorchDispatchMode):
    """Answers the operations that all products of matrices come down to."""

    def __init__(self, precision: Precision, counts: SplitCounts, least: int) -> None:
        super().__init__()
        self.unit, self.counts, self.least = precision.accumulate, counts, least
        self.share = SHARE if precision.matrix else SHARE_OF_FLOAT32

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten.mm.default and (product := self._product(args[0][None], args[1][None])) is not None:
            return product[0]
        if func is _aten.bmm.default and (product := self._product(*args)) is not None:
            return product
        if func is _aten.baddbmm_.default and (product := self._product(*args[1:3])) is not None:
            return args[0].mul_(kwargs.get("beta", 1)).add_(product, alpha=kwargs.get("alpha", 1))
        return func(*args, **kwargs)

    def _product(self, a: Tensor, b: Tensor) -> Tensor | None:
        if a.dtype != torch.double or a.shape[0] * a.shape[1] * b.shape[1] * b.shape[2] < max(self.least, 1):
            return None
        from .products import split_product

        found = split_product(a, b, self.share * self.unit * long_sum(a.shape[2]))
        self.counts.split += found is not None
        self.counts.native += found is None
        return found
