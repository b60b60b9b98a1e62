"""Sums that a kernel keeps in 16 bits, which its contract does not allow.

That is a claim about every bit, so it is tested as one: the sum is done again in that way, and has to give the very
bits of most elements that the contract's sum does not explain. Only then is the target judged by that model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace
from .compare import Comparison, tile_size
from .declared_precision import CoarserArithmetic
from .tally import Judgement, Tally

TILES = (16, 32, 64, 128, 256, 512, 1024)
# Of the elements whose bits are not those of one rounding at the end, the share that a model must get right. The rest
# are those where float32 noise decides a rounding: 1 % to 10 % of all where a kernel keeps such sums, and half of all
# where it does not.
EXPLAINED = 2 / 3
# A model with so many of the bits needs no better one, unless nothing else is rounded.
NEARLY_ALL = 0.97
# What it may leave unexplained of any one region, which float32 noise alone never does: a fault there, small enough to
# pass for a turned rounding, moves nearly every bit.
LEFT_OVER, NOISE, REGION = 2 / 3, 0.1, 1024
# Beyond this multiple of the budget no rounding of sums is the reason: 128 tiles reach 6 (emulated, values with a mean)
# and twice as many 1.7 times that, so a thousand stay below.
LARGEST = 64.0


@dataclass(frozen=True)
class Model:
    """One way to keep a sum in 16 bits."""

    tile: int
    """Rows (dK, dV) or keys (dQ) between two roundings; 0 for one at the end of each query head."""
    scaled: bool
    """Whether each tile is scaled, or the whole sum at its end."""
    backwards: bool = False
    """Whether the last tile comes first."""
    shared: bool = False
    """Whether the query heads of a group share one accumulator, or have one each that are added at the end."""

    @property
    def apart(self) -> bool:
        """Whether each query head's sum is rounded, and these are added up in float32."""
        return not self.tile and not self.shared


def explained(
    case: Case, x: Attention, trace: Trace, comparison: Comparison
) -> tuple[Comparison, tuple[CoarserArithmetic, ...]]:
    """The comparison with each sum that is proved to be kept in 16 bits judged as such, and these sums.

    Where one is beyond its budget for that reason, those within it are tried as well.
    """
    given = trace.values
    ratios = {
        name: comparison.findings[name].max_ratio
        for name in ("dQ", "dK", "dV")
        if name in given and given[name].dtype.itemsize == 2
    }
    # Where nothing else is rounded, a single rounding is many times what is allowed.
    largest = math.inf if comparison.precision.exact else LARGEST
    beyond = [name for name, ratio in ratios.items() if 1.0 < ratio <= largest]
    found: dict[str, CoarserArithmetic] = {}
    for name in [*beyond, *(name for name, ratio in ratios.items() if ratio <= 1.0)]:
        if name not in beyond and not found:
            continue
        sums = Accumulation(case, x, trace, name)
        if (model := best_model(sums, comparison)) is not None:
            comparison, coarser = _judged_by(model, sums, comparison)
            found |= {name: coarser} if coarser else {}
    return comparison, tuple(found[name] for name in ratios if name in found)


def best_model(sums: Accumulation, comparison: Comparison) -> Model | None:
    """The model that reproduces most elements, if it explains them; None otherwise.

    Asked is the worst head, where most elements tell models apart. Where nothing else is rounded, few do: then all are.
    """
    ratio, exact = comparison.findings[sums.name].ratio, comparison.precision.exact
    places = sums.places if exact else [divmod(int(ratio.argmax()), ratio.shape[1])]
    of_contract = sums.share_of(places, sums.by_contract)
    best, most = None, 0.0
    for model in sums.models():
        share = sums.share_of(places, partial(sums.of_model, model))
        best, most = (model, share) if share > most else (best, most)
        if (most == 1.0 or (most > NEARLY_ALL and not exact)) and _explains(most, of_contract):
            break
    if best is None or _explains(most, of_contract):
        return best
    return best if _explains(most, of_contract, sums.turned(places, best)) else None


def _explains(share: float, share_of_contract: float, turned: float = 0.0) -> bool:
    """Whether a model has enough of the bits; those that float32 turns by itself count for and against none."""
    return max(0.0, 1 - share - turned) < (1 - EXPLAINED) * (1 - share_of_contract - turned)


