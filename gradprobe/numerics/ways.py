"""Ways to compute attention in fewer bits, and what each of them gives in O, dQ, dK and dV.

A way says what is rounded, to what, and before which product. What it gives is a Ball for every element, on any values:
float32's own noise is in its radius, and a result that lies outside was computed in another way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import torch
from torch import Tensor

from ..model.case import Case
from ..model.kernel_contract import IEEE, TF32
from ..reference import Attention, Tile, evaluate, tiles
from ..reference.softmax import kept_share
from ..runtime.trace import Trace
from .ball import Ball, dot, exact, narrow, narrowed, row_sum
from .coarser import Model
from .declared_precision import U32, U_FUNCTION, stored

_OTHERS = (f"{TF32}, cut", f"{TF32}, rounded")
# Keys of a tile of a running softmax; None for all at once.
RUNNING = (None, 16, 32, 64, 128)
STORED, UNROUNDED, BY_P = "from O as it is stored", "from O before it is rounded", "the row sum of P dP"
AFTER, BEFORE, EACH = "scaled after", "scaled before", "scaled after, with each tile"
AGAIN = "as for the scores"
LOG2E = math.log2(math.e)

Way = dict[str, str]
# What an exponential may be good to: a GPU's, and what is computed faster for 16 bits, as PyTorch does on the CPU.
EXPONENTIALS = (U_FUNCTION, *(2.0**-bits for bits in (19, 16, 14.5, 14, 13.5, 13)))


def words_of(dtype: str) -> tuple[str, ...]:
    """How numbers may be multiplied, the likeliest first. Numbers of float16 are TF32's, short of the smallest."""
    if dtype == "float32":
        return (IEEE, *_OTHERS, "bfloat16", "float16")
    return (dtype, IEEE, "float16", *_OTHERS) if dtype == "bfloat16" else (dtype, IEEE, "bfloat16", _OTHERS[0])


@dataclass(frozen=True)
class Scores:
    """One way to come by S."""

    words: str
    operands: str = IEEE
    """What q and k are rounded to."""
    result: str = IEEE
    """What S is."""
    scaled: str = ""
    """"q" or "k" where it is scaled, and rounded to the inputs' dtype, before its product."""
    factor: float = 1.0
    """What that is scaled by, besides the scale."""
    exp: float = U_FUNCTION
    """What the exponential is good to."""

    @property
    def way(self) -> Way:
        return {"scores": self.words, "exp": f"good to 2^{round(2 * math.log2(self.exp)) / 2:g}"}


def scores_of(dtype: str) -> tuple[Scores, ...]:
    """Every way to come by S, the likeliest first."""
    if dtype == "float32":
        return tuple(Scores(word, operands=word) for word in words_of(dtype))
    ways = [Scores("float32"), Scores(dtype, result=dtype)]
    for name, (factor, of) in itertools.product("qk", ((LOG2E, "scale * log2(e)"), (1.0, "scale"))):
        ways.append(Scores(f"of {of} * {name} in {dtype}", scaled=name, factor=factor))
    return tuple(ways)


Ways = Iterator[tuple[Way, Callable[[], Ball]]]
"""Each way, and what it gives."""


