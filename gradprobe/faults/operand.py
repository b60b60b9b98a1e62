"""A: another operand in a product, one that should have been transposed, or one read at another row of its tile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS, steps, title
from .hypothesis import SIZES, Hypothesis, Observed
from .variant import TileScope

# (result, the operand meant, what may stand there)
_OTHERS = (
    ("dQ", "k", ("q", "v", "do")), ("dK", "q", ("k", "do", "v", "O")), ("dV", "do", ("O", "q", "v")),
    ("dQ", "dS", ("P", "dP")), ("dK", "dS", ("P", "dP")), ("dV", "P", ("dS", "dP", "P")),
    ("dP", "v", ("k",)), ("dP", "do", ("O", "q")), ("O", "v", ("k",)),
)  # fmt: skip
# (gradient, the operand meant, that of the same tile, what the sum runs over, what the gradient has one of)
_SUMS = (("dQ", "k", "q", "key", "row"), ("dK", "q", "k", "row", "key"), ("dV", "do", "v", "row", "key"))
# How `_summed` multiplies tiles: each turned; by the operand of the result's own tile; by one row of the other's.
_TURNED, _OF_OWN_TILE, _OF_OWN_ROW = "hrsji,hsjd->hrid", "hrsij,hrjd->hrid", "hrsij,hsid->hrid"


def others(seen: Observed) -> Iterator[Hypothesis]:
    """Every product with each other operand of the same shape."""
    formulas = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
    has_plain_p = seen.x.family != "lazy" and seen.x.keep is None  # where nothing stands in its place
    for result, meant, names in _OTHERS:
        for other in names:
            if _width(seen, meant) != _width(seen, other) or (meant == other and has_plain_p):
                continue
            made = f"product({result!r}, other={other})"
            if result == "dP":
                made = f"({f'{other} @ v.mT' if meant == 'do' else f'do @ {other}.mT'}) * valid"
            elif meant == PRODUCTS[result].matrix:
                made = f"product({result!r}, {other})"
            words = f"{formulas[result]} is made with {title(other)} in place of {title(meant)}"
            yield Hypothesis(f"operand/{result}", "A", words, {result: made}, formulas[result])


def _width(seen: Observed, name: str) -> torch.Size | None:
    """The shape of an operand in a tile, but for the heads; None of a matrix."""
    tensor = getattr(seen.x, {"O": "do"}.get(name, name), None)
    return None if tensor is None else tensor.shape[2:]


def by_tiles(seen: Observed) -> Iterator[Hypothesis]:
    """Products whose matrix is not transposed, that take the operand of their own tile, or one row throughout.

    In square tiles, as kernels compute: one row of each is that of a thread's own number, not the loop's.
    """
    whole = max(seen.x.n_query, seen.x.n_key)
    for size in dict.fromkeys((whole, seen.case.block_m, 8, *SIZES)):
        inside = f"tile by tile of {size}" if size < whole else "throughout"
        for result, meant, own, of_sum, of_result in _SUMS:
            of, tensor = PRODUCTS[result], title(meant)
            if size < whole or seen.x.n_query == seen.x.n_key:
                words = f"{result} is {of.turned.formula}, where {of.formula} is meant, {inside}"
                yield _making(f"transposed/{result}", words, result, meant, size, _TURNED)
            if size < whole and getattr(seen.x, meant).shape[-1] == getattr(seen.x, own).shape[-1]:
                words = f"{result} is made with {title(own)} in place of {tensor}, {inside}"
                yield _making(f"operand/{result}", words, result, own, size, _OF_OWN_TILE)
            words = f"{result} reads {tensor} at the number of its own {of_result}, not at each {of_sum} of its sum"
            fix = f"read {tensor} at the {of_sum} of the loop, not at that of the thread"
            yield _making(f"operand/{result}-row", f"{words}, {inside}", result, meant, size, _OF_OWN_ROW, fix)


def _making(fault: str, words: str, result: str, operand: str, size: int, how: str, fix: str = "") -> Hypothesis:
    return Hypothesis(fault, "A", words, {result: partial(_summed, result, operand, size, how)}, fix)


def _summed(result: str, name: str, size: int, how: str, t: TileScope) -> Tensor:
    """A gradient summed in square tiles in another way.

    Args:
        how: what is multiplied of the matrix [h, tiles of the result, of the sum, row in the one, in the other] and of
            the operand [h, tiles, row in it, d].
    """
    of, rows = PRODUCTS[result], t[result].shape[-2]
    matrix = t.operand(of.matrix)
    matrix = _cut(_cut(matrix.mT if of.is_transposed else matrix, size).mT, size).mT
    found: Tensor = torch.einsum(how, matrix, _cut(t.operand(name), size)).flatten(1, 2)[:, :rows]
    return t.x.scale * found if of.is_scaled else found


def _cut(rows: Tensor, size: int) -> Tensor:
    """[h, ..., rows, d] -> [h, ..., tiles, size, d], filled up with 0."""
    tiles: Tensor = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % size)).unflatten(-2, (-1, size))
    return tiles
