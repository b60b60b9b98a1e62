"""M1: a kernel sees other keys than it should, or leaves out an input of the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import and_, methodcaller

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, live_length
from ..reference.problem import part
from .hypothesis import Hypothesis, Observed, making
from .variant import USED, Hook, TileScope, Variant, finishing

Rule = Callable[[Tensor, Attention, Tile], Tensor]
TILES = tuple((rows, keys) for rows in (16, 32, 64, 128) for keys in (16, 32, 64, 128))
_CHANGES = frozenset({"LSE", "P", "O", "dP", "dV", "delta"})


Terms = dict[str, Tensor]
"""What the mask of a tile is made of, by name, each [h or 1, m, N] or what broadcasts to it."""


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every comparison of the mask missing or off by one; the other corner; inputs of the scores left out."""
    for fault, summary, rule in _rules(seen.case, seen.x):
        yield Hypothesis(fault, "M1", summary, methodcaller("seeing", rule), _CHANGES)
    yield from _left_out(seen)


def _rules(case: Case, x: Attention) -> Iterator[tuple[str, str, Rule]]:
    left, right = x.window or (-1, -1)
    if x.causal:
        yield "mask/diagonal", "the key on the diagonal is masked: j < i stands where j <= i is meant", causal(-1)
        yield "mask/beyond-diagonal", "one key beyond the diagonal is seen", causal(1)
        yield "mask/causal", "the causal mask is left out", causal(None)
        for rows, keys in dict.fromkeys(((case.block_m, case.block_n), *TILES)):
            words = f"the causal mask is left out within the tiles of {rows} rows and {keys} keys that are visited"
            yield "mask/causal", words, causal_by_tiles(rows, keys)
            words = f"one key beyond the diagonal is seen, within the tiles of {rows} rows and {keys} keys visited"
            yield "mask/beyond-diagonal", words, _both(causal(1), causal_by_tiles(rows, keys))
    else:
        yield "mask/causal", "a causal mask is applied where none was asked for", causal(0)
    for side, keys in (("left", left), ("right", right)):
        if keys >= 0:
            name = f"mask/window-{side}"
            yield name, f"the window reaches one key fewer to the {side}", _window(side, -1)
            yield name, f"the window reaches one key more to the {side}", _window(side, 1)
            yield name, f"the window's {side} end is left out", _window(side, None)
    if (x.causal or x.window) and x.n_query != x.n_key:
        yield "mask/align", "the diagonal ends in the other corner of the scores", _other_corner
    if x.seqlens is not None:
        yield "mask/length", "padded rows are not masked", _with(lambda terms: {"rows": terms["rows"] | True})
        yield "mask/length", "padded keys are not masked", _with(lambda terms: {"keys": terms["keys"] | True})
        unmasked = _with(lambda terms: {name: terms[name] | True for name in ("rows", "keys")})
        yield "mask/length", "padding is not masked", unmasked
    if x.mask is not None:
        yield "mask/mask", "the mask that is given is left out", _with(lambda terms: {"given": terms["given"] | True})
        yield "mask/mask", "the mask that is given is read with its meaning reversed", _reversed


def _terms(x: Attention, tile: Tile, shift: int = 0) -> Terms:
    i, j = x.positions(tile)
    diagonal, (left, right) = x.diagonal(tile) + shift, x.window or (-1, -1)
    yes = torch.ones_like(j <= diagonal)
    length = live_length(x, tile.batch)
    padded = x.seqlens is not None
    return {
        "causal": j <= diagonal if x.causal else yes,
        "left": j >= diagonal - left if left >= 0 else yes,
        "right": j <= diagonal + right if right >= 0 else yes,
        "rows": (i < length) & yes if padded else yes,
        "keys": (j < length) & yes if padded else yes,
        "given": yes[None] if x.mask is None else part(x.mask, tile),
    }


def _all(terms: Terms) -> Tensor:
    return reduce(and_, terms.values())


