"""PREC: something is rounded to fewer bits before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS, title
from .hypothesis import Hypothesis, Observed, entered
from .variant import Alter, Hook, TileScope, Variant, hooking, operand, product

Narrow = Callable[[Tensor], Tensor]
_CUT = "bfloat16, cut off"
_ALL = frozenset({"LSE", "O", "P", "dP", "delta", "dQ", "dK", "dV"})
_DTYPES = {"float32": ("bfloat16", "float16", "tf32", _CUT), "float16": ("bfloat16",), "bfloat16": ("float16",)}


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Each operand rounded, to each dtype that has fewer bits than the case's."""
    for dtype in _DTYPES[seen.case.dtype]:
        narrow = _to(dtype)
        for tensor in ("q", "k", "v", "do"):
            alter = partial(_read, (tensor,), narrow)
            yield _of(title(tensor), tensor, dtype, alter, entered(tensor, seen.case.family))
        inputs = partial(_read, ("q", "k", "v", "do"), narrow)
        yield _of("every input", "inputs", dtype, inputs, _ALL)
        operands = hooking(*(hook for matrix in ("P", "dS") for hook in _of_matrix(matrix, narrow).items()))
        yield _of("each of P and dS", "P-dS", dtype, operands, frozenset(PRODUCTS))
        every = partial(_both, inputs, operands)
        yield _of("every operand of a product", "operands", dtype, every, _ALL)
        for size in dict.fromkeys((seen.case.block_m, seen.case.block_n, 32, 64)):
            for gradient in ("dQ", "dK", "dV"):
                summed = hooking((gradient, partial(_summed_by_tiles, gradient, size, narrow)))
                yield _of(f"the sum of {gradient}, after every {size},", gradient, dtype, summed, frozenset({gradient}))
        for step, words, hooks in _steps(narrow):
            yield _of(words, step, dtype, hooking(*hooks.items()), frozenset(hooks))


def _of(words: str, word: str, dtype: str, alter: Alter, changes: frozenset[str]) -> Hypothesis:
    summary, fix = f"{words} is rounded to {dtype} before it is used", f"keep {words} in float32 until it is used"
    return Hypothesis(f"precision/{word}", "PREC", summary, alter, changes, fix=fix, dtype=dtype.partition(",")[0])


def _steps(narrow: Narrow) -> Iterator[tuple[str, str, dict[str, Hook]]]:
    """(word, in words, hooks) of what may be rounded: dS and P for their products alone, and each step."""
    yield "dS", "dS", _of_matrix("dS", narrow)
    yield "P", "P", _of_matrix("P", narrow)
    for step in ("P", "dP", "dS", "delta", "LSE", "O", "dQ", "dK", "dV", "dBias"):
        words = f"{step}, on its way out," if step in ("dQ", "dK", "dV", "dBias") else step
        yield step, words, {step: lambda value, scope: narrow(value)}


def _of_matrix(matrix: str, narrow: Narrow) -> dict[str, Hook]:
    """The products of P, or of dS, with that rounded."""
    return {name: partial(_narrowed, name, narrow) for name, of in PRODUCTS.items() if of.matrix == matrix}


def _narrowed(result: str, narrow: Narrow, value: Tensor, scope: TileScope) -> Tensor:
    return product(result, scope, narrow(operand(scope, PRODUCTS[result].matrix)))


def _both(one: Alter, other: Alter, variant: Variant) -> Variant:
    return other(one(variant))


def _summed_by_tiles(gradient: str, size: int, narrow: Narrow, value: Tensor, scope: TileScope) -> Tensor:
    """A gradient whose sum is rounded after each tile that is added, before the scale."""
    of, total = PRODUCTS[gradient], value * 0
    left, right = operand(scope, of.matrix), operand(scope, of.other)
    left = left.mT if of.is_transposed else left
    for first in range(0, right.shape[-2], size):
        part = slice(first, first + size)
        total = narrow(total + left[..., part] @ right[..., part, :])
    return scope.x.scale * total if of.is_scaled else total


def _to(dtype: str) -> Narrow:
    if dtype == _CUT:
        return lambda tensor: (tensor.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double()
    if dtype == "tf32":
        return lambda tensor: ((tensor.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()
    return lambda tensor: tensor.to(getattr(torch, dtype)).double()


def _read(names: tuple[str, ...], narrow: Narrow, variant: Variant) -> Variant:
    return variant.reading(**{name: narrow(getattr(variant.x, name)) for name in names})