class GroupedProblem:
    """The values of a run, [B, H, ...] with a key head for each query head, and what came of it.

    Args:
        models: how dQ, dK and dV are added up that are not in float32.
    """

    def __init__(self, case: Case, x: Attention, trace: Trace, models: Mapping[str, Model]) -> None:
        self.case, self.x, self.trace, self.models = case, x, trace, models
        self.group = x.n_heads // x.k.shape[1]
        self.q, self.do = x.q, x.do
        self.tau = None if x.tau is None else x.tau[:, None, None] / torch.arange(1, x.n_query + 1)[:, None].to(x.q)
        self.lse = _lse(trace)
        self.scores = lru_cache(maxsize=None)(self._scores)
        self.forward = lru_cache(maxsize=None)(self._forward)
        self.backward = lru_cache(maxsize=None)(self._backward)
        self.dp = lru_cache(maxsize=None)(self._dp)
        self.unrounded = lru_cache(maxsize=None)(lambda way: _o_divided(self, way, IEEE))

    # What only some draws are asked for: a long one, of which sums are read, has no room for matrices.
    @cached_property
    def k(self) -> Tensor:
        return self.x.k.repeat_interleave(self.group, 1)

    @cached_property
    def v(self) -> Tensor:
        return self.x.v.repeat_interleave(self.group, 1)

    @cached_property
    def valid(self) -> Tensor:
        """[B, H, M, N] bool: which keys each row sees."""
        return torch.stack([self.x.valid(tile).expand(self.x.n_heads, -1, -1) for tile in tiles(self.x)])

    @cached_property
    def added(self) -> Tensor:
        """[B, H, M, N] what is added to the scores."""
        s = torch.stack([evaluate(self.x, tile, wanted=())["S"] for tile in tiles(self.x)])
        return (s - self.x.scale * self.q @ self.k.mT).masked_fill(~self.valid, 0.0)

    @cached_property
    def share(self) -> Tensor | float:
        """What dropout multiplies P and dP by."""
        return 1.0 if self.x.keep is None else torch.stack([_share(self.x, tile) for tile in tiles(self.x)])

    def operands(self, way: Scores) -> tuple[Tensor, Tensor]:
        """q and k as they are multiplied for the scores."""
        q, k, by = narrow(way.operands, self.q), narrow(way.operands, self.k), self.x.scale * way.factor
        q = narrow(self.case.dtype, q * by) / by if way.scaled == "q" else q
        k = narrow(self.case.dtype, k * by) / by if way.scaled == "k" else k
        return q, k

    def with_operands(self, way: Scores) -> Attention:
        """The problem with q and k as they are multiplied for the scores."""
        q, k = self.operands(way)
        return replace(self.x, q=q, k=k.unflatten(1, (-1, self.group))[:, :, 0])

    def _scores(self, way: Scores) -> Ball:
        q, k = self.operands(way)
        s = dot(exact(q), k.mT) * self.x.scale
        s = Ball(s.value + self.added, s.radius + 2 * U32 * (s.value.abs() + self.added.abs()))
        return narrowed(way.result, s)

    def _forward(self, way: Scores) -> tuple[Ball, Tensor, Ball, Ball]:
        """exp(S - m) where a key is seen, m, its row sums, and LSE."""
        s = self.scores(way)
        most = _most(s.value.masked_fill(~self.valid, -math.inf).amax(-1, keepdim=True))
        u = Ball(s.value - most, s.radius).exp(way.exp) * self.valid
        sums = row_sum(u)
        sums = Ball(sums.value.where(sums.value > 0, torch.ones_like(sums.value)), sums.radius)
        log = sums.value.log()
        return u, most, sums, Ball(most + log, sums.radius / sums.value + U_FUNCTION + U32 * (most.abs() + log.abs()))

    def _backward(self, way: Scores, forward: Scores) -> Ball:
        """P as a backward computes it again."""
        s, lse = self.scores(way), self.lse or self.forward(forward)[3]
        away = s.minus(lse)
        away = Ball(away.value.masked_fill(~self.valid, -math.inf), away.radius + 2 * U32 * away.value.abs())
        return Ball(*(part.nan_to_num(0.0) for part in away.exp(way.exp))) * self.valid

    def weights(self, p: Ball) -> Ball:
        """PE: what V is weighed by."""
        if self.tau is None:
            return p * self.share
        z = self._z(p)
        return Ball(z.value.relu(), z.radius) * self.valid

    def _z(self, p: Ball) -> Ball:
        assert self.tau is not None
        return Ball(p.value + self.tau, p.radius + 2 * U32 * (p.value.abs() + self.tau.abs()))

    def _dp(self, operands: str, result: str, p: Scores, forward: Scores) -> Ball:
        dp = dot(exact(narrow(operands, self.do)), narrow(operands, self.v).mT) * self.share * self.valid
        if self.tau is not None:
            z = self._z(self.backward(p, forward))
            turns = z.value.abs() <= z.radius
            dp = Ball(dp.value * (z.value > 0), (dp.radius + dp.value.abs() * turns) * ((z.value > 0) | turns))
        return narrowed(result, dp)

    def product(self, name: str, a: Ball, b: Tensor, scale: float = 1.0, *, each: bool = False) -> Ball:
        """scale * a @ b, in a sum that is kept as that of the gradient is; of dK and dV that of each key head.

        Args:
            each: whether what is added to a sum in 16 bits is scaled, and not the sum.
        """
        group, model = 1 if name == "dQ" else self.group, self.models.get(name)
        value, radius, other = (part.unflatten(1, (-1, group)).unbind(2) for part in (*a, b))
        heads = [(Ball(*one), with_b) for *one, with_b in zip(value, radius, other, strict=True)]
        if model is None:
            return _together([dot(*one) for one in heads]) * scale
        nothing = exact(torch.zeros_like(dot(*heads[0]).value))
        inner, outer = (scale, 1.0) if each else (1.0, scale)
        if not model.shared:
            return _together([self._added(nothing, *one, inner, model) for one in heads]) * outer
        total = nothing
        for one in heads:
            total = self._added(total, *one, inner, model)
        return total * outer

    def _added(self, total: Ball, a: Ball, b: Tensor, scale: float, model: Model) -> Ball:
        """What a sum in 16 bits comes to with one head's product."""
        firsts = range(0, b.shape[-2], model.tile)
        for first in reversed(firsts) if model.backwards else firsts:
            part = slice(first, first + model.tile)
            added = dot(Ball(a.value[..., part], a.radius[..., part]), b[..., part, :]) * scale
            held = partial(narrowed, self.case.dtype)
            total = total.plus(held(added)) if model.apart else held(total.plus(added))
        return total

    @cached_property
    def stored_o(self) -> Tensor:
        """O as the target stores it, or else as it should."""
        if "O" in self.trace.values:
            return self.trace.values["O"].double()
        o = torch.stack([evaluate(self.x, tile)["O"] for tile in tiles(self.x)])
        return narrow(self.case.dtype, o) if self.case.dtype != IEEE else o

    def wrong(self, name: str, given: Ball) -> int:
        """How many elements of a result a way does not give."""
        came = self.trace.values[name]
        actual = came.double()
        bound = stored(actual, given.value, given.radius, came.dtype)
        return int((~((actual - given.value).abs() <= bound)).sum())


