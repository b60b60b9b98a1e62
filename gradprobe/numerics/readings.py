"""Which of the ways to compute attention in fewer bits a result was computed in, read from several draws of values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache, partial

import torch

from ..model.kernel_contract import IEEE, Reading
from .coarser import Accumulation, Model
from .declared_precision import EXACT, TINY, U_FUNCTION, stored
from .ways import EXPONENTIALS, GroupedProblem, Scores, Way, Ways, of_ds, of_dv, of_o, scores_of


class Draws:
    """Problems of one case, each run when it is asked for."""

    def __init__(self, make: Callable[[int], GroupedProblem], most: int) -> None:
        self.at, self.most = lru_cache(maxsize=None)(make), most


# Draws on which every way is worked out; on others, only those that fit these.
FIRST = 2


def read(draws: Draws) -> list[Reading]:
    """What is rounded on the way to each result: the ways that give it on every draw, until there is one or no more."""
    every = scores_of(draws.at(0).case.dtype)
    of_forward = _read(draws, "O", lambda problem, exp: of_o(problem, _with(exp, every)))
    forward = _readings_of(of_forward, every)[0]
    of_backward = _read(draws, "dV", lambda problem, exp: of_dv(problem, forward, _with(exp, every)))
    backward = list(dict.fromkeys(_with(U_FUNCTION, _readings_of(of_backward, every))))

    def of_product(name: str) -> Reading | None:
        return _read(draws, name, lambda problem, exp: of_ds(problem, name, forward, _with(exp, backward)))

    return [one for one in (of_forward, of_backward, of_product("dQ"), of_product("dK")) if one is not None]


def _with(exp: float, ways: Iterable[Scores]) -> list[Scores]:
    """Ways to come by scores, with an exponential."""
    return [replace(way, exp=exp) for way in ways]


def _readings_of(reading: Reading | None, every: Iterable[Scores]) -> list[Scores]:
    """How scores were come by where that was read; else every way."""
    if reading is None or not reading.fits:
        return list(every)
    ways = [way for exp in EXPONENTIALS for way in _with(exp, every)]
    return [way for fit in reading.fits for way in ways if way.way.items() <= fit.items()]


def _read(draws: Draws, name: str, ways: Callable[[GroupedProblem, float], Ways]) -> Reading | None:
    """The reading of one result, with the best exponential that any way fits with; None where it is not given."""
    if name not in draws.at(0).trace.values:
        return None
    readings: list[Reading] = []
    for exp in EXPONENTIALS:
        readings.append(_read_with(draws, name, partial(_swapped, ways, exp)))
        if readings[-1].fits:
            return readings[-1]
    return readings[0]


def _swapped(ways: Callable[[GroupedProblem, float], Ways], exp: float, problem: GroupedProblem) -> Ways:
    return ways(problem, exp)


def _read_with(draws: Draws, name: str, ways: Callable[[GroupedProblem], Ways]) -> Reading:
    def differing(problem: GroupedProblem, asked: Collection[int]) -> dict[int, int]:
        made = [made for _, made in ways(problem)]
        return {number: problem.wrong(name, made[number]()) for number in asked}

    return _reading(draws, name, [way for way, _ in ways(draws.at(0))], differing)


def _reading(
    draws: Draws, name: str, ways: list[Way], differing: Callable[[GroupedProblem, Collection[int]], dict[int, int]],
    *, sums: bool = False,
) -> Reading:  # fmt: skip
    """A reading from how many elements differ by each way: on the first draws by all, on others by those that fit."""
    wrong, used = [0] * len(ways), 0
    fit = every = list(range(len(ways)))
    while used < min(FIRST, draws.most) or (len(fit) > 1 and used < draws.most):
        for number, count in differing(draws.at(used), fit if used >= FIRST else every).items():
            wrong[number] += count
        fit, used = [number for number in fit if not wrong[number]], used + 1
    nearest = min(every, key=lambda number: wrong[number])
    elements = used * draws.at(0).trace.values[name].numel()
    return Reading(name, sums, tuple(ways[n] for n in fit), ways[nearest], wrong[nearest], elements, len(ways), used)


def read_sums(draws: Draws, name: str, rounded: Reading | None = None) -> tuple[Reading, list[Model | None]]:
    """In what dQ, dK or dV is added up, from draws in which nothing else is rounded; and the models that fit.

    None is the contract's, a sum in float32.

    Args:
        rounded: what was read of roundings on the way to it, where its q or k is one that was rounded for the scores.
    """
    scores = _readings_of(rounded, scores_of(draws.at(0).case.dtype))[0] if rounded else None

    @cache
    def sums_of(problem: GroupedProblem) -> Accumulation:
        x = problem.x if scores is None else problem.with_operands(scores)
        return Accumulation(problem.case, x, problem.trace, name)

    def differing(problem: GroupedProblem, asked: Collection[int]) -> dict[int, int]:
        return {number: _differing(models[number], sums_of(problem)) for number in asked}

    first = sums_of(draws.at(0))
    models = [None] if first.dtype == torch.float32 else [None, *_models(first)]
    labels = [_of_model(model, name, first) for model in models]
    reading = _reading(draws, name, labels, differing, sums=True)
    return reading, [model for model, label in zip(models, labels, strict=True) if label in reading.fits]


def _models(sums: Accumulation) -> Iterator[Model]:
    """Every way but the contract's; the scale, a power of two, may come first or last."""
    scaled = [model for model in sums.models() if model.scaled]
    yield from dict.fromkeys(one for model in scaled for one in (model, replace(model, apart=True)))


def _of_model(model: Model | None, name: str, sums: Accumulation) -> Way:
    if model is None:
        return {"sums": IEEE}
    if model.tile == sums.length and not model.shared:
        return {"sums": f"float32, rounded to {str(sums.dtype).removeprefix('torch.')} for each query head of a group"}
    what = "query rows" if name != "dQ" else "keys"
    how = f"each {model.tile} {what} rounded alone" if model.apart else f"rounded after each {model.tile} {what}"
    heads = ", one for each query head" if sums.group > 1 and not model.shared else ""
    order = "from the last" if model.backwards else "from the first"
    return {"sums": f"{str(sums.dtype).removeprefix('torch.')}, {how}, {order}{heads}"}


def _differing(model: Model | None, sums: Accumulation) -> int:
    came, wrong = sums.trace.values[sums.name], 0
    for place in sums.places:
        actual = came[place].double()
        if model is not None:
            wrong += int((actual != sums.of_model(model, place)).sum())
        else:
            value, size = sums.in_float32(place)
            bound = stored(actual, value, EXACT * size + TINY, came.dtype)
            wrong += int((~((actual - value).abs() <= bound)).sum())
    return wrong