def _judged_by(
    model: Model, sums: Accumulation, comparison: Comparison
) -> tuple[Comparison, CoarserArithmetic | None]:
    """The comparison with a sum judged by its model; unchanged where the model does not hold in all heads.

    Where float32 noise turns a rounding, the accumulator is off by one unit in the last place from there on: two such
    turns are allowed. Rows whose bits are not the model's have no such excuse, and are judged by the contract.
    """
    name = sums.name
    actual, expected, bound, _ = comparison.judged(sums.trace, name)
    modelled, turns, shares = expected.clone(), torch.zeros_like(expected), []
    for place in sums.places:
        by_model, largest = sums.modelled(place, model)
        by_contract = sums.by_contract(place)
        shares.append((sums.share(place, by_model), sums.share(place, by_contract)))
        for rows in _rows_of_model(actual[place], by_model, by_contract):
            modelled[place][rows] = by_model[rows]
            turns[place][rows] = 2 * torch.finfo(sums.dtype).eps * largest[rows]
    share, share_of_contract = (sum(side) / len(shares) for side in zip(*shares, strict=True))
    turned = 0.0 if _explains(share, share_of_contract) else sums.turned(sums.places, model)
    if not _explains(share, share_of_contract, turned):
        return comparison, None
    tally = Tally(sums.case, name, tuple(actual.shape))
    within = (actual - modelled).abs() <= bound + turns
    tally.add_whole(Judgement(actual, modelled, bound + turns, within), None)
    wider = comparison.bounds[name] + (modelled - expected).abs() + turns
    bounds = {**comparison.bounds, name: wider}
    findings = {**comparison.findings, name: tally.finding()}
    coarser = _coarser(sums, model, share, share_of_contract)
    return replace(comparison, bounds=bounds, findings=findings), coarser


def _coarser(
    sums: Accumulation, model: Model, share: float, share_of_contract: float
) -> CoarserArithmetic:
    """A sum in words, with the shares of its elements that have the bits of the model, and of float32 sums."""
    name, dtype = sums.name, str(sums.dtype).removeprefix("torch.")
    along = "keys" if name == "dQ" else "query rows"
    step = f"every {model.tile} {along}" if model.tile else "after each query head"
    how = f"accumulates {name} in {dtype}, rounding {step}"
    if model.apart:
        how = f"rounds each query head's {name} to {dtype} before a group's are added up"
    bits = f"{share:.0%} of its elements have the very bits of that"
    how = f"{how} ({bits}, {share_of_contract:.0%} those of float32 sums)"
    return CoarserArithmetic(name, how, dtype, model)