def _together(balls: list[Ball]) -> Ball:
    return Ball(*(torch.stack(parts).sum(0) for parts in zip(*balls, strict=True)))


def _lse(trace: Trace) -> Ball | None:
    """[B, H, M, 1] LSE as the target stores it, 0 of rows that see nothing; None where it does not."""
    if "LSE" not in trace.values:
        return None
    lse = _most(trace.values["LSE"].double())[..., None]
    return Ball(lse, U32 * lse.abs())


def _share(x: Attention, tile: Tile) -> Tensor:
    share = kept_share(x, tile)
    assert share is not None
    return share.expand(x.n_heads, -1, -1)


def _most(most: Tensor) -> Tensor:
    """Of rows that see nothing, 0."""
    return most.masked_fill(most == -math.inf, 0.0)


def of_o(problem: GroupedProblem, every: Iterable[Scores]) -> Ways:
    """Every way to compute O: the scores, and how P is rounded before it is multiplied."""
    for scores, word in itertools.product(every, words_of(problem.case.dtype)):
        divided = f"{word}, divided by its sum" if word != IEEE else word
        yield {"P": divided} | scores.way, partial(_o_divided, problem, scores, word)
        if word == IEEE or problem.tau is not None:
            continue
        for tile in (size for size in RUNNING if size is None or size < problem.x.n_key):
            maximum = "of all keys" if tile is None else f"of the tiles of {tile} keys so far"
            words = f"{word}, not yet divided, against the maximum {maximum}"
            yield {"P": words} | scores.way, partial(_o_running, problem, scores, word, tile)


def _o_divided(problem: GroupedProblem, scores: Scores, word: str) -> Ball:
    u, _, sums, _ = problem.forward(scores)
    p = Ball(u.value / sums.value, (u.radius + u.value * sums.radius / sums.value) / sums.value)
    return dot(narrowed(word, problem.weights(p)), narrow(word, problem.v))


def _o_running(problem: GroupedProblem, scores: Scores, word: str, tile: int | None) -> Ball:
    s, (u, most, sums, _) = problem.scores(scores), problem.forward(scores)
    before = most if tile is None else _running_maximum(s.value.masked_fill(~problem.valid, -math.inf), tile)
    decay = (before - most).exp()
    u = Ball(*(part / decay.clamp(min=torch.finfo(torch.double).tiny) for part in u))
    o = dot(narrowed(word, u * problem.share) * decay, narrow(word, problem.v))
    return Ball(o.value / sums.value, (o.radius + o.value.abs() * sums.radius / sums.value) / sums.value)


