"""M1: the window of the lazy bias taken for one of the keys, or its last distance for all beyond."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller

import torch
from torch import Tensor

from ..reference import Attention, Tile
from .hypothesis import Hypothesis, Observed, making
from .variant import Hook, TileScope

_SIZES = (16, 32, 64, 128)
_CHANGES = frozenset({"LSE", "P", "O", "dP", "dV", "delta", "dTau"})


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Keys beyond the window left out, or biased as the last distance within it."""
    x = seen.x
    if x.family != "lazy" or x.bias is None or x.bias.shape[1] >= x.n_key:
        return
    fault, window, fix = "mask/bias-window", x.bias.shape[1], "attend to every key j <= i; the window is the bias's"
    words = f"the keys beyond the bias's window of {window} are left out"
    left_out = methodcaller("seeing", partial(_within, window))
    yield Hypothesis(fault, "M1", f"{words}, where they are attended without bias", left_out, _CHANGES, fix=fix)
    met = set[bytes]()
    for rows, keys in dict.fromkeys(
        ((seen.case.block_m, seen.case.block_n), *((m, n) for m in _SIZES for n in _SIZES))
    ):
        rule = partial(_in_tiles_within, window, rows, keys)
        reach = rule(torch.ones(1, dtype=torch.bool, device=x.q.device), x, Tile(0, slice(0, 1), slice(0, x.n_query)))
        if (key := reach.cpu().numpy().tobytes()) not in met and not bool(reach.all()):
            met.add(key)
            of_tiles = f"{words}, in whole tiles of {keys} keys, by tiles of {rows} rows"
            yield Hypothesis(fault, "M1", of_tiles, methodcaller("seeing", rule), _CHANGES, fix=fix)
    summary = "keys beyond the bias's window have the bias of its last distance, where they have none"
    hooks: dict[str, Hook] = {"LSE": lambda value, scope: (_scores(scope) + _beyond(scope)).logsumexp(-1)}
    hooks |= {"P": lambda value, scope: value * _beyond(scope).exp()}
    ways: tuple[dict[str, Hook], ...] = ({}, {"dBias": _with_all_beyond})
    for more in ways:
        fix = "add tl.where(distance < window, bias, 0.0)"
        yield making(fault, "M1", summary, {**hooks, **more}, also=("O", "dP"), fix=fix)


def _within(window: int, valid: Tensor, x: Attention, tile: Tile) -> Tensor:
    i, j = x.positions(tile)
    return valid & (i - j < window)


def _in_tiles_within(window: int, rows: int, keys: int, valid: Tensor, x: Attention, tile: Tile) -> Tensor:
    """What lies in a tile that holds any key of any row's window."""
    i, j = x.positions(tile)
    return valid & (i // rows * rows - (j // keys * keys + keys - 1) < window)


def _scores(scope: TileScope) -> Tensor:
    """[h, m, N] the scores, with their bias; -inf where masked."""
    x, (i, j) = scope.x, scope.x.positions(scope.tile)
    assert x.bias is not None
    window = x.bias.shape[1]
    bias = x.bias[scope.tile.heads][:, (i - j).clamp(0, window - 1)] * (i - j < window)
    return (x.scale * scope.q @ scope.k.mT + bias).masked_fill(~scope.valid, -torch.inf)


def _beyond(scope: TileScope) -> Tensor:
    """[h, m, N] the bias of the last distance for all that are further, 0 within the window."""
    x, (i, j) = scope.x, scope.x.positions(scope.tile)
    assert x.bias is not None
    return x.bias[scope.tile.heads, -1, None, None] * (i - j >= x.bias.shape[1])


def _with_all_beyond(value: Tensor, scope: TileScope) -> Tensor:
    """dBias whose last distance has the sum of all beyond, too."""
    i, j = scope.x.positions(scope.tile)
    added = value.clone()
    added[:, -1] += (scope.used["dS"] * (i - j >= value.shape[1])).sum((-2, -1))
    return added
