"""M1, N1: a kernel sees other keys than it should, or leaves out an input of the scores; rows that see no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import product
from operator import and_, methodcaller

import torch
from torch import Tensor

from ..reference import Attention, Tile, live_length, tiles
from ..reference.problem import part
from .hypothesis import SCORED, SIZES, Hypothesis, Observed, hiding, making, storing
from .tile import Effects, Positions, keeping, pairs, positions
from .variant import USED, Alter, Finish, Hook, Rule, TileScope, Variant

Terms = dict[str, Tensor | bool]
"""What the mask of a tile is made of, by name, each [h or 1, m, N] or what broadcasts to it."""


def comparisons(seen: Observed) -> Iterator[Hypothesis]:
    """Every comparison of the mask missing or off by one; and the other corner."""
    x = seen.x
    if x.causal:
        summary = "the key on the diagonal is masked: j < i stands where j <= i is meant"
        yield hiding("mask/diagonal", summary, causal(-1))
        yield hiding("mask/beyond-diagonal", "one key beyond the diagonal is seen", causal(1))
        yield hiding("mask/causal", "the causal mask is left out", causal(None))
        for m, n in pairs(seen.case):
            summary = f"the causal mask is left out within the tiles of {m} rows and {n} keys that are visited"
            yield hiding("mask/causal", summary, causal(None, m, n))
            summary = f"one key beyond the diagonal is seen, within the tiles of {m} rows and {n} keys visited"
            yield hiding("mask/beyond-diagonal", summary, causal(1, m, n))
    else:
        yield hiding("mask/causal", "a causal mask is applied where none was asked for", causal(0))
    for side, keys in zip(("left", "right"), x.window or (-1, -1), strict=True):
        if keys >= 0:
            fault, reaches = f"mask/window-{side}", f"the window reaches one key {{}} to the {side}"
            yield hiding(fault, reaches.format("fewer"), _window(side, keys - 1))
            yield hiding(fault, reaches.format("more"), _window(side, keys + 1))
            yield hiding(fault, f"the window's {side} end is left out", _window(side, None))
    if (x.causal or x.window) and x.n_query != x.n_key:
        by = (x.n_key - x.n_query) * (-1 if x.align == "bottom-right" else 1)
        rule = _with(lambda x, at, terms: _along(x, at, at.diagonal + by))
        yield hiding("mask/align", "the diagonal ends in the other corner of the scores", rule)
    if x.seqlens is not None:
        for names, what in ((("rows",), "padded rows are"), (("keys",), "padded keys are"), (_PADDED, "padding is")):
            yield hiding("mask/length", f"{what} not masked", _without_terms(*names))
    if x.mask is not None:
        yield hiding("mask/mask", "the mask that is given is left out", _without_terms("given"))
        reverse = _with(lambda x, at, terms: {"given": terms["given"] ^ True})
        yield hiding("mask/mask", "the mask that is given is read with its meaning reversed", reverse)


_PADDED = ("rows", "keys")


def _along(x: Attention, at: Positions, diagonal: Tensor) -> Terms:
    """The terms that are counted from a diagonal."""
    left, right = x.window or (-1, -1)
    return {
        "causal": at.j <= diagonal if x.causal else True,
        "left": at.j >= diagonal - left if left >= 0 else True,
        "right": at.j <= diagonal + right if right >= 0 else True,
    }


def _terms(x: Attention, tile: Tile, at: Positions) -> Terms:
    length, padded = live_length(x, tile.batch), x.seqlens is not None
    terms = {"rows": at.i < length if padded else True, "keys": at.j < length if padded else True}
    everything = (at.i >= 0) & (at.j >= 0)
    return {**_along(x, at, at.diagonal), **terms, "given": everything[None] if x.mask is None else part(x.mask, tile)}


def _all(terms: Terms) -> Tensor:
    every: Tensor = reduce(and_, terms.values())  # type: ignore[assignment]
    return every


def _with(change: Callable[[Attention, Positions, Terms], Terms]) -> Rule:
    """The right rule with some of its terms replaced; what no term describes stays as it is."""

    def rule(valid: Tensor, x: Attention, tile: Tile) -> Tensor:
        at = positions(x, tile)
        terms = _terms(x, tile, at)
        other = _all(terms | change(x, at, terms))
        return (valid & other) | (other & ~_all(terms))

    return rule


def _without_terms(*names: str) -> Rule:
    return _with(lambda x, at, terms: dict.fromkeys(names, True))


def causal(by: int | None, rows: int = 0, keys: int = 0) -> Rule:
    """A causal mask that reaches so many keys further, or none; of whole tiles where these have a size."""

    def change(x: Attention, at: Positions, terms: Terms) -> Terms:
        reach = at.j <= at.diagonal + (x.n_query + x.n_key if by is None else by)
        return {"causal": reach & at.tile_sees(rows, keys) if rows else reach}

    return _with(change)


def _window(side: str, keys: int | None) -> Rule:
    """A window with another end, or none."""
    if keys is None:
        return _without_terms(side)
    if side == "left":
        return _with(lambda x, at, terms: {side: at.j >= at.diagonal - keys})
    return _with(lambda x, at, terms: {side: at.j <= at.diagonal + keys})


def left_out(seen: Observed) -> Iterator[Hypothesis]:
    """Inputs of the scores left out, or taken with the other sign."""
    x = seen.x
    for name, words in {"bias": "the bias", "alibi": "the alibi slopes", "tau": "tau", "sinks": "the sinks"}.items():
        if getattr(x, name) is not None:
            fault, changes = f"mask/{name}", SCORED | {"dSink"}
            without: Alter = _without_sinks if name == "sinks" else partial(_times, name, 0.0)
            yield Hypothesis(fault, "M1", f"{words} left out", without, changes, tensor=name)
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


def window_short_by_one(seen: Observed) -> Iterator[Hypothesis]:
    """A bias that ends one distance early; and what came, where dBias is wrong in nothing but that."""
    bias = seen.x.bias
    if seen.x.family != "lazy" or bias is None or bias.shape[1] < 2:
        return
    short, drop = _shortened(bias), {"dBias": lambda v, t: _shortened(v)}
    summary = "the bias reaches one distance fewer: distance < window - 1"
    alter: Alter = lambda variant: variant.having(bias=short).hooked(drop)  # noqa: E731
    yield Hypothesis(_BIAS_WINDOW, "M1", summary, alter, SCORED | {"dBias"})
    if seen.own == ("dBias",) and not bool(seen.actual["dBias"][:, -1].any()):
        summary = "dBias is 0 at the last distance of every head: nothing was added there, as by distance < window - 1"
        finish: Finish = lambda of: {"dBias": _shortened(of["dBias"])}  # noqa: E731
        fix = "compare with distance < window"
        yield storing(_BIAS_WINDOW, "M1", summary, ["dBias"], finish, fix, is_plain=True)


def _shortened(of_distances: Tensor) -> Tensor:
    kept = of_distances.clone()
    kept[:, -1] = 0.0
    return kept


def beyond_the_window(seen: Observed) -> Iterator[Hypothesis]:
    """Keys beyond the window left out, or biased as the last distance within it."""
    x = seen.x
    if x.family != "lazy" or x.bias is None or x.bias.shape[1] >= x.n_key:
        return
    window, effects, fix = x.bias.shape[1], Effects(x), "attend to every key j <= i; the window is the bias's"
    words, changes = f"the keys beyond the bias's window of {window} are left out", SCORED | {"dTau"}
    alone = f"{words}, where they are attended without bias"
    yield hiding(_BIAS_WINDOW, alone, keeping(lambda at: at.i - at.j < window), fix, changes)
    for rows, keys in pairs(seen.case):
        keep = partial(_in_tiles_within, window, rows, keys)
        if effects.is_new(keep):
            of_tiles = f"{words}, in whole tiles of {keys} keys, by tiles of {rows} rows"
            yield hiding(_BIAS_WINDOW, of_tiles, keeping(keep), fix, changes)
    summary = "keys beyond the bias's window have the bias of its last distance, where they have none"
    hooks: dict[str, Hook] = {
        "LSE": lambda v, t: (_scores(t) + _last_bias(t)).logsumexp(-1),
        "P": lambda v, t: v * _last_bias(t).exp(),
    }
    fix = "add tl.where(distance < window, bias, 0.0)"
    changes = frozenset({"LSE", "P", "O", "dP"})
    yield making(_BIAS_WINDOW, "M1", summary, hooks, fix, changes)
    hooks = {**hooks, "dBias": _with_all_beyond}
    yield making(_BIAS_WINDOW, "M1", summary, hooks, fix, changes | {"dBias"})


def _in_tiles_within(window: int, rows: int, keys: int, at: Positions) -> Tensor:
    """What lies in a tile that holds any key of any row's window."""
    return at.i // rows * rows - (at.j // keys * keys + keys - 1) < window


