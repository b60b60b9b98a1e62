"""PREC: something is rounded to fewer bits before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS, title
from .hypothesis import Hypothesis, Observed, entered
from .tile import sizes_of
from .variant import Hook, TileScope, Variant

Narrow = Callable[[Tensor], Tensor]
_CUT = "bfloat16, cut off"
_ALL = frozenset({"LSE", "O", "P", "dP", "delta", "dQ", "dK", "dV"})
_DTYPES = {"float32": ("bfloat16", "float16", "tf32", _CUT), "float16": ("bfloat16",), "bfloat16": ("float16",)}
_INPUTS = ("q", "k", "v", "do")


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Each operand rounded, to each dtype that has fewer bits than the case's."""
    for dtype in _DTYPES[seen.case.dtype]:
        narrow = _narrowing(dtype)
        of = partial(_rounded, dtype, narrow)
        for tensor in _INPUTS:
            yield of(title(tensor), tensor, (tensor,), {}, entered(tensor, seen.case.family))
        yield of("every input", "inputs", _INPUTS, {}, _ALL)
        operands = _of_matrix("P", narrow) | _of_matrix("dS", narrow)
        yield of("each of P and dS", "P-dS", (), operands)
        yield of("every operand of a product", "operands", _INPUTS, operands, _ALL)
        for size in sizes_of(seen.case, (32, 64)):
            for gradient in ("dQ", "dK", "dV"):
                hook = partial(_summed_by_tiles, gradient, size, narrow)
                yield of(f"the sum of {gradient}, after every {size},", gradient, (), {gradient: hook})
        for matrix in ("dS", "P"):
            yield of(matrix, matrix, (), _of_matrix(matrix, narrow))
        for step in ("P", "dP", "dS", "delta", "LSE", "O", "dQ", "dK", "dV", "dBias"):
            words = f"{step}, on its way out," if step in ("dQ", "dK", "dV", "dBias") else step
            yield of(words, step, (), {step: partial(_narrowed, narrow)})


def _rounded(
    dtype: str,
    narrow: Narrow,
    words: str,
    word: str,
    inputs: tuple[str, ...],
    hooks: Mapping[str, Hook],
    changes: frozenset[str] = frozenset(),
) -> Hypothesis:
    """The fault that some inputs are rounded, and what hooks round."""

    def alter(variant: Variant) -> Variant:
        read = {name: narrow(getattr(variant.x, name)) for name in inputs}
        return (variant.reading(**read) if read else variant).hooked(hooks)

    summary, fix = f"{words} is rounded to {dtype} before it is used", f"keep {words} in float32 until it is used"
    changed, kept = changes or frozenset(hooks), dtype.partition(",")[0]
    return Hypothesis(f"precision/{word}", "PREC", summary, alter, changed, fix, dtype=kept)


def _of_matrix(matrix: str, narrow: Narrow) -> dict[str, Hook]:
    """The products of P, or of dS, with that rounded."""
    names = [name for name, of in PRODUCTS.items() if of.matrix == matrix]
    return {name: partial(_with_matrix, name, narrow) for name in names}


def _with_matrix(result: str, narrow: Narrow, value: Tensor, t: TileScope) -> Tensor:
    return t.product(result, narrow(t.operand(PRODUCTS[result].matrix)))


def _narrowed(narrow: Narrow, value: Tensor, t: TileScope) -> Tensor:
    return narrow(value)


def _summed_by_tiles(gradient: str, size: int, narrow: Narrow, value: Tensor, t: TileScope) -> Tensor:
    """A gradient whose sum is rounded after each tile that is added, before the scale."""
    of, total = PRODUCTS[gradient], value * 0
    left, right = t.operand(of.matrix), t.operand(of.other)
    left = left.mT if of.is_transposed else left
    for first in range(0, right.shape[-2], size):
        part = slice(first, first + size)
        total = narrow(total + left[..., part] @ right[..., part, :])
    return t.x.scale * total if of.is_scaled else total


def _narrowing(dtype: str) -> Narrow:
    if dtype == _CUT:
        return lambda tensor: (tensor.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double()
    if dtype == "tf32":
        return lambda tensor: ((tensor.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()
    return lambda tensor: tensor.to(getattr(torch, dtype)).double()
