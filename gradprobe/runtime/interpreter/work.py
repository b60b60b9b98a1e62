"""Work: how many products of tiles kernels make in Triton's interpreter, and how many of them of nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton.runtime import interpreter as shipped

from ...targets.surroundings import replaced


@dataclass
class Work:
    """What was counted while it was open."""

    products: int = 0
    idle: int = 0
    """Those of a tile that is 0 throughout, as where no row sees any of its keys."""


@contextlib.contextmanager
def counted_work() -> Iterator[Work]:
    """While open, the products of interpreted kernels are counted."""
    work, plain = Work(), shipped.InterpreterBuilder.create_dot

    def create_dot(builder: Any, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        work.products += 1
        work.idle += not (a.data.any() and b.data.any())
        return plain(builder, a, b, *args, **kwargs)

    with replaced(shipped.InterpreterBuilder, "create_dot", create_dot):
        yield work
