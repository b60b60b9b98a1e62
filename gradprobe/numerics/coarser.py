"""How a kernel computes more coarsely than its contract says, and what shows that.

Three ways are tried, the narrowest first: it rounds an operand of the scores (the contract holds about a reference
that rounds it too); it keeps sums in 16 bits (they have the very bits of that: `sums`); it rounds S, P, dP or dS
besides (all heads err as that makes them: `evenness`). Bits come before errors: by errors alone a dS in float16 that is
wrong by 2 % would pass for coarse sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import torch
from torch import Tensor

from ..model.case import Case
from ..model.number import listed
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace
from .compare import Comparison, Evaluate, tile_size
from .declared_precision import (
    ROUNDED,
    CoarserArithmetic,
    Precision,
    Tensors,
    growth_of,
    with_roundings,
)
from .evenness import OFTEN, TILES, Heads, any_stands_out, are_alike
from .scatter import scatter_of
from .sums import coarse_sums

# Of the squared error of what is wrong, the share that an operand must take away before it is tried in full.
_WORTH_TRYING = 0.5
EACH = "q and k"

Compared = Callable[[Precision | None, Evaluate | None], Comparison]
"""Compares the trace by another precision, or with another evaluation of the reference."""


def explained(
    case: Case, x: Attention, trace: Trace, plain: Comparison, heads: Heads, compared: Compared
) -> tuple[Comparison, tuple[CoarserArithmetic, ...]]:
    """The comparison that allows for what the target proves to do, and what that is; else as it came, and nothing.

    Args:
        plain: the comparison by the contract, which does not match.
        heads: how its heads scatter, where that is known.
    """
    if of_operand := _rounded_operand(case, x, trace, plain, compared):
        return of_operand[0], (of_operand[1],)
    by_bits, sums = coarse_sums(case, x, trace, plain)
    if heads and not by_bits.matches:
        besides = _rounded_besides(case, x, trace, plain, heads, compared)
        if besides is not None:
            return besides[0], (besides[1],)
    return by_bits, sums


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
            of_q, of_k = (replace(self, name=name).product for name in "qk")
            return f"{of_q} before the scores of dQ, and {of_k}"
        factor = "scale * log2(e)" if self.with_log2e else "scale"
        both = f"{factor}, and {self.name} times that," if self.with_factor else ""
        return f"{both or f'{factor} * {self.name}'} to {self.dtype}"

    @property
    def proved(self) -> CoarserArithmetic:
        where = "those of dK and dV" if self.name == EACH else "the scores"
        where += "" if self.in_forward or self.name == EACH else " of its backward"
        how = f"rounds {self.product} before {where}{growth_of(self.dtype)}"
        return CoarserArithmetic(self.name, how, self.dtype, self)


def _rounded_operand(
    case: Case, x: Attention, trace: Trace, plain: Comparison, compared: Compared
) -> tuple[Comparison, CoarserArithmetic] | None:
    """The comparison with a reference that rounds an operand as the target does; None where none matches."""
    if case.dtype == "float32" or case.family != "softmax" or not case.scale:
        return None
    is_exact, both = plain.precision.exact, (False, True)
    ways = product(both, both, both[::-1], (EACH, "k", "q"))
    operands = [
        Operand(name, log2e, forward, case.dtype, factor)
        for factor, forward, log2e, name in ways
    ]
    for operand in sorted(operands, key=lambda operand: operand.name != EACH):
        if operand.name == EACH and (operand.in_forward or is_exact):
            continue
        if (evaluation := _evaluation_of(x, operand)) is None:
            continue
        # On exact values the rounding of a result hides as much of it as there is.
        if is_exact or _is_worth_trying(case, x, evaluation, trace):
            comparison = compared(None, evaluation)
            if comparison.matches:
                return replace(comparison, evaluate=evaluation), operand.proved
    return None


def _evaluation_of(x: Attention, operand: Operand) -> Evaluate | None:
    """The reference with an operand that is rounded so; None where that changes nothing."""
    if operand.name == EACH:
        by_queries, by_keys = (_evaluation_of(x, replace(operand, name=name)) for name in "qk")
        return partial(_by_each, by_queries, by_keys) if by_queries and by_keys else None
    rounded = _rounded(x, operand)
    return None if rounded is None else partial(_by_operand, rounded, operand.in_forward)


def _by_operand(
    rounded: Attention, in_forward: bool, x: Attention, tile: Tile, given: Tensors | None
) -> dict[str, Tensor]:  # fmt: skip
    if in_forward:
        return evaluate(rounded, tile, given)
    # LSE and O come from a forward that saw the operand as it was.
    given = given or {}
    forward = evaluate(x, tile, {name: given[name] for name in ("LSE", "P") if name in given})
    known = {"LSE": forward["LSE"], "O": forward["O"]}
    return evaluate(rounded, tile, known | dict(given)) | known


def _by_each(
    by_queries: Evaluate, by_keys: Evaluate, x: Attention, tile: Tile, given: Tensors | None
) -> dict[str, Tensor]:  # fmt: skip
    # Of a black box, P is read from dV and dS from dQ.
    values = by_queries(x, tile, given)
    return by_keys(x, tile, given) | {name: values[name] for name in ("dS", "dQ")}


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

    def error(values: Tensors) -> float:
        total = 0.0
        for name in trace.values.keys() & {"P", "dS", "dQ"}:
            came = trace.values[name][0, tile.heads, tile.rows].double()
            total += float((came - values[name]).square().sum())
        return total

    return error(evaluation(x, tile, None)) < _WORTH_TRYING * error(evaluate(x, tile))


def _rounded_besides(
    case: Case, x: Attention, trace: Trace, plain: Comparison, heads: Heads, compared: Compared
) -> tuple[Comparison, CoarserArithmetic] | None:
    """The comparison with the narrowest budget that allows for more roundings; None where none does.

    PyTorch's eager attention rounds S, P, dP and dS, each as often as an operation stores it. A budget that allows for
    it is given only where the errors are roundings, alike in all heads, and no element stands out.
    """
    is_finite = not any(one.non_finite for one in plain.findings.values())
    if not (heads and is_finite and are_alike(heads, OFTEN)):
        return None
    ways = [(("S",), 0), (("P", "dP", "dS"), 0), *((ROUNDED, tile) for tile in TILES)]
    precisions = [with_roundings(plain.precision, *way) for way in ways]
    allowing = cache(lambda precision: compared(precision, None))
    # The widest first: nearly all faults that come so far are beyond it.
    if not allowing(precisions[-1]).matches:
        return None
    spread = scatter_of(case, x, plain.precision, by_element=True)
    for (names, tile), precision in zip(ways, precisions, strict=True):
        often = OFTEN if tile else OFTEN | {"sums": 0.0}
        if not are_alike(heads, often) or any_stands_out(trace, plain, heads, spread, often):
            continue
        if allowing(precision).matches:
            growth = growth_of(case.dtype) if "S" in names else ""
            sums = f", and its sums every {tile} terms or less often" if tile else ""
            why = "(all heads err as that makes them, and no element stands out)"
            how = f"rounds {listed(names)} to {case.dtype}{sums} {why}{growth}"
            return allowing(precision), CoarserArithmetic(listed(names), how, case.dtype)
    return None
