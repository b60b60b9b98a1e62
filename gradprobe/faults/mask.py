"""M1, N1: a kernel sees other keys than it should, or leaves out an input of the scores; rows that see no key."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..reference import tiles
from .hypothesis import SCORED, SIZES, Hypothesis, Observed, pairs
from .tile import Effects
from .variant import Formula, TileScope


def hiding(fault: str, summary: str, sees: str, fix: str = "", *more: str) -> Hypothesis:
    """The fault that rows see other keys."""
    return Hypothesis(fault, "M1", summary, fix=fix, wrong=SCORED | set(more), sees=sees)


def comparisons(seen: Observed) -> Iterator[Hypothesis]:
    """Every comparison of the mask missing or off by one; and the other corner."""
    x, every = seen.x, "visible(causal=False)"
    if x.causal:
        summary = "the key on the diagonal is masked: j < i stands where j <= i is meant"
        yield hiding("mask/diagonal", summary, f"{every} & (j < diagonal)")
        for m, n in ((0, 0), *pairs(seen.case)):
            inside = f", within the tiles of {m} rows and {n} keys that are visited" if m else ""
            visited = f"{every} & tile_sees({m}, {n})" if m else every
            summary = f"one key beyond the diagonal is seen{inside}"
            yield hiding("mask/beyond-diagonal", summary, f"{visited} & (j <= diagonal + 1)")
            yield hiding("mask/causal", f"the causal mask is left out{inside}", visited)
    else:
        yield hiding("mask/causal", "a causal mask is applied where none was asked for", "visible(causal=True)")
    for side, keys in enumerate(x.window or ()):
        for words, reach in (
            ("reaches one key fewer", keys - 1),
            ("reaches one key more", keys + 1),
            ("has no end", -1),
        ):
            window, word = [*(x.window or ())], ("left", "right")[side]
            window[side] = reach
            if keys > 0 or (keys == 0 and words != "reaches one key fewer"):
                yield hiding(f"mask/window-{word}", f"the window {words} to the {word}", f"visible(window={window})")
    if (x.causal or x.window) and x.n_query != x.n_key:
        other = "top-left" if x.align == "bottom-right" else "bottom-right"
        summary = "the diagonal ends in the other corner of the scores"
        yield hiding("mask/align", summary, f"visible(align={other!r})")
    if x.seqlens is not None:
        padded = "visible(seqlens=None)"
        yield hiding("mask/length", "padded rows are not masked", f"{padded} & (j < n_keys)")
        yield hiding("mask/length", "padded keys are not masked", f"{padded} & (i < n_rows)")
        yield hiding("mask/length", "padding is not masked", padded)
    if x.mask is not None:
        yield hiding("mask/mask", "the mask that is given is left out", "visible(mask=None)")
        summary = "the mask that is given is read with its meaning reversed"
        yield hiding("mask/mask", summary, "visible(mask=~x.mask)")


_INPUTS = {"bias": "the bias", "alibi": "the alibi slopes", "tau": "tau", "sinks": "the sinks"}


def left_out(seen: Observed) -> Iterator[Hypothesis]:
    """Inputs of the scores left out, or taken with the other sign."""
    for name, words in _INPUTS.items():
        tensor, fault, wrong = getattr(seen.x, name), f"mask/{name}", SCORED | {"dSink"}
        if tensor is not None:
            # Left out, a sink is a logit of minus infinity, and LSE another than was stored.
            nothing, made = tensor * 0.0, dict[str, Formula]()
            if name == "sinks":
                nothing, made = nothing - torch.inf, {"LSE": "formula"}
            without, turned = {name: nothing}, {name: -tensor}
            yield Hypothesis(fault, "M1", f"{words} left out", made, wrong=wrong, reads=without, tensor=name)
            yield Hypothesis(fault, "M1", f"{words} taken with the other sign", wrong=SCORED, reads=turned)
    if seen.x.softcap is not None:
        made = {"P": "P * (scores - softcap * tanh).exp()"}
        summary = "the scores in P are not capped, though dS has the softcap's derivative"
        yield Hypothesis("mask/softcap", "M1", summary, made)
        yield Hypothesis("mask/softcap", "M1", "the softcap left out", wrong=SCORED, reads={"softcap": None})


_BIAS_WINDOW = "mask/bias-window"


def bias_windows(seen: Observed) -> Iterator[Hypothesis]:
    """A bias of the lazy family that ends one distance early, hides the keys beyond it, or goes on beyond it."""
    bias = seen.x.bias
    if seen.x.family != "lazy" or bias is None:
        return
    window, fix = bias.shape[1], "compare with distance < window"
    if window > 1:
        # dBias is 0 at the last distance then; where that alone is wrong, nothing else was read so.
        alone = seen.own == ("dBias",) and not bool(seen.actual["dBias"][:, -1].any())
        summary = "the bias reaches one distance fewer: distance < window - 1"
        made: dict[str, Formula] = {"dBias": _without_last}
        yield Hypothesis(
            _BIAS_WINDOW, "M1", summary, made, fix, ("dBias",) if alone else SCORED | {"dBias"},
            reads={} if alone else {"bias": _cut(bias)}, is_plain=alone,
        )  # fmt: skip
    if window >= seen.x.n_key:
        return
    words, effects = f"the keys beyond the bias's window of {window} are left out", Effects(seen.x)
    fix = "attend to every key j <= i; the window is the bias's"
    for m, n in ((1, 1), *pairs(seen.case)):
        # What lies in a tile that holds any key of any row's window.
        kept = f"i // {m} * {m} - (j // {n} * {n} + {n - 1}) < {window}"
        if effects.is_new(kept):
            of_tiles = f", in whole tiles of {n} keys, by tiles of {m} rows" if n > 1 else ""
            yield hiding(_BIAS_WINDOW, words + of_tiles, f"valid & ({kept})", fix, "dTau")
    summary = "keys beyond the bias's window have the bias of its last distance, where they have none"
    last = "x.bias[tile.heads, -1, None, None] * (i - j >= x.bias.shape[1])"
    of_last: dict[str, Formula] = {"LSE": f"(s + {last}).logsumexp(-1)", "P": f"P * ({last}).exp()"}
    fix = "add tl.where(distance < window, bias, 0.0)"
    for more in ({}, {"dBias": _with_all_beyond}):
        yield Hypothesis(_BIAS_WINDOW, "M1", summary, of_last | more, fix, ("LSE", "P", "O", "dP", *more))


def _cut(of_distances: Tensor) -> Tensor:
    kept = of_distances.clone()
    kept[:, -1] = 0.0
    return kept


def _without_last(t: TileScope) -> Tensor:
    return _cut(t.dBias)


def _with_all_beyond(t: TileScope) -> Tensor:
    """dBias whose last distance has the sum of all beyond, too."""
    added: Tensor = t.dBias.clone()
    added[:, -1] += (t.dS * (t.i - t.j >= added.shape[1])).sum((-2, -1))
    return added


DEAD_FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def rows_without_keys(seen: Observed) -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    if all(bool(seen.x.valid(tile).any(-1).all()) for tile in tiles(seen.x)):
        return
    ways = [(f"NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0", step, "dead") for step in ("LSE", "O", "P")]
    own = seen.case.block_m, seen.case.block_n
    for m, n in dict.fromkeys((own, *((size, size) for size in SIZES[1:]))):
        inside = f"dead & tile_sees({m}, {n})" if seen.x.causal else "dead"
        ways.append((f"NaN in P, and spread within tiles of {m} rows and {n} keys", "P", inside))
    for words, step, where in ways:
        value = f"{step}.masked_fill(({where}).expand({step}.shape), nan)"
        value = value.replace("dead", "dead[..., 0]") if step == "LSE" else value
        summary = f"rows that see no key are {words}"
        yield Hypothesis("dead/nan", "N1", summary, {step: value}, DEAD_FIX, not_finite=True)
    # A key weighs a share of all keys, or of whole tiles; in P 1 where LSE is too large for log N to be added.
    shares = [1.0, *dict.fromkeys(1 / (-(-seen.x.n_key // size) * size) for size in (1, *SIZES))]
    weights = dict.fromkeys((*((share, share) for share in shares), *((1.0, share) for share in shares)))
    summary = "rows that see no key weigh every key alike: their scores are all the same finite number"
    for weight, of_output in weights:
        made: dict[str, Formula] = {
            "P": f"P.masked_fill(dead, {weight})", "O": f"O.where(~dead, {of_output} * v.sum(-2, keepdim=True))",
        }  # fmt: skip
        for unmasked in ({}, {"dP": "dpe"}):
            yield Hypothesis("dead/uniform", "N1", summary, made | unmasked, DEAD_FIX, ("P", "O"))
