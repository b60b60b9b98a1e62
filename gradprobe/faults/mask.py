"""M1, N1: a kernel sees other keys than it should, or leaves out an input of the scores; rows that see no key."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from ..reference import Attention, Tile, tiles
from .hypothesis import SCORED, SIZES, Hypothesis, Observed, hiding, making, storing
from .tile import Effects, Keep, keeping, pairs, positions
from .variant import USED, Alter, Hook, Rule, TileScope, Variant


def comparisons(seen: Observed) -> Iterator[Hypothesis]:
    """Every comparison of the mask missing or off by one; and the other corner."""
    x = seen.x
    if x.causal:
        summary = "the key on the diagonal is masked: j < i stands where j <= i is meant"
        yield hiding("mask/diagonal", summary, causal(-1))
        for tile in ((0, 0), *pairs(seen.case)):
            inside = ", within the tiles of {} rows and {} keys that are visited".format(*tile) if all(tile) else ""
            yield hiding("mask/beyond-diagonal", f"one key beyond the diagonal is seen{inside}", causal(1, *tile))
            yield hiding("mask/causal", f"the causal mask is left out{inside}", causal(None, *tile))
    else:
        yield hiding("mask/causal", "a causal mask is applied where none was asked for", _with(causal=True))
    ends = x.window or (-1, -1)
    for side, keys in enumerate(ends):
        word = ("left", "right")[side]
        ways = {"reaches one key fewer": keys - 1, "reaches one key more": keys + 1, "has no end": -1}
        for words, reach in ways.items() if keys >= 0 else ():
            window = (reach, ends[1]) if side == 0 else (ends[0], reach)
            if keys or words != "reaches one key fewer":
                yield hiding(f"mask/window-{word}", f"the window {words} to the {word}", _with(window=window))
    if (x.causal or x.window) and x.n_query != x.n_key:
        other = "top-left" if x.align == "bottom-right" else "bottom-right"
        yield hiding("mask/align", "the diagonal ends in the other corner of the scores", _with(align=other))
    if x.seqlens is not None:
        yield hiding("mask/length", "padded rows are not masked", _of_live(lambda at: at.j < at.n_keys))
        yield hiding("mask/length", "padded keys are not masked", _of_live(lambda at: at.i < at.n_rows))
        yield hiding("mask/length", "padding is not masked", _with(seqlens=None))
    if x.mask is not None:
        yield hiding("mask/mask", "the mask that is given is left out", _with(mask=None))
        yield hiding("mask/mask", "the mask that is given is read with its meaning reversed", _with(mask=~x.mask))


def _valid(x: Attention, tile: Tile, **options: Any) -> Tensor:
    """What is seen by other options, also where the family has no others."""
    other = copy(x)
    other.__dict__.update(options)
    return Attention.valid(other, tile)


def _with(**options: Any) -> Rule:
    return lambda valid, x, tile: _valid(x, tile, **options)


def _of_live(keep: Keep) -> Rule:
    """What is seen without lengths, of which some is kept."""
    return lambda valid, x, tile: _valid(x, tile, seqlens=None) & keep(positions(x, tile))


def causal(by: int | None, rows: int = 0, keys: int = 0) -> Rule:
    """A causal mask that reaches so many keys further, or none; of whole tiles where these have a size."""

    def rule(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
        at, seen = positions(x, tile), _valid(x, tile, causal=False)
        seen = seen if by is None else seen & (at.j <= at.diagonal + by)
        return seen & at.tile_sees(rows, keys) if rows else seen

    return rule


def left_out(seen: Observed) -> Iterator[Hypothesis]:
    """Inputs of the scores left out, or taken with the other sign."""
    x = seen.x
    for name, words in {"bias": "the bias", "alibi": "the alibi slopes", "tau": "tau", "sinks": "the sinks"}.items():
        if getattr(x, name) is not None:
            without: Alter = _without_sinks if name == "sinks" else partial(_times, name, 0.0)
            summary, fault = f"{words} left out", f"mask/{name}"
            yield Hypothesis(fault, "M1", summary, without, SCORED | {"dSink"}, tensor=name)
            yield Hypothesis(fault, "M1", f"{words} taken with the other sign", partial(_times, name, -1.0), SCORED)
    if x.softcap is not None:
        summary = "the scores in P are not capped, though dS has the softcap's derivative"
        yield making("mask/softcap", "M1", summary, {"P": _uncapped})
        yield Hypothesis("mask/softcap", "M1", "the softcap left out", methodcaller("having", softcap=None), SCORED)


def _times(name: str, by: float, variant: Variant) -> Variant:
    return variant.having(**{name: getattr(variant.x, name) * by})


def _without_sinks(variant: Variant) -> Variant:
    """Left out, a sink is a logit of minus infinity, and LSE is another."""
    sinks = variant.x.sinks
    assert sinks is not None
    without = variant.having(sinks=torch.full_like(sinks, -torch.inf))
    return without.hooked({USED + "LSE": lambda v, t: t.formula["LSE"]})


def _uncapped(value: Tensor, t: TileScope) -> Tensor:
    s, cap = t.x.scale * t.q @ t.k.mT, t.x.softcap
    assert cap is not None
    return value * (s - cap * (s / cap).tanh()).exp()


_BIAS_WINDOW = "mask/bias-window"


def bias_windows(seen: Observed) -> Iterator[Hypothesis]:
    """A bias of the lazy family that ends one distance early, hides the keys beyond it, or goes on beyond it."""
    x = seen.x
    if x.family != "lazy" or x.bias is None:
        return
    window, fix = x.bias.shape[1], "compare with distance < window"
    if window > 1:
        short = partial(_shorter, x.bias)
        summary = "the bias reaches one distance fewer: distance < window - 1"
        yield Hypothesis(_BIAS_WINDOW, "M1", summary, short, SCORED | {"dBias"}, fix)
        if seen.own == ("dBias",) and not bool(seen.actual["dBias"][:, -1].any()):
            summary = (
                "dBias is 0 at the last distance of every head: nothing was added there, as by distance < window - 1"
            )
            finish = lambda of: {"dBias": _without_last(of["dBias"])}  # noqa: E731
            yield storing(_BIAS_WINDOW, "M1", summary, ["dBias"], finish, fix, is_plain=True)
    if window >= x.n_key:
        return
    words, effects = f"the keys beyond the bias's window of {window} are left out", Effects(x)
    fix = "attend to every key j <= i; the window is the bias's"
    for m, n in ((1, 1), *pairs(seen.case)):
        # What lies in a tile that holds any key of any row's window.
        keep = lambda at, m=m, n=n: at.i // m * m - (at.j // n * n + n - 1) < window  # noqa: E731
        if effects.is_new(keep):
            of_tiles = f", in whole tiles of {n} keys, by tiles of {m} rows" if n > 1 else ""
            yield hiding(_BIAS_WINDOW, words + of_tiles, keeping(keep), fix, SCORED | {"dTau"})
    summary = "keys beyond the bias's window have the bias of its last distance, where they have none"
    hooks: dict[str, Hook] = {
        "LSE": lambda v, t: (t.s + _last_bias(t)).logsumexp(-1),
        "P": lambda v, t: v * _last_bias(t).exp(),
    }
    fix = "add tl.where(distance < window, bias, 0.0)"
    for more in ({}, {"dBias": _with_all_beyond}):
        yield making(_BIAS_WINDOW, "M1", summary, hooks | more, fix, {"LSE", "P", "O", "dP", *more})


def _shorter(bias: Tensor, variant: Variant) -> Variant:
    return variant.having(bias=_without_last(bias)).hooked({"dBias": lambda v, t: _without_last(v)})


def _without_last(of_distances: Tensor) -> Tensor:
    kept = of_distances.clone()
    kept[:, -1] = 0.0
    return kept


def _last_bias(t: TileScope) -> Tensor:
    """[h, m, N] the bias of the last distance for all that are further, 0 within the window."""
    assert t.x.bias is not None
    return t.x.bias[t.tile.heads, -1, None, None] * (t.i - t.j >= t.x.bias.shape[1])


def _with_all_beyond(value: Tensor, t: TileScope) -> Tensor:
    """dBias whose last distance has the sum of all beyond, too."""
    added = value.clone()
    added[:, -1] += (t.dS * (t.i - t.j >= value.shape[1])).sum((-2, -1))
    return added


DEAD_FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def rows_without_keys(seen: Observed) -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    if all(bool(seen.x.valid(tile).any(-1).all()) for tile in tiles(seen.x)):
        return
    ways = [(f"NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0", {step: _nan()}) for step in ("LSE", "O", "P")]
    for m, n in dict.fromkeys(((seen.case.block_m, seen.case.block_n), *((size, size) for size in SIZES[1:]))):
        ways.append((f"NaN in P, and spread within tiles of {m} rows and {n} keys", {"P": _nan(m, n)}))
    for words, hooks in ways:
        yield making("dead/nan", "N1", f"rows that see no key are {words}", hooks, DEAD_FIX, not_finite=True)
    # A key weighs a share of all keys, or of whole tiles; in P 1 where LSE is too large for log N to be added.
    summary = "rows that see no key weigh every key alike: their scores are all the same finite number"
    shares = [1.0, *dict.fromkeys(1 / (-(-seen.x.n_key // size) * size) for size in (1, *SIZES))]
    for weight, of_output in dict.fromkeys(
        (*((share, share) for share in shares), *((1.0, share) for share in shares))
    ):
        for unmasked in ({}, {"dP": lambda v, t: t.dpe}):
            hooks = _weighing(weight, of_output) | unmasked
            yield making("dead/uniform", "N1", summary, hooks, DEAD_FIX, ("P", "O"))


def _dead(t: TileScope) -> Tensor:
    """[h or 1, m, 1] bool."""
    return ~t.valid.any(-1, keepdim=True)


def _nan(rows: int = 0, keys: int = 0) -> Hook:
    """NaN in the rows that see no key; within tiles that a causal mask lets see any key, where these have a size."""

    def hook(value: Tensor, t: TileScope) -> Tensor:
        dead = _dead(t) if value.dim() == 3 else _dead(t)[..., 0]
        dead = dead & positions(t.x, t.tile).tile_sees(rows, keys) if t.x.causal and rows else dead
        return value.masked_fill(dead.expand(value.shape), torch.nan)

    return hook


def _weighing(weight: float, of_output: float) -> dict[str, Hook]:
    return {
        "P": lambda v, t: v.where(~_dead(t), v.new_full((), weight)),
        "O": lambda v, t: v.where(~_dead(t), of_output * t.v.sum(-2, keepdim=True)),
    }
