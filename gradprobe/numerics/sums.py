"""Sums that a kernel keeps in 16 bits, where its contract says float32.

That is a claim about every bit, so it is tested as one: the sum is done again in that way, and has to give the very
bits of most elements that the contract's sum does not explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace
from .compare import Comparison, tile_size
from .declared_precision import CoarserArithmetic
from .finding import Finding, Judgement

HeadIndex = tuple[int, int]
"""Batch, and head of the intermediate: a key/value head of dK and dV."""
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
        """Whether query heads' sums, each rounded, are added up in float32."""
        return not self.tile and not self.shared


def coarse_sums(
    case: Case, x: Attention, trace: Trace, comparison: Comparison
) -> tuple[Comparison, tuple[CoarserArithmetic, ...]]:
    """The comparison with each sum that is proved to be kept in 16 bits judged as such, and these sums.

    Where one is beyond its budget for that reason, those within it are tried as well.
    """
    given, findings = trace.values, comparison.findings
    names = [name for name in ("dQ", "dK", "dV") if name in given]
    ratios = {
        name: findings[name].max_ratio for name in names if given[name].dtype.itemsize == 2
    }
    # Where nothing else is rounded, a single rounding is many times what is allowed.
    largest = math.inf if comparison.precision.exact else LARGEST
    found: dict[str, CoarserArithmetic] = {}
    for are_beyond in (True, False):
        for name, ratio in ratios.items():
            if ratio <= largest and (ratio > 1.0) == are_beyond and (are_beyond or found):
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
    of_contract = fmean(sums.share(place, sums.by_contract(place)) for place in places)
    best, most = None, 0.0
    for model in sums.models():
        share = fmean(sums.share(place, sums.modelled(place, model)[0]) for place in places)
        best, most = (model, share) if share > most else (best, most)
        if (most == 1.0 or (most > NEARLY_ALL and not exact)) and _explains(most, of_contract):
            break
    return best if best and _is_proved(sums, places, best, most, of_contract) else None


def _is_proved(
    sums: Accumulation,
    places: Sequence[HeadIndex],
    model: Model,
    share: float,
    of_contract: float,
) -> bool:
    """Whether a model has enough of the bits; those that float32 turns by itself count for and against none."""
    if _explains(share, of_contract):
        return True
    return _explains(share, of_contract, sums.turned(places, model))


def _explains(share: float, of_contract: float, turned: float = 0.0) -> bool:
    return max(0.0, 1 - share - turned) < (1 - EXPLAINED) * (1 - of_contract - turned)


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
    share, of_contract = map(fmean, zip(*shares, strict=True))
    if not _is_proved(sums, sums.places, model, share, of_contract):
        return comparison, None
    finding = Finding.empty(sums.case, name, tuple(actual.shape))
    within = (actual - modelled).abs() <= bound + turns
    finding.add_whole(Judgement(actual, modelled, bound + turns, within), None)
    wider = comparison.bounds[name] + (modelled - expected).abs() + turns
    comparison = replace(
        comparison,
        bounds={**comparison.bounds, name: wider},
        findings={**comparison.findings, name: finding},
        by_block=None,
    )
    dtype = str(sums.dtype).removeprefix("torch.")
    step = f"every {model.tile} {'keys' if name == 'dQ' else 'query rows'}"
    how = f"accumulates {name} in {dtype}, rounding {step if model.tile else 'after each query head'}"
    if model.apart:
        how = f"rounds each query head's {name} to {dtype} before a group's are added up"
    bits = f"{share:.0%} of its elements have the very bits of that"
    how = f"{how} ({bits}, {of_contract:.0%} those of float32 sums)"
    return comparison, CoarserArithmetic(name, how, dtype, model)


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