def _running_maximum(s: Tensor, tile: int) -> Tensor:
    """[..., N] the largest score of a row up to the end of each key's tile."""
    size = s.shape[-1]
    ends = [min(first + tile, size) - 1 for first in range(0, size, tile)]
    so_far = s.cummax(-1).values[..., ends]
    return _most(so_far.repeat_interleave(tile, -1)[..., :size])


def of_dv(problem: GroupedProblem, forward: Scores, every: Iterable[Scores]) -> Ways:
    """Every way to compute dV: the scores of the backward, and how its P is rounded."""
    for scores, word in itertools.product(every, words_of(problem.case.dtype)):
        yield {"P": word} | scores.way, partial(_dv, problem, scores, forward, word)


def _dv(problem: GroupedProblem, scores: Scores, forward: Scores, word: str) -> Ball:
    pe = problem.weights(problem.backward(scores, forward))
    return problem.product("dV", narrowed(word, pe).mT, narrow(word, problem.do))


def of_ds(problem: GroupedProblem, name: str, forward: Scores, backward: Iterable[Scores]) -> Ways:
    """Every way to compute dQ or dK.

    Args:
        forward: how the forward came by its scores.
        backward: how the backward may.
    """
    dtype = problem.case.dtype
    deltas = (STORED, BY_P) if dtype == IEEE else (STORED, UNROUNDED, BY_P)
    of_dp = [(word, IEEE) for word in words_of(dtype)] if dtype == IEEE else [(IEEE, IEEE), (IEEE, dtype)]
    other = "k" if name == "dQ" else "q"
    orders = (AFTER,) if dtype == IEEE else (AFTER, BEFORE, EACH) if name in problem.models else (AFTER, BEFORE)
    of_p = (IEEE,) if dtype == IEEE else (IEEE, dtype)
    for scores, p_dtype, delta, (operands, result), word, order, again in itertools.product(
        backward, of_p, deltas, of_dp, words_of(dtype), orders, (False, True)
    ):
        if (word == IEEE and order == BEFORE) or (again and scores.scaled != other):
            continue
        way = {"dS": word if dtype == IEEE or word == IEEE else f"{word}, {order}", "delta": delta}
        way |= {"P": p_dtype} if p_dtype != IEEE else {}
        way |= {other: AGAIN if again else "as given"}
        way |= {"dP": operands if dtype == IEEE else result} | scores.way
        how = (scores, forward, p_dtype, delta, (operands, result), word, order, again)
        yield way, partial(_of_ds, problem, name, *how)


def _of_ds(
    problem: GroupedProblem, name: str, scores: Scores, forward: Scores, of_p: str, delta: str, of_dp: tuple[str, str],
    word: str, order: str, again: bool,
) -> Ball:  # fmt: skip
    p, dp = narrowed(of_p, problem.backward(scores, forward)), problem.dp(*of_dp, scores, forward)
    of_row = _delta(problem, delta, p, dp, forward)
    ds = p.times(Ball(dp.value - of_row.value, dp.radius + of_row.radius + U32 * (dp.value.abs() + of_row.value.abs())))
    inner, outer = (problem.x.scale, 1.0) if order == BEFORE else (1.0, problem.x.scale)
    rounded = narrowed(word, Ball(*(part * problem.valid for part in ds)) * inner)
    # What was rounded for the scores is of that many bits already.
    q, k = problem.operands(scores) if again else (narrow(word, problem.q), narrow(word, problem.k))
    matrix, other = (rounded, k) if name == "dQ" else (rounded.mT, q)
    return problem.product(name, matrix, other, outer, each=order == EACH)


def _delta(problem: GroupedProblem, how: str, p: Ball, dp: Ball, forward: Scores) -> Ball:
    if how == BY_P:
        return row_sum(p.times(dp))
    o = exact(problem.stored_o) if how == STORED else problem.unrounded(forward)
    delta = row_sum(o * problem.do)
    if problem.tau is None:
        return delta
    return delta.minus(row_sum(dp) * problem.tau)
