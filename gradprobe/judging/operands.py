"""Coarser operands: whether errors beyond the budget are those of scores from a q or k that was scaled, then rounded.

Kernels derived from Triton's tutorial multiply k by the scale and by log2(e), round it to the inputs' 16 bits, and only
then take the dot; some do so with q, some in the forward as well. The operand of such a kernel is known to the bit, so
it is judged by that and not by a wider bound: the reference is evaluated with the operand so rounded, and the kernel
has to keep the usual budget about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..reference import Attention, Tile, evaluate
from ..running.trace import Trace
from .compare import Comparison, Evaluate, tile_size

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Of the squared error of a wrong dQ, P or dS, the share that a model must take away before it is tried in full.
_WORTH_TRYING = 0.5


@dataclass(frozen=True)
class Operand:
    """One way to round an operand of the scores."""

    name: str
    """"q" or "k"."""
    with_log2e: bool
    """Whether log2(e) is multiplied in as well, for exp2."""
    in_forward: bool
    """Whether the forward does so too; else LSE and O are those of the operand as it was given."""
    dtype: str

    @property
    def words(self) -> str:
        """The finding in one sentence."""
        factor = "scale * log2(e)" if self.with_log2e else "scale"
        where = "" if self.in_forward else " of its backward"
        return f"coarser than its contract: rounds {factor} * {self.name} to {self.dtype} before the scores{where}"


def rounded_operand(
    case: Case, x: Attention, trace: Trace, plain: Comparison, compared: Callable[[Evaluate], Comparison]
) -> tuple[Comparison, Operand] | None:
    """The comparison with a reference that rounds an operand as the target does; None where none matches.

    Args:
        plain: the comparison with the reference as it is.
        compared: compares the trace with another evaluation of the reference.
    """
    if case.dtype == "float32" or case.family != "softmax" or not case.scale:
        return None
    for in_forward, with_log2e, name in product((False, True), (True, False), ("k", "q")):
        operand = Operand(name, with_log2e, in_forward, case.dtype)
        rounded = _rounded(x, operand)
        if _is_worth_trying(case, x, rounded, operand, trace):
            evaluation = _evaluation(rounded, operand)
            comparison = compared(evaluation)
            if comparison.matches:
                return replace(_about(plain, comparison), evaluate=evaluation), operand
    return None


def _about(plain: Comparison, modelled: Comparison) -> Comparison:
    """The comparison that identities need: values of the exact reference, with bounds widened as far as the model."""
    moved = {name: (modelled.expected[name] - expected).abs() for name, expected in plain.expected.items()}
    bounds = {name: bound + moved[name].nan_to_num(0.0) for name, bound in plain.bounds.items()}
    row_sums = {
        name: (actual, expected, allowed + (modelled.row_sums[name][1] - expected).abs())
        for name, (actual, expected, allowed) in plain.row_sums.items()
    }
    return replace(modelled, expected=plain.expected, bounds=bounds, row_sums=row_sums)


def _rounded(x: Attention, operand: Operand) -> Attention:
    """The problem whose q or k went through 16 bits after it was scaled."""
    import torch

    factor = x.scale * (math.log2(math.e) if operand.with_log2e else 1.0)
    dtype: torch.dtype = getattr(torch, operand.dtype)
    scaled = (getattr(x, operand.name).float() * factor).to(dtype).double() / factor
    return replace(x, **{operand.name: scaled})


def _evaluation(rounded: Attention, operand: Operand) -> Evaluate:
    def evaluated(x: Attention, tile: Tile, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        if operand.in_forward:
            return evaluate(rounded, tile, given)
        # LSE and O come from a forward that saw the operand as it was.
        forward = evaluate(x, tile, {name: value for name, value in (given or {}).items() if name in ("LSE", "P")})
        known = {"LSE": forward["LSE"], "O": forward["O"], **(given or {})}
        return evaluate(rounded, tile, known) | {"LSE": forward["LSE"], "O": forward["O"]}

    return evaluated


def _is_worth_trying(case: Case, x: Attention, rounded: Attention, operand: Operand, trace: Trace) -> bool:
    """Whether a model takes away most of the error of the first head's matrices or dQ."""
    names = [name for name in ("P", "dS", "dQ") if name in trace.values]
    heads, rows = tile_size(case)
    tile = Tile(0, slice(0, heads), slice(0, rows))
    plain, model = evaluate(x, tile), _evaluation(rounded, operand)(x, tile, None)
    place = (tile.batch, tile.heads, tile.rows)

    def error(values: Mapping[str, Tensor]) -> float:
        return sum(float(((trace.values[name][place].double() - values[name]) ** 2).sum()) for name in names)

    return bool(names) and error(model) < _WORTH_TRYING * error(plain)