def _rows_of_model(actual: Tensor, modelled: Tensor, by_contract: Tensor) -> Iterator[slice]:
    """The rows of a head for which the model holds, in blocks."""
    step = -(-REGION // actual.shape[1])
    for first in range(0, len(actual), step):
        rows = slice(first, first + step)
        wrong, of_contract = (
            float((actual[rows] != one[rows]).double().mean()) for one in (modelled, by_contract)
        )
        if wrong <= max(NOISE, LEFT_OVER * of_contract):
            yield rows


HeadIndex = tuple[int, int]
"""Batch, and head of the intermediate: a key/value head of dK and dV."""


class Accumulation:
    """One of dQ, dK and dV of a problem: its terms, and any way to add them up."""

    def __init__(self, case: Case, x: Attention, trace: Trace, name: str) -> None:
        self.case, self.x, self.trace, self.name = case, x, trace, name
        self.actual = trace.values[name]
        self.group = x.n_heads // x.k.shape[1] if name != "dQ" else 1
        self.length = x.n_key if name == "dQ" else x.n_query
        self.dtype: torch.dtype = self.actual.dtype
        self.scale = 1.0 if name == "dV" else x.scale
        self.rows = tile_size(case)[1]
        batches, heads = self.actual.shape[:2]
        self.places = list(product(range(batches), range(heads)))
        self._kept: tuple[HeadIndex, list[tuple[Tensor, Tensor]]] | None = None

    def models(self) -> Iterator[Model]:
        """Every way to keep the sum in 16 bits that is not the contract's."""
        scaled = (True,) if self.name == "dV" else (True, False)
        shared = (False,) if self.group == 1 else (False, True)
        tiles = [tile for tile in TILES if tile < self.length]
        if self.group > 1:  # each query head's sum is rounded as it is stored
            yield Model(0, scaled=True)
        ways = product((False, True), scaled, shared, tiles)
        for backwards, is_scaled, is_shared, tile in ways:
            yield Model(tile, is_scaled, backwards, is_shared)
        if self.group > 1:  # and a sum that heads share, after each of them
            yield from (Model(0, is_scaled, shared=True) for is_scaled in scaled)

    def share_of(
        self, places: Sequence[HeadIndex], expected: Callable[[HeadIndex], Tensor]
    ) -> float:
        """The share of some heads' elements that are bit for bit as expected."""
        return sum(self.share(place, expected(place)) for place in places) / len(places)

    def share(self, place: HeadIndex, expected: Tensor) -> float:
        return float((self.actual[place].double() == expected).double().mean())

    def turned(self, places: Sequence[HeadIndex], model: Model) -> float:
        """The share of some heads' elements whose bits depend on how float32 rounds the scores.

        Scores near 120 have as many fewer bits behind the point, and P rounds otherwise where they do.
        """
        noisy = _Float32Terms(self.case, self.x, self.trace, self.name)
        differ = (self.of_model(model, place) != noisy.of_model(model, place) for place in places)
        return sum(float(one.double().mean()) for one in differ) / len(places)

    def in_float32(self, place: HeadIndex) -> Tensor:
        """A head's sum before it is rounded."""
        return torch.stack([a @ b for a, b in self._terms(place)]).sum(0) * self.scale

    def by_contract(self, place: HeadIndex) -> Tensor:
        """A head's sum, rounded once."""
        return self._narrow(self.in_float32(place))

    def of_model(self, model: Model, place: HeadIndex) -> Tensor:
        return self.modelled(place, model)[0]

    def modelled(self, place: HeadIndex, model: Model) -> tuple[Tensor, Tensor]:
        """A head's sum as the model has it, and the largest that its accumulator was."""
        inner, outer = (self.scale, 1.0) if model.scaled else (1.0, self.scale)
        nothing = self.x.q.new_zeros(self.actual[place].shape)
        total, largest = nothing, nothing
        for matrix, b in self._terms(place):
            start = total if model.shared else nothing
            summed, most = self._accumulated(start, matrix, b * inner, model)
            total = summed if model.shared else total + summed
            largest = largest + most
        return self._narrow(total * outer), largest * abs(outer)

    def _accumulated(
        self, total: Tensor, matrix: Tensor, b: Tensor, model: Model
    ) -> tuple[Tensor, Tensor]:
        step = model.tile or self.length
        largest, firsts = total.abs(), range(0, self.length, step)
        for first in reversed(firsts) if model.backwards else firsts:
            part = slice(first, first + step)
            total = self._narrow(total + matrix[:, part] @ b[part])
            largest = largest.maximum(total.abs())
        return total, largest

    def _terms(self, place: HeadIndex) -> list[tuple[Tensor, Tensor]]:
        """For each query head of the group, the two factors of its product, the computed one rounded; float64."""
        if self._kept is None or self._kept[0] != place:
            batch, head = place
            heads = range(head * self.group, (head + 1) * self.group)
            self._kept = place, [self._factors(batch, one) for one in heads]
        return self._kept[1]

    def _factors(self, batch: int, head: int) -> tuple[Tensor, Tensor]:
        x, end = self.x, self.x.n_query
        parts = [slice(first, min(first + self.rows, end)) for first in range(0, end, self.rows)]
        matrix = torch.cat([self._rows(batch, head, rows) for rows in parts])
        if self.name == "dQ":
            return matrix, x.k[batch, head // (x.n_heads // x.k.shape[1])]
        return matrix.mT, (x.do if self.name == "dV" else x.q)[batch, head]

    def _rows(self, batch: int, head: int, rows: slice) -> Tensor:
        """Some rows of P or dS as the kernel rounds them. delta is of the O that it stored, where that is known."""
        tile = Tile(batch, slice(head, head + 1), rows)
        values = evaluate(self.x, tile, self._given(tile))
        return self._narrow(values["PE" if self.name == "dV" else "dS"][0])

    def _given(self, tile: Tile) -> dict[str, Tensor]:
        return {
            name: self.trace.values[name][tile.batch, tile.heads, tile.rows].double()
            for name in ("O", "delta")
            if self.trace.sources.get(name) == "exported"
        }

    def _narrow(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype).double()


class _Float32Terms(Accumulation):
    """The same terms with P of scores that were multiplied in float32, as most kernels multiply them."""

    def _given(self, tile: Tile) -> dict[str, Tensor]:
        given, (q, k, _, _) = super()._given(tile), self.x.tensors(tile)
        if self.x.softcap is not None:  # which takes some of the error away
            return given
        error = self.x.scale * ((q.float() @ k.float().mT).double() - q @ k.mT)
        return given | {"P": evaluate(self.x, tile, given)["P"] * error.exp()}
