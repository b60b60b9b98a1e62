"""Rounded operands: scores of a q or k that was scaled and went through 16 bits, which a contract does not allow.

The reference is evaluated with that very operand, and a target is judged by it where it matches beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace
from .compare import Comparison, Evaluate, tile_size
from .declared_precision import CoarserArithmetic, growth_of

# Of the squared error of what is wrong, the share that a model must take away before it is tried in full.
_WORTH_TRYING = 0.5
EACH = "q and k"


@dataclass(frozen=True)
class Operand:
    """One way to round an operand of the scores."""

    name: str
    """"q", "k", or EACH: q where dQ is computed, and k where dK and dV are, by two kernels."""
    with_log2e: bool
    """Whether log2(e) is multiplied in as well, for exp2."""
    in_forward: bool
    """Whether the forward does so too; else LSE and O are those of the operand as it was given."""
    dtype: str
    with_factor: bool = False
    """Whether the factor is rounded before it is multiplied in, as Triton does of a number and a 16-bit block."""

    @property
    def product(self) -> str:
        """What is rounded, and to what."""
        if self.name == EACH:
            return f"{self.of('q').product} before the scores of dQ, and {self.of('k').product}"
        factor = "scale * log2(e)" if self.with_log2e else "scale"
        both = f"{factor} * {self.name}"
        both = f"{factor}, and {self.name} times that," if self.with_factor else both
        return f"{both} to {self.dtype}"

    @property
    def proved(self) -> CoarserArithmetic:
        where = "before the scores" if self.in_forward else "before the scores of its backward"
        where = "before those of dK and dV" if self.name == EACH else where
        how = f"rounds {self.product} {where}{growth_of(self.dtype)}"
        return CoarserArithmetic(self.name, how, self.dtype, self)

    def of(self, name: str) -> Operand:
        return replace(self, name=name)


def rounded_operand(
    case: Case,
    x: Attention,
    trace: Trace,
    plain: Comparison,
    compared: Callable[[Evaluate], Comparison],
) -> tuple[Comparison, CoarserArithmetic] | None:
    """The comparison with a reference that rounds an operand as the target does; None where none matches.

    Args:
        plain: the comparison with the reference as it is.
        compared: compares the trace with another evaluation of the reference.
    """
    if case.dtype == "float32" or case.family != "softmax" or not case.scale:
        return None
    for operand in _operands(case.dtype, is_exact=plain.precision.exact):
        evaluation = evaluation_of(x, operand)
        # On exact values the rounding of a result hides as much of it as there is.
        if evaluation is None or not (
            plain.precision.exact or _is_worth_trying(case, x, evaluation, trace)
        ):
            continue
        comparison = compared(evaluation)
        if comparison.matches:
            return replace(comparison, evaluate=evaluation), operand.proved
    return None


def _operands(dtype: str, *, is_exact: bool) -> Iterator[Operand]:
    if not is_exact:
        for factor, log2e in product((False, True), (True, False)):
            yield Operand(EACH, log2e, False, dtype, factor)
    ways = product((False, True), (False, True), (True, False), ("k", "q"))
    for factor, forward, log2e, name in ways:
        yield Operand(name, log2e, forward, dtype, factor)


def evaluation_of(x: Attention, operand: Operand) -> Evaluate | None:
    """The reference with an operand that is rounded so; None where that changes nothing."""
    if operand.name == EACH:
        by_queries, by_keys = (evaluation_of(x, operand.of(name)) for name in "qk")
        return _by_each(by_queries, by_keys) if by_queries and by_keys else None
    if (rounded := _rounded(x, operand)) is None:
        return None

    def evaluated(
        x: Attention, tile: Tile, given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        if operand.in_forward:
            return evaluate(rounded, tile, given)
        # LSE and O come from a forward that saw the operand as it was.
        given = given or {}
        forward = evaluate(x, tile, {name: given[name] for name in ("LSE", "P") if name in given})
        known = {"LSE": forward["LSE"], "O": forward["O"]}
        return evaluate(rounded, tile, known | dict(given)) | known

    return evaluated


def _by_each(by_queries: Evaluate, by_keys: Evaluate) -> Evaluate:
    def evaluated(
        x: Attention, tile: Tile, given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        # Of a black box, P is read from dV and dS from dQ.
        values = by_queries(x, tile, given)
        return by_keys(x, tile, given) | {name: values[name] for name in ("dS", "dQ")}

    return evaluated


def _rounded(x: Attention, operand: Operand) -> Attention | None:
    """The problem whose q or k went through 16 bits after it was scaled; None where that changes nothing."""
    dtype: torch.dtype = getattr(torch, operand.dtype)
    factor = x.scale * (math.log2(math.e) if operand.with_log2e else 1.0)
    used = torch.tensor(factor, dtype=dtype).item() if operand.with_factor else factor
    if operand.with_factor and used == factor:
        return None
    plain = getattr(x, operand.name)
    scaled = (plain.float() * used).to(dtype).double() / factor
    return None if torch.equal(scaled, plain) else replace(x, **{operand.name: scaled})


def _is_worth_trying(case: Case, x: Attention, evaluation: Evaluate, trace: Trace) -> bool:
    """Whether a model takes away most of the error of the first heads' matrices or dQ."""
    heads, rows = tile_size(case)
    tile = Tile(0, slice(0, heads), slice(0, rows))
    names = [name for name in ("P", "dS", "dQ") if name in trace.values]

    def error(values: Mapping[str, Tensor]) -> float:
        came = {name: trace.values[name][0, tile.heads, tile.rows].double() for name in names}
        return sum(float((came[name] - values[name]).square().sum()) for name in names)

    return error(evaluation(x, tile, None)) < _WORTH_TRYING * error(evaluate(x, tile))