class Accumulation:
    """One of dQ, dK and dV of a problem: its terms, and any way to add them up.

    Args:
        of_float32: whether P is of scores that were multiplied in float32, as most kernels multiply them.
    """

    def __init__(
        self, case: Case, x: Attention, trace: Trace, name: str, *, of_float32: bool = False
    ) -> None:
        self.case, self.x, self.trace, self.name = case, x, trace, name
        self.of_float32 = of_float32
        self.actual = trace.values[name]
        self.group = x.n_heads // x.k.shape[1] if name != "dQ" else 1
        self.length = x.n_key if name == "dQ" else x.n_query
        self.dtype: torch.dtype = self.actual.dtype
        self.scale = 1.0 if name == "dV" else x.scale
        self.step = tile_size(case)[1]
        batches, heads = map(range, self.actual.shape[:2])
        self.places = list(product(batches, heads))
        self._kept: tuple[HeadIndex, list[tuple[Tensor, Tensor]]] | None = None

    def models(self) -> Iterator[Model]:
        """Every way to keep the sum in 16 bits that is not the contract's."""
        scaled = (True,) if self.name == "dV" else (True, False)
        shared = (False,) if self.group == 1 else (False, True)
        tiles = [tile for tile in TILES if tile < self.length]
        if self.group > 1:  # each query head's sum is rounded as it is stored
            yield Model(0, scaled=True)
        for backwards, is_scaled, is_shared, tile in product(
            (False, True), scaled, shared, tiles
        ):
            yield Model(tile, is_scaled, backwards, is_shared)
        if self.group > 1:  # and a sum that heads share, after each of them
            yield from (Model(0, is_scaled, shared=True) for is_scaled in scaled)

    def share(self, place: HeadIndex, expected: Tensor) -> float:
        """The share of a head's elements that are bit for bit as expected."""
        return float((self.actual[place].double() == expected).double().mean())

    def turned(self, places: Sequence[HeadIndex], model: Model) -> float:
        """The share of some heads' elements whose bits depend on how float32 rounds the scores.

        Scores near 120 have as many fewer bits behind the point, and P rounds otherwise where they do.
        """
        noisy = Accumulation(self.case, self.x, self.trace, self.name, of_float32=True)
        both = ((of.modelled(place, model)[0] for of in (self, noisy)) for place in places)
        return fmean(float((one != other).double().mean()) for one, other in both)

    def by_contract(self, place: HeadIndex) -> Tensor:
        """A head's sum, rounded once."""
        sums = torch.stack([a @ b for a, b in self._terms(place)])
        return self._narrow(sums.sum(0) * self.scale)

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
        if self._kept is not None and self._kept[0] == place:
            return self._kept[1]
        (batch, first), x, terms = place, self.x, list[tuple[Tensor, Tensor]]()
        for head in range(first * self.group, (first + 1) * self.group):
            parts = range(0, x.n_query, self.step)
            rows = (slice(first, min(first + self.step, x.n_query)) for first in parts)
            tiles = (Tile(batch, slice(head, head + 1), of) for of in rows)
            matrix = torch.cat([self._rounded(tile) for tile in tiles])
            if self.name == "dQ":
                terms.append((matrix, x.k[batch, head // (x.n_heads // x.k.shape[1])]))
            else:
                terms.append((matrix.mT, (x.do if self.name == "dV" else x.q)[batch, head]))
        self._kept = place, terms
        return terms

    def _rounded(self, tile: Tile) -> Tensor:
        """A tile's P or dS as the kernel rounds them. delta is of the O that it stored, where that is known."""
        values = evaluate(self.x, tile, self._given(tile))
        return self._narrow(values["PE" if self.name == "dV" else "dS"][0])

    def _given(self, tile: Tile) -> dict[str, Tensor]:
        given = {
            name: self.trace.values[name][tile.batch, tile.heads, tile.rows].double()
            for name in ("O", "delta")
            if self.trace.sources.get(name) == "exported"
        }
        # The softcap takes some of the error away.
        if not self.of_float32 or self.x.softcap is not None:
            return given
        q, k, _, _ = self.x.tensors(tile)
        error = self.x.scale * ((q.float() @ k.float().mT).double() - q @ k.mT)
        return given | {"P": evaluate(self.x, tile, given)["P"] * error.exp()}

    def _narrow(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype).double()
