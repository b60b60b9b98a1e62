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
_DTYPES = {"float32": ("bfloat16", "float16", "tf32", _CUT), "float16": ("bfloat16",), "bfloat16": ("float16",)}
_INPUTS = ("q", "k", "v", "do")
_GRADIENTS = ("dQ", "dK", "dV", "dBias")


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Each operand rounded, to each dtype that has fewer bits than the case's."""
    for dtype in _DTYPES[seen.case.dtype]:
        narrow = _narrowing(dtype)
        for words, word, inputs, hooks in _rounded(seen, narrow):
            changes = frozenset(hooks).union(*(entered(name, seen.case.family) for name in inputs))
            alter = partial(_altered, narrow, inputs, hooks)
            summary, fix = (
                f"{words} is rounded to {dtype} before it is used",
                f"keep {words} in float32 until it is used",
            )
            kept = dtype.partition(",")[0]
            yield Hypothesis(f"precision/{word}", "PREC", summary, alter, changes, fix, dtype=kept)


def _rounded(seen: Observed, narrow: Narrow) -> Iterator[tuple[str, str, tuple[str, ...], Mapping[str, Hook]]]:
    """In words, in a word, the inputs that are rounded, and what hooks round."""
    for tensor in _INPUTS:
        yield title(tensor), tensor, (tensor,), {}
    yield "every input", "inputs", _INPUTS, {}
    operands = _of_matrix("P", narrow) | _of_matrix("dS", narrow)
    yield "each of P and dS", "P-dS", (), operands
    yield "every operand of a product", "operands", _INPUTS, operands
    for size in sizes_of(seen.case, (32, 64)):
        for name in _GRADIENTS[:3]:
            yield (
                f"the sum of {name}, after every {size},",
                name,
                (),
                {name: partial(_summed_by_tiles, name, size, narrow)},
            )
    for matrix in ("dS", "P"):
        yield matrix, matrix, (), _of_matrix(matrix, narrow)
    for step in ("P", "dP", "dS", "delta", "LSE", "O", *_GRADIENTS):
        words = f"{step}, on its way out," if step in _GRADIENTS else step
        yield words, step, (), {step: lambda v, t: narrow(v)}


def _altered(narrow: Narrow, inputs: tuple[str, ...], hooks: Mapping[str, Hook], variant: Variant) -> Variant:
    read = {name: narrow(getattr(variant.x, name)) for name in inputs}
    return (variant.reading(**read) if read else variant).hooked(hooks)


def _of_matrix(matrix: str, narrow: Narrow) -> dict[str, Hook]:
    """The products of P, or of dS, with that rounded."""
    names = [name for name, of in PRODUCTS.items() if of.matrix == matrix]
    return {name: partial(_with_matrix, name, narrow) for name in names}


def _with_matrix(result: str, narrow: Narrow, value: Tensor, t: TileScope) -> Tensor:
    return t.product(result, narrow(t.operand(PRODUCTS[result].matrix)))


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
