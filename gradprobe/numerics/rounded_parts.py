"""What a kernel rounds to 16 bits: S, P, dP and dS on the way to its results, and an operand of the scores.

The reference is evaluated with every choice of them rounded. A rounding that is modelled leaves nothing, one that is
not leaves its variance, and one too many adds it: so what the kernel does errs least.
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
from .coarser import Accumulation, Model
from .compare import Comparison, Evaluate, tile_size
from .declared_precision import CoarserArithmetic, growth_of, precision_of
from .rounding_spread import RESULTS, rounding

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
    is_exact = plain.precision.exact
    for operand in _operands(case.dtype, is_exact=is_exact):
        if (evaluation := evaluation_of(x, operand)) is None:
            continue
        # On exact values the rounding of a result hides as much of it as there is.
        if not is_exact and not _is_worth_trying(case, x, evaluation, trace):
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


FLOAT32 = "float32"
# Keys of a tile of a running softmax; 0 for all at once.
_RUNNING = (0, 16, 32, 64, 128)
# Of what storing a result adds, how much a way may leave besides: another rounding of the result.
_EXPLAINED = 1.0
# Of what storing the mean row adds: a row of 1/1,024 of it, whose terms cancel, is as exact as float32 leaves them.
_FINEST = 2.0**-20
# Standard errors by which ways may differ that are alike, of what rows leave: chance exceeds that once in 30,000.
_CHANCE = 4.0


@dataclass(frozen=True)
class RoundingWay:
    """One way to round on the way to a result."""

    matrix: str
    """P or dS as it is multiplied: FLOAT32, or the dtype with what is done after it is rounded."""
    tile: int = 0
    """Keys of a running softmax, whose P is not yet divided."""
    rounded: tuple[str, ...] = ()
    """What of S, P and dP is rounded before."""
    stored_o: bool = False
    """Whether delta is made from O as it is stored."""

    def describe(self, result: str, case: Case) -> dict[str, str]:
        """In parts: {"dS": "bfloat16, scaled after", "delta": "from O as it is stored"}."""
        name = "P" if result in ("O", "dV") else "dS"
        found = {name: self.matrix + (f", in tiles of {self.tile} keys" if self.tile else "")}
        found |= {part: case.dtype for part in self.rounded}
        if name == "dS":
            is_lazy = case.family == "lazy"
            plain = "the row sum of P dP" if is_lazy else "from O before it is rounded"
            found["delta"] = "from O as it is stored" if self.stored_o else plain
        return found


@dataclass(frozen=True)
class RoundedParts:
    """What is known of one result."""

    of: str
    """O, dQ, dK or dV."""
    parts: Mapping[str, list[str]]
    """By part, each word that fits: {"P": ["bfloat16"]}."""
    left: float
    """The mean square of what is left, as a multiple of what storing the result adds."""

    @property
    def is_read(self) -> bool:
        """Whether no more is left than another rounding of the result. NaN is more."""
        return self.left <= 1.0 + _EXPLAINED


def rounded_parts(
    case: Case,
    x: Attention,
    trace: Trace,
    models: Mapping[str, Model],
    evaluation: Evaluate | None,
) -> Iterator[RoundedParts]:
    """What is known of each result that came.

    Args:
        models: how dQ, dK and dV are added up that are not in float32.
        evaluation: the reference with a rounded operand of the scores, where the kernel has one.
    """
    for result in (name for name in RESULTS if name in trace.values):
        left = {}
        for way in _ways(case, result, has_o="O" in trace.values):
            of = _RoundedResult(case, x, trace, result, way, evaluation or evaluate)
            left[way] = of.residual(models.get(result))
        best = min(left.values(), key=lambda rows: float(rows.mean()))
        fits = [way.describe(result, case) for way in left if _are_alike(left[way], best)]
        parts = {
            part: list(dict.fromkeys(words.get(part, FLOAT32) for words in fits))
            for part in dict.fromkeys(part for words in fits for part in words)
        }
        yield RoundedParts(result, parts, float(best.mean()))


def _are_alike(rows: Tensor, best: Tensor) -> bool:
    """Whether a way leaves no more than the best, but for chance."""
    apart = rows - best
    return bool(apart.mean() <= _CHANCE * apart.std() / len(apart) ** 0.5)


def _ways(case: Case, result: str, *, has_o: bool) -> Iterator[RoundingWay]:
    """Every way, the likeliest first."""
    is_softmax = case.family == "softmax"
    scores = [(), ("S",)] if is_softmax and not case.sinks else [()]
    if result in ("O", "dV"):
        ways = [(case.dtype, 0), (FLOAT32, 0)]
        if result == "O":
            ways += [(f"{case.dtype}, not yet divided", tile) for tile in _RUNNING]
        for before, (word, tile) in product(scores, ways):
            yield RoundingWay(word, tile, before)
        return
    words = (f"{case.dtype}, scaled after", FLOAT32, f"{case.dtype}, scaled before")
    deltas = (True, False) if has_o and is_softmax else (False,)
    parts = [(), ("P",), ("P", "dP"), ("dP",)]
    for before, more, word, stored in product(scores, parts, words, deltas):
        yield RoundingWay(word, 0, (*before, *more), stored)


class _RoundedResult(Accumulation):
    """One result of a problem, by one way to round."""

    def __init__(
        self, case: Case, x: Attention, trace: Trace, result: str, way: RoundingWay, evaluation: Evaluate
    ) -> None:  # fmt: skip
        super().__init__(case, x, trace, result)
        self._way, self._evaluate = way, evaluation

    def residual(self, model: Model | None) -> Tensor:
        """[rows] the squares of what came less this, as multiples of what storing it adds."""
        precision, squares, stored = precision_of(self.case.dtype, "ieee"), [], []
        for place in self.places:
            expected = self._expected(place, model)
            error = self.trace.values[self.name][place].double() - expected
            squares.append(error.square().sum(-1))
            stored.append(rounding(precision, expected).sum(-1))
        of_rows = torch.cat(stored)
        least = max(_FINEST * float(of_rows.mean()), 1e-300)
        return torch.cat(squares) / of_rows.clamp(min=least)

    def _expected(self, place: tuple[int, int], model: Model | None) -> Tensor:
        if self.name == "O":
            batch, head = place
            key_head = head // (self.x.n_heads // self.x.k.shape[1])
            return self._rows(batch, head, slice(0, self.x.n_query)) @ self.x.v[batch, key_head]
        return self.in_float32(place) if model is None else self.of_model(model, place)

    def _rows(self, batch: int, head: int, rows: slice) -> Tensor:
        """Some rows of P or dS as this way rounds them."""
        way, tile = self._way, Tile(batch, slice(head, head + 1), rows)
        known: dict[str, Tensor] = {}
        if way.stored_o:
            known["O"] = self.trace.values["O"][tile.batch, tile.heads, tile.rows].double()
        values = self._evaluate(self.x, tile, known)
        if "S" in way.rounded:
            s = values["S"] = self._narrow(values["S"])
            known["LSE"] = s.logsumexp(-1)
            known["P"] = (s - known["LSE"][..., None]).exp().nan_to_num(0.0)
        for part in way.rounded:
            if part != "S":
                known[part] = self._narrow(known.get(part, values[part]))
        if "not yet divided" in way.matrix:
            return self._undivided(values | known)[0]
        values = self._evaluate(self.x, tile, known)
        matrix = values["PE" if self.name in ("O", "dV") else "dS"][0]
        if way.matrix == FLOAT32:
            return matrix
        scale = self.x.scale if way.matrix.endswith("before") else 1.0
        return self._narrow(matrix * scale) / scale

    def _undivided(self, values: Mapping[str, Tensor]) -> Tensor:
        """P that is rounded against the maximum of the keys so far, and divided by its sum afterwards."""
        s, last = values["S"], values["S"].shape[-1] - 1
        step = self._way.tile or s.shape[-1]
        ends = torch.arange(s.shape[-1], device=s.device) // step * step + step - 1
        most = s.cummax(-1).values[..., ends.clamp(max=last)]
        weights = self._narrow((s - most).exp().nan_to_num(0.0)) * values["PE"].gt(0)
        return weights * (most - values["LSE"][..., None]).exp().nan_to_num(0.0)