def _scores(t: TileScope) -> Tensor:
    """[h, m, N] the scores, with their bias; -inf where masked."""
    bias, distance = t.x.bias, t.i - t.j
    assert bias is not None
    window = bias.shape[1]
    inside = bias[t.tile.heads][:, distance.clamp(0, window - 1)] * (distance < window)
    return (t.x.scale * t.q @ t.k.mT + inside).masked_fill(~t.valid, -torch.inf)


def _last_bias(t: TileScope) -> Tensor:
    """[h, m, N] the bias of the last distance for all that are further, 0 within the window."""
    assert t.x.bias is not None
    return t.x.bias[t.tile.heads, -1, None, None] * (t.i - t.j >= t.x.bias.shape[1])


def _with_all_beyond(value: Tensor, t: TileScope) -> Tensor:
    """dBias whose last distance has the sum of all beyond, too."""
    added = value.clone()
    added[:, -1] += (t.dS * (t.i - t.j >= value.shape[1])).sum((-2, -1))
    return added


_NUMBERS = (-60.0, -100.0, -1000.0)
_WHOLE = (1 << 20, 1 << 20)
_DP_UNMASKED: dict[str, Hook] = {"dP": lambda v, t: t.dpe}
DEAD_FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def rows_without_keys(seen: Observed) -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    if all(bool(seen.x.valid(tile).any(-1).all()) for tile in tiles(seen.x)):
        return
    ways = [(f"NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0", {step: _nan()}) for step in ("LSE", "O", "P")]
    for m, n in _squares(seen):
        ways.append((f"NaN in P, and spread within tiles of {m} rows and {n} keys", {"P": _nan(m, n)}))
    for words, hooks in ways:
        yield making("dead/nan", "N1", f"rows that see no key are {words}", hooks, DEAD_FIX, not_finite=True)
    # A key weighs a share of all keys, or of whole tiles; 1 where LSE is too large for log N to be added.
    weights = [1.0, *dict.fromkeys(1 / (-(-seen.x.n_key // size) * size) for size in (1, *SIZES))]
    summary = "rows that see no key weigh every key alike: their scores are all the same finite number"
    for weight, of_output, masks_dp in product(weights, weights, (False, True)):
        hooks = _weighing(weight, of_output) | ({} if masks_dp else _DP_UNMASKED)
        yield making("dead/uniform", "N1", summary, hooks, DEAD_FIX, ("P", "O"))


def _squares(seen: Observed) -> list[tuple[int, int]]:
    own = seen.case.block_m, seen.case.block_n
    return [*dict.fromkeys((own, *((size, size) for size in SIZES[1:])))]


def _dead(t: TileScope) -> Tensor:
    """[h or 1, m, 1] bool."""
    return ~t.valid.any(-1, keepdim=True)


def _nan(rows: int = 0, keys: int = 0) -> Hook:
    """NaN in the rows that see no key; within tiles, where these have a size."""

    def hook(value: Tensor, t: TileScope) -> Tensor:
        dead = _dead(t) if value.dim() == 3 else _dead(t)[..., 0]
        return value.masked_fill((dead & _visited(t, rows, keys)).expand(value.shape), torch.nan)

    return hook


def _weighing(weight: float, of_output: float) -> dict[str, Hook]:
    return {
        "P": lambda v, t: v.where(~_dead(t), v.new_full((), weight)),
        "O": lambda v, t: v.where(~_dead(t), of_output * t.v.sum(-2, keepdim=True)),
    }


def _visited(t: TileScope, rows: int, keys: int) -> Tensor | bool:
    """[m, N] bool: what lies in a tile in which a causal mask lets any row see any key."""
    return positions(t.x, t.tile).tile_sees(rows, keys) if t.x.causal and rows else True


def finite_masks(seen: Observed) -> Iterator[Hypothesis]:
    """Masked scores of one finite number: the one that P shows where it is exposed, else those in use."""
    shown = _shown_number(seen)
    for number in _NUMBERS if shown is None else (shown,):
        for m, n in (*_squares(seen), _WHOLE):
            summary = f"masked scores are {number:.6g} and not -inf: they weigh something"
            # The lazy family masks dP itself: what weighs next to nothing there does not reach dTau.
            hooks = {"P": _masked_with(number, m, n)} | (_DP_UNMASKED if seen.x.tau is None else {})
            yield making("mask/finite", "M1", summary, hooks, "mask with -inf", ("P", "O", "LSE"))


def _shown_number(seen: Observed) -> float | None:
    """The score that masked entries of P have, where there is one."""
    if "P" not in seen.own:
        return None
    numbers: list[float] = []
    for b, tile in enumerate(tiles(seen.x)):
        wrong = ~seen.x.valid(tile) & ~seen.right["P"][b] & (seen.actual["P"][b] > 0)
        numbers += (seen.actual["P"][b].log() + _finite(seen.expected["LSE"][b])[..., None])[wrong].tolist()
    alike = numbers and max(numbers) - min(numbers) < 1e-3 * max(1.0, abs(numbers[0]))
    return float(f"{numbers[0]:.5g}") if alike else None


def _finite(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)


def _masked_with(number: float, rows: int, keys: int) -> Hook:
    """P with another number than -inf where masked, in the tiles that hold anything that is seen."""

    def hook(value: Tensor, t: TileScope) -> Tensor:
        masked = (number - _finite(t.LSE)[..., None]).exp() * _visited(t, rows, keys)
        return value.where(t.valid.expand(value.shape), masked.expand(value.shape))

    return hook
