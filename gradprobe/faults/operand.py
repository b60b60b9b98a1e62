"""A: another operand in a product, or one that should have been transposed; H1: one gradient in another's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS, steps, title
from .hypothesis import Hypothesis, Observed, making
from .variant import Alter, Hook, TileScope, finishing, operand, product


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every product with each other operand of the same shape; transposed matrices; gradients that changed places."""
    yield from _other_operands(seen)
    yield from _not_transposed(seen)
    yield from _within_tiles(seen)
    yield from _own_rows(seen)
    yield from _exchanged(seen)


# (result, the operand meant, what may stand there)
_OTHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("dQ", "k", ("q", "v", "do")), ("dK", "q", ("k", "do", "v", "O")), ("dV", "do", ("O", "q", "v")),
    ("dQ", "dS", ("P", "dP")), ("dK", "dS", ("P", "dP")), ("dV", "P", ("dS", "dP", "P")),
    ("dP", "v", ("k",)), ("dP", "do", ("O", "q")), ("O", "v", ("k",)),
)  # fmt: skip


def _other_operands(seen: Observed) -> Iterator[Hypothesis]:
    formulas = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
    for result, meant, other in ((result, meant, other) for result, meant, others in _OTHERS for other in others):
        same = meant == other and seen.x.family != "lazy" and seen.x.keep is None  # nothing stands in the place of P
        if not same and _fits(seen, meant, other):
            words = f"{formulas[result]} is made with {title(other)} in place of {title(meant)}"
            hooks = {result: partial(_with_other, result, meant, other)}
            yield making(f"operand/{result}", "A", words, hooks, fix=formulas[result])


def _fits(seen: Observed, meant: str, other: str) -> bool:
    """Whether one operand has the shape of another, as a tile holds it; matrices all have one."""
    x = seen.x
    shapes = {name: tensor.shape[2:] for name, tensor in (("q", x.q), ("k", x.k), ("v", x.v), ("do", x.do))}
    shapes["O"] = shapes["do"]
    return shapes.get(meant) == shapes.get(other)


def _with_other(result: str, meant: str, other: str, value: Tensor, scope: TileScope) -> Tensor:
    """A result made with one operand in another's place."""
    taken = scope.used["P"] if other == "P" else operand(scope, other)
    if result == "dP":
        return (taken @ scope.v.mT if meant == "do" else scope.do @ taken.mT) * scope.valid
    return product(result, scope, **{"matrix" if meant == PRODUCTS[result].matrix else "other": taken})


def _not_transposed(seen: Observed) -> Iterator[Hypothesis]:
    if seen.x.n_query != seen.x.n_key:
        return
    ways: tuple[tuple[str, str, Hook], ...] = (
        *((name, f"{product.turned.formula}, where {product.formula} is meant", partial(_transposed, name))
          for name in ("dV", "dK", "dQ") for product in [PRODUCTS[name]]),
        ("dS", "P^T * (dP - delta)",
         lambda value, scope: scope.used["P"].mT * (scope.used["dP"] - scope.used["delta"][..., None])),
        ("dS", "P * (dP^T - delta)",
         lambda value, scope: scope.used["P"] * (scope.used["dP"].mT - scope.used["delta"][..., None])),
        ("dS", "P * (dP - delta) with delta along the keys",
         lambda value, scope: scope.used["P"] * (scope.used["dP"] - scope.used["delta"][..., None, :])),
        ("P", "exp(S - LSE) with LSE along the keys",
         lambda value, scope: value * (scope.used["LSE"][..., None] - scope.used["LSE"][..., None, :]).exp()),
    )  # fmt: skip
    for result, words, hook in ways:
        yield making(f"transposed/{result}", "A", f"{result} is {words}", {result: hook})


def _transposed(result: str, value: Tensor, scope: TileScope) -> Tensor:
    return product(result, scope, operand(scope, PRODUCTS[result].matrix).mT)


def _within_tiles(seen: Observed) -> Iterator[Hypothesis]:
    """The same within square tiles, as kernels compute: a tile that is not transposed, or that of the other operand."""
    for size in dict.fromkeys((seen.case.block_m, 16, 32, 64, 128)):
        for result in ("dQ", "dK", "dV"):
            words = f"{result} is made with each tile of {size} x {size} transposed the wrong way round"
            yield making(f"transposed/{result}", "A", words, {result: partial(_turned, result, size)})
        for result, meant, taken in (("dQ", "k", "q"), ("dK", "q", "k"), ("dV", "do", "v")):
            if getattr(seen.x, meant).shape[-1] == getattr(seen.x, taken).shape[-1]:
                words = f"{result} is made with {title(taken)} in place of {title(meant)}, tile by tile of {size}"
                yield making(f"operand/{result}", "A", words, {result: partial(_own_tile, result, taken, size)})