def _with(change: Callable[[Terms], Terms]) -> Rule:
    """The right rule with some of its terms replaced; what no term describes stays as it is."""

    def rule(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
        terms = _terms(x, tile)
        other = _all(terms | change(terms))
        return (valid & other) | (other & ~_all(terms))

    return rule


def causal(by: int | None) -> Rule:
    """A causal mask that reaches so many keys further, or none."""

    def rule(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
        _, j = x.positions(tile)
        reach = (j <= x.diagonal(tile) + by) if by is not None else (j == j) | (x.diagonal(tile) == j)

        return _with(lambda terms: {"causal": reach})(valid, x, tile)

    return rule


def causal_by_tiles(rows: int, keys: int) -> Rule:
    """A causal mask of whole tiles: a key is seen where the last row of a tile sees the tile's first key."""

    def rule(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
        i, j = x.positions(tile)
        last_row = x.diagonal(tile) + (rows - 1 - i % rows)
        return _with(lambda terms: {"causal": j // keys * keys <= last_row})(valid, x, tile)

    return rule


def _both(one: Rule, other: Rule) -> Rule:
    return lambda valid, x, tile: one(valid, x, tile) & other(valid, x, tile)


def _window(side: str, by: int | None) -> Rule:
    """A window with another end."""

    def rule(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
        _, j = x.positions(tile)
        assert x.window is not None
        reach = {"left": lambda n: j >= x.diagonal(tile) - n, "right": lambda n: j <= x.diagonal(tile) + n}[side]
        keys = x.window[side == "right"]
        seen = reach(keys + by) if by is not None else reach(x.n_query + x.n_key)
        return _with(lambda terms: {side: seen})(valid, x, tile)

    return rule


def _other_corner(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
    by = x.n_key - x.n_query
    here, there = _terms(x, tile), _terms(x, tile, shift=-by if x.align == "bottom-right" else by)
    return (valid & _all(there)) | (_all(there) & ~_all(here))


def _reversed(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
    assert x.mask is not None
    given = part(x.mask, tile)
    return _with(lambda terms: {"given": ~given})(valid, x, tile)


def _left_out(seen: Observed) -> Iterator[Hypothesis]:
    x = seen.x
    for name, words in {"bias": "the bias", "alibi": "the alibi slopes", "tau": "tau", "sinks": "the sinks"}.items():
        if getattr(x, name) is not None:
            alter = partial(_without, name)
            yield Hypothesis(f"mask/{name}", "M1", f"{words} left out", alter, _CHANGES | {"dSink"}, tensor=name)
            negated = partial(_negated, name)
            yield Hypothesis(f"mask/{name}", "M1", f"{words} taken with the other sign", negated, _CHANGES)
    if x.softcap is not None:
        summary = "the scores in P are not capped, though dS has the softcap's derivative"
        yield making("mask/softcap", "M1", summary, {"P": _uncapped})
        yield Hypothesis("mask/softcap", "M1", "the softcap left out", methodcaller("having", softcap=None), _CHANGES)
    if x.family == "lazy" and x.bias is not None and x.bias.shape[1] > 1:
        yield from _narrower_bias(seen, x.bias)


def _narrower_bias(seen: Observed, bias: Tensor) -> Iterator[Hypothesis]:
    """A bias that ends one distance early; and what came, where dBias is wrong in nothing but that."""
    fault, summary = "mask/bias-window", "the bias reaches one distance fewer: distance < window - 1"
    without: Hook = lambda value, scope: _without_the_last(value)  # noqa: E731

    def alter(variant: Variant) -> Variant:
        return variant.having(bias=_without_the_last(bias)).hooked(("dBias", without))

    yield Hypothesis(fault, "M1", summary, alter, _CHANGES | {"dBias"})
    if seen.own == ("dBias",) and not bool(seen.actual["dBias"][:, -1].any()):
        summary = "dBias is 0 at the last distance of every head: nothing was added there, as by distance < window - 1"
        drop = finishing(lambda values: {"dBias": _without_the_last(values["dBias"])})
        fix = "compare with distance < window"
        yield Hypothesis(fault, "M1", summary, drop, frozenset({"dBias"}), fix=fix, is_plain=True)


def _without_the_last(of_distances: Tensor) -> Tensor:
    kept = of_distances.clone()
    kept[:, -1] = 0.0
    return kept


def _uncapped(value: Tensor, scope: TileScope) -> Tensor:
    s, cap = scope.x.scale * scope.q @ scope.k.mT, scope.x.softcap
    assert cap is not None
    return value * (s - cap * (s / cap).tanh()).exp()


def _without(name: str, variant: Variant) -> Variant:
    tensor = getattr(variant.x, name)
    if name == "sinks":  # left out, it is a logit of minus infinity, and LSE is another
        without = variant.having(sinks=tensor.new_full(tensor.shape, -float("inf")))
        return without.hooked((USED + "LSE", lambda value, scope: scope.formula["LSE"]))
    return variant.having(**{name: tensor * 0})


def _negated(name: str, variant: Variant) -> Variant:
    return variant.having(**{name: -getattr(variant.x, name)})
