"""Work: how many products of tiles kernels make in Triton's interpreter, and how many of them of nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from .operations import Operation, noting


@dataclass
class Work:
    """What was counted while it was open."""

    products: int = 0
    idle: int = 0
    """Those of a tile that is 0 throughout, as where no row sees any of its keys."""

    def count(self, step: Operation) -> None:
        """Counts a product."""
        a, b, *_ = step.args
        self.products += 1
        self.idle += not (a.data.any() and b.data.any())


@contextlib.contextmanager
def counted_work() -> Iterator[Work]:
    """While open, the products of interpreted kernels are counted."""
    work = Work()
    with noting({"create_dot": [work.count]}):
        yield work