def _in_tiles(matrix: Tensor, size: int) -> Tensor:
    """[..., M, N] -> [..., tiles of rows, tiles of keys, size, size], filled up with 0."""
    rows, keys = (-length % size for length in matrix.shape[-2:])
    padded = torch.nn.functional.pad(matrix, (0, keys, 0, rows))
    tiles: Tensor = padded.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return tiles.transpose(-3, -2)


def _turned(result: str, size: int, value: Tensor, scope: TileScope) -> Tensor:
    """A gradient of a matrix each of whose tiles is transposed."""
    matrix = operand(scope, PRODUCTS[result].matrix)
    rows, keys = matrix.shape[-2:]
    turned: Tensor = _in_tiles(matrix, size).mT.transpose(-3, -2).flatten(-2, -1).flatten(-3, -2)
    return product(result, scope, turned[..., :rows, :keys])


def _own_tile(result: str, taken: str, size: int, value: Tensor, scope: TileScope) -> Tensor:
    """A gradient whose second operand is the tile that is held already, in place of the one that the loop loads."""
    tiles = _in_tiles(operand(scope, PRODUCTS[result].matrix), size)
    # [h, tiles of the result, size of the result, size of the sum]
    summed = tiles.sum(-3) if result == "dQ" else tiles.sum(-4).mT
    rows = operand(scope, taken)
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % size)).unflatten(-2, (-1, size))
    found: Tensor = (summed @ rows).flatten(-3, -2)[..., : value.shape[-2], :]
    return scope.x.scale * found if PRODUCTS[result].is_scaled else found


def _own_rows(seen: Observed) -> Iterator[Hypothesis]:
    """Sums that read one row of each tile of the other operand throughout: of a thread's own number, not the loop's."""
    whole = max(seen.x.n_query, seen.x.n_key)
    for result, meant, made_of in (("dQ", "k", "key"), ("dK", "q", "row"), ("dV", "do", "row")):
        own = "row" if result == "dQ" else "key"
        for size in dict.fromkeys((seen.case.block_m, 8, 16, 32, 64, 128, whole)):
            inside = f"in each tile of {size} {made_of}s" if size < whole else "throughout"
            number = f"the number of its own {own} {inside}"
            words = f"{result} reads {title(meant)} at {number}, not at each {made_of} of its sum"
            fix = f"read {title(meant)} at the {made_of} of the loop, not at that of the thread"
            yield making(f"operand/{result}-row", "A", words, {result: partial(_own_row, result, meant, size)}, fix=fix)


def _own_row(result: str, meant: str, size: int, value: Tensor, scope: TileScope) -> Tensor:
    """A gradient that multiplies what it sums of each tile by one row of the tile, that of its own number."""
    tiles = _in_tiles(operand(scope, PRODUCTS[result].matrix), size)
    rows = operand(scope, meant)
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[-2] % size)).unflatten(-2, (-1, size))
    summed = tiles.sum(-1) if result == "dQ" else tiles.sum(-2)
    found: Tensor = torch.einsum("hmnr,hnrd->hmrd" if result == "dQ" else "hmnr,hmrd->hnrd", summed, rows)
    found = found.flatten(-3, -2)[..., : value.shape[-2], :]
    return scope.x.scale * found if PRODUCTS[result].is_scaled else found


def _exchanged(seen: Observed) -> Iterator[Hypothesis]:
    for one, two in combinations(("dQ", "dK", "dV"), 2):
        if one not in seen.actual or two not in seen.actual or seen.actual[one].shape != seen.actual[two].shape:
            continue
        if seen.wrong(one) and seen.wrong(two):
            summary, alter = f"{one} and {two} have changed places", _taken({one: two, two: one})
            fix = "return each gradient in its own place"
            yield Hypothesis(f"swap/{one}-{two}", "H1", summary, alter, frozenset({one, two}), fix=fix)
        else:
            here, of = (one, two) if seen.wrong(one) else (two, one)
            summary, fix = f"{of} stands in the place of {here} too", f"return {here} in its own place"
            yield Hypothesis(f"twice/{of}", "H1", summary, _taken({here: of}), frozenset({here}), fix=fix)


def _taken(places: Mapping[str, str]) -> Alter:
    """Results with others in their places."""
    return finishing(
        lambda values: {here: values[of] for here, of in places.items()} if {*places.values()} <= values.keys() else {}
    )
