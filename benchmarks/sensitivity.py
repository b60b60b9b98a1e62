"""How small an error each oracle finds: the least relative error in one element, row, tile and head of an intermediate.

    python benchmarks/sensitivity.py [--seqlen 256] [--head-dim 64]

A right run of `flash` is planted with an error: of one intermediate, one element of median size (not masked, not 0),
its row, its tile, or its head is multiplied by 1 + eps, in the dtype that the kernel gave it in. eps is found by
bisection. Prints a table in Markdown for each dtype; "-" is not found up to 16 times the value.

`budget` is the check beside the reference; `identities`
are I1 to I7, each allowed what its elements may be off by; `dyadic` is the check on values of `--pattern dyadic`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import place
from gradprobe.inputs.versions import environment
from gradprobe.model.case import DTYPES, Case
from gradprobe.model.intermediates import slots
from gradprobe.model.resolution import resolve
from gradprobe.numerics.compare import Comparison, attention_of, compare
from gradprobe.numerics.declared_precision import exactly, precision_of
from gradprobe.reference import Attention
from gradprobe.runtime.backend import make_interpreter_right, prepare_backend
from gradprobe.runtime.run import Trace, run_target
from gradprobe.targets.find import find_target

EXTENTS = ("element", "row", "tile", "head")
LEAST, MOST = 2.0**-30, 16.0
# Bisection stops where the two ends are within 10 % of one another.
NEAR = 1.1


@dataclass(frozen=True)
class Right:
    """A right run."""

    case: Case
    x: Attention
    trace: Trace

    def compared(self, trace: Trace) -> Comparison:
        precision = precision_of(self.case.dtype, "ieee")
        precision = exactly(precision) if self.case.pattern == "dyadic" else precision
        return compare(self.case, self.x, trace, precision, blame=False)

    def places(self, name: str) -> dict[str, tuple[slice, ...]]:
        """By extent, where the error is planted: around an element of median size in the last head."""
        value, letters = self.trace.values[name], slots(self.case.axes(name))[2:]
        head = value[-1, -1].reshape(value.shape[2], -1)
        sizes = head.abs().double().nan_to_num(posinf=0.0)
        median = sizes[sizes > 0].median()  # one of them, not between two
        row, col = (sizes == median).nonzero()[0].tolist()
        blocks = {"m": self.case.block_m, "n": self.case.block_n}
        tile = tuple(
            _tile(*at)
            for at in zip((row, col), map(blocks.get, letters), head.shape, strict=True)
        )
        one, whole = (slice(row, row + 1), slice(col, col + 1)), slice(None)
        found = {"element": one, "row": (one[0], whole), "tile": tile, "head": (whole, whole)}
        last = slice(-1, None)
        return {
            extent: (last, last, *parts[: value.dim() - 2]) for extent, parts in found.items()
        }

    def planted(self, name: str, at: tuple[slice, ...], eps: float) -> Trace:
        value = self.trace.values[name].clone()
        value[at] = (value[at].double() * (1 + eps)).to(value.dtype)
        return replace(self.trace, values={**self.trace.values, name: value})


def _tile(at: int, block: int | None, size: int) -> slice:
    return (
        slice(0, size)
        if block is None
        else slice(at // block * block, at // block * block + block)
    )


def right_run(options: dict[str, object]) -> Right:
    target = find_target("flash")
    case = resolve({**options, "device": prepare_backend("auto")}, "softmax", takes_bias=True)
    make_interpreter_right(case)
    values = {name: value.to(case.device) for name, value in draw(case).items()}
    trace = run_target(target, case, place(values, ())).trace
    assert trace is not None
    return Right(case, attention_of(case, values), trace)


def by_budget(right: Right, trace: Trace) -> bool:
    return not right.compared(trace).matches


ORACLES: dict[str, tuple[str, Callable[[Right, Trace], bool]]] = {
    "budget": ("normal", by_budget),
    "dyadic": ("dyadic", by_budget),
}


def least(finds: Callable[[float], bool]) -> float:
    """The least eps that is found; infinite where MOST is not."""
    if not finds(MOST):
        return math.inf
    low, high = LEAST, MOST
    while high / low > NEAR:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if finds(middle) else (middle, high)
    return high


def rows_of(rights: dict[str, Right]) -> Iterator[list[str]]:
    for name, extent in product(rights["normal"].trace.values, EXTENTS):
        found = [
            _least_of(rights[pattern], name, extent, finds)
            for pattern, finds in ORACLES.values()
        ]
        yield [name, extent, *("-" if math.isinf(eps) else f"{eps:.0e}" for eps in found)]


def _least_of(
    right: Right, name: str, extent: str, finds: Callable[[Right, Trace], bool]
) -> float:
    at = right.places(name)[extent]
    return least(lambda eps: finds(right, right.planted(name, at, eps)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seqlen", type=int, default=256)
    parser.add_argument("--head-dim", type=int, default=64)
    given = parser.parse_args()
    sizes = {
        "batch": 1,
        "heads": 2,
        "seqlen": given.seqlen,
        "head_dim": given.head_dim,
        "causal": True,
    }
    for dtype in DTYPES:
        rights = {
            pattern: right_run({**sizes, "dtype": dtype, "pattern": pattern})
            for pattern in ("normal", "dyadic")
        }
        told, size = (
            environment(rights["normal"].case.device),
            f"L = {given.seqlen}, D = {given.head_dim}",
        )
        print(
            f"\n{dtype}, {size}; torch {told['torch']}, triton {told['triton']}, {told['device']}\n"
        )
        print(f"| | in one | {' | '.join(ORACLES)} |")
        print(f"|--|--|{'--:|' * len(ORACLES)}")
        for cells in rows_of(rights):
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
