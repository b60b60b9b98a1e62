"""Rounded operands: scores of a q or k that was scaled and went through 16 bits, which a contract does not allow.

The reference is evaluated with that very operand, and a target is judged by it where it matches beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace
from .compare import Comparison, Evaluate, tile_size
from .declared_precision import growth_of

# Of the squared error of what is wrong, the share that a model must take away before it is tried in full.
_WORTH_TRYING = 0.5
# Scores of the query heads of one key head up to which its dK is evaluated to choose models by.
_MOST_SCORES = 1 << 22


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
    with_factor: bool = False
    """Whether the factor is rounded before it is multiplied in, as Triton does of a number and a 16-bit block."""

    @property
    def product(self) -> str:
        """What is rounded, and to what."""
        factor = "scale * log2(e)" if self.with_log2e else "scale"
        both = (
            f"{factor}, and {self.name} times that,"
            if self.with_factor
            else f"{factor} * {self.name}"
        )
        return f"{both} to {self.dtype}"

    @property
    def sentence(self) -> str:
        where = "" if self.in_forward else " of its backward"
        return f"coarser than its contract: rounds {self.product} before the scores{where}{growth_of(self.dtype)}"


@dataclass(frozen=True)
class OperandOfEach:
    """Two kernels of a backward that round another operand each."""

    of_queries: Operand
    """Of the kernel that ends in dQ."""
    of_keys: Operand
    """Of the one that ends in dK and dV."""

    name = "q and k"

    @property
    def sentence(self) -> str:
        of_queries, of_keys = self.of_queries.product, self.of_keys.product
        return (
            f"coarser than its contract: rounds {of_queries} before the scores of dQ, "
            f"and {of_keys} before those of dK and dV{growth_of(self.of_keys.dtype)}"
        )


Rounding = tuple[Operand | OperandOfEach, Evaluate]
"""What is rounded, and the reference with it."""


def rounded_operand(
    case: Case,
    x: Attention,
    trace: Trace,
    plain: Comparison,
    compared: Callable[[Evaluate], Comparison],
) -> tuple[Comparison, Operand | OperandOfEach] | None:
    """The comparison with a reference that rounds an operand as the target does; None where none matches.

    Args:
        plain: the comparison with the reference as it is.
        compared: compares the trace with another evaluation of the reference.
    """
    if case.dtype == "float32" or case.family != "softmax" or not case.scale:
        return None
    for model, evaluation in _roundings(case, x, trace, is_exact=plain.precision.exact):
        comparison = compared(evaluation)
        if comparison.matches:
            return replace(comparison, evaluate=evaluation), model
    return None


def _roundings(case: Case, x: Attention, trace: Trace, *, is_exact: bool) -> Iterator[Rounding]:
    """Those that take away most of the error; one rounded problem at a time is held."""
    ways = product((False, True), (False, True), (True, False), ("k", "q"))
    operands = [
        Operand(name, log2e, forward, case.dtype, factor) for factor, forward, log2e, name in ways
    ]
    if not is_exact:
        yield from _of_two_kernels(x, trace, [one for one in operands if not one.in_forward])
    for operand in operands:
        evaluation = evaluation_of(x, operand)
        # On exact values the rounding of a result hides as much of it as there is.
        if evaluation is not None and (is_exact or _is_worth_trying(case, x, evaluation, trace)):
            yield operand, evaluation


def _of_two_kernels(
    x: Attention, trace: Trace, operands: Sequence[Operand]
) -> Iterator[Rounding]:
    """q rounded where k is not, where the errors of dQ and of dK say so."""
    scores = x.n_heads // x.k.shape[1] * x.n_query * x.n_key
    if not {"dQ", "dK"} <= trace.values.keys() or scores > _MOST_SCORES:
        return
    of_queries, of_keys = (_best(x, operands, trace, name) for name in ("dQ", "dK"))
    if of_queries is None or of_keys is None or of_queries[0].name == of_keys[0].name:
        return
    by_queries, by_keys = of_queries[1], of_keys[1]

    def evaluated(
        x: Attention, tile: Tile, given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        # Of a black box, P is read from dV and dS from dQ.
        values = by_queries(x, tile, given)
        return by_keys(x, tile, given) | {name: values[name] for name in ("dS", "dQ")}

    yield OperandOfEach(of_queries[0], of_keys[0]), evaluated


def _best(
    x: Attention, operands: Sequence[Operand], trace: Trace, name: str
) -> tuple[Operand, Evaluate] | None:
    """What leaves least of the error of dQ or dK of the first head; None where each leaves too much."""
    tile = Tile(0, slice(0, x.n_heads // x.k.shape[1]), slice(0, x.n_query))
    actual = trace.values[name][0, :1].double()

    def error(evaluation: Evaluate) -> float:
        values = evaluation(x, tile, None)
        expected = values["dQ"][:1] if name == "dQ" else values["dK"].sum(0, keepdim=True)
        return float(((actual - expected) ** 2).sum())

    best, least = None, _WORTH_TRYING * error(evaluate)
    for operand in operands:
        if (evaluation := evaluation_of(x, operand)) is not None and (
            left := error(evaluation)
        ) < least:
            best, least = (operand, evaluation), left
    return best


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


def evaluation_of(x: Attention, operand: Operand) -> Evaluate | None:
    """What a model evaluates; None where its rounding changes nothing."""
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


def _is_worth_trying(case: Case, x: Attention, evaluation: Evaluate, trace: Trace) -> bool:
    """Whether a model takes away most of the error of the first heads' matrices or dQ."""
    names = [name for name in ("P", "dS", "dQ") if name in trace.values]
    heads, rows = tile_size(case)
    tile = Tile(0, slice(0, heads), slice(0, rows))
    place = (tile.batch, tile.heads, tile.rows)
    errors = []
    for values in (evaluation(x, tile, None), evaluate(x, tile)):
        errors.append(
            sum(
                float(((trace.values[name][place].double() - values[name]) ** 2).sum())
                for name in names
            )
        )
    return bool(names) and errors[0] < _WORTH_TRYING * errors[1]
