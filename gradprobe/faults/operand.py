"""A: another operand in a product, one that should have been transposed, or one read at another row of its tile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS, steps, title
from .hypothesis import SIZES, Hypothesis, Observed, making
from .variant import Hook, TileScope

# (result, the operand meant, what may stand there)
_OTHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
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
            if _width(seen, meant) == _width(seen, other) and not (meant == other and has_plain_p):
                words = f"{formulas[result]} is made with {title(other)} in place of {title(meant)}"
                hook = partial(_with_other, result, meant, other)
                yield making(f"operand/{result}", "A", words, {result: hook}, formulas[result])


def _width(seen: Observed, name: str) -> torch.Size | None:
    """The shape of an operand in a tile, but for the heads; None of a matrix."""
    tensor = getattr(seen.x, {"O": "do"}.get(name, name), None)
    return None if tensor is None else tensor.shape[2:]


def _with_other(result: str, meant: str, other: str, value: Tensor, t: TileScope) -> Tensor:
    taken: Tensor = getattr(t, other)
    if result == "dP":
        return (taken @ t.v.mT if meant == "do" else t.do @ taken.mT) * t.valid
    return t.product(result, **{"matrix" if meant == PRODUCTS[result].matrix else "other": taken})


def transposed(seen: Observed) -> Iterator[Hypothesis]:
    """Whole matrices, and rows taken for columns."""
    if seen.x.n_query != seen.x.n_key:
        return
    ways: list[tuple[str, str, Hook]] = []
    for name in ("dV", "dK", "dQ"):
        of = PRODUCTS[name]
        whole = partial(_summed, name, of.other, seen.x.n_query, _TURNED)
        ways.append((name, f"{of.turned.formula}, where {of.formula} is meant", whole))
    ways += [
        ("dS", "P^T * (dP - delta)", lambda v, t: t.P.mT * t.spread),
        ("dS", "P * (dP^T - delta)", lambda v, t: t.P * (t.dP.mT - t.delta[..., None])),
        ("dS", "P * (dP - delta) with delta along the keys", lambda v, t: t.P * (t.dP - t.delta[..., None, :])),
        ("P", "exp(S - LSE) with LSE along the keys",
         lambda v, t: v * (t.LSE[..., None] - t.LSE[..., None, :]).exp()),
    ]  # fmt: skip
    for result, words, hook in ways:
        yield making(f"transposed/{result}", "A", f"{result} is {words}", {result: hook})


def by_tiles(seen: Observed) -> Iterator[Hypothesis]:
    """Square tiles, as kernels compute, that are not transposed, or multiplied by the operand of their own tile."""
    for size in dict.fromkeys((seen.case.block_m, *SIZES)):
        for result, *_ in _SUMS:
            words = f"{result} is made with each tile of {size} x {size} transposed the wrong way round"
            hook = partial(_summed, result, PRODUCTS[result].other, size, _TURNED)
            yield making(f"transposed/{result}", "A", words, {result: hook})
        for result, meant, own, *_ in _SUMS:
            if getattr(seen.x, meant).shape[-1] == getattr(seen.x, own).shape[-1]:
                words = f"{result} is made with {title(own)} in place of {title(meant)}, tile by tile of {size}"
                hook = partial(_summed, result, own, size, _OF_OWN_TILE)
                yield making(f"operand/{result}", "A", words, {result: hook})


def own_rows(seen: Observed) -> Iterator[Hypothesis]:
    """Sums that read one row of each tile of the other operand throughout: of a thread's own number, not the loop's."""
    whole = max(seen.x.n_query, seen.x.n_key)
    for result, meant, _, of_sum, of_result in _SUMS:
        for size in dict.fromkeys((seen.case.block_m, 8, *SIZES, whole)):
            inside = f"in each tile of {size} {of_sum}s" if size < whole else "throughout"
            number = f"the number of its own {of_result} {inside}"
            words = f"{result} reads {title(meant)} at {number}, not at each {of_sum} of its sum"
            fix = f"read {title(meant)} at the {of_sum} of the loop, not at that of the thread"
            hook = partial(_summed, result, meant, size, _OF_OWN_ROW)
            yield making(f"operand/{result}-row", "A", words, {result: hook}, fix)


def _summed(result: str, name: str, size: int, how: str, value: Tensor, t: TileScope) -> Tensor:
    """A gradient summed in square tiles in another way.

    Args:
        how: what is multiplied of the matrix [h, tiles of the result, of the sum, row in the one, in the other] and of
            the operand [h, tiles, row in it, d].
    """
    of = PRODUCTS[result]
    matrix = t.operand(of.matrix)
    matrix = _cut(_cut(matrix.mT if of.is_transposed else matrix, size).mT, size).mT
    found: Tensor = torch.einsum(how, matrix, _cut(t.operand(name), size)).flatten(1, 2)[:, : value.shape[-2]]
    return t.x.scale * found if of.is_scaled else found


def _cut(rows: Tensor, size: int) -> Tensor:
    """[h, ..., rows, d] -> [h, ..., tiles, size, d], filled up with 0."""
    tiles: Tensor = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % size)).unflatten(-2, (-1, size))
    return tiles
