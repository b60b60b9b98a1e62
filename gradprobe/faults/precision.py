"""PREC: something is rounded to fewer bits before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import PRODUCTS, title
from .hypothesis import Hypothesis, Observed, entered, sizes_of
from .variant import Formula, TileScope

Narrow = Callable[[Tensor], Tensor]
_CUT = "bfloat16, cut off"
_DTYPES = {"float32": ("bfloat16", "float16", "tf32", _CUT), "float16": ("bfloat16",), "bfloat16": ("float16",)}
_INPUTS = ("q", "k", "v", "do")
_GRADIENTS = ("dQ", "dK", "dV", "dBias")


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Each operand rounded, to each dtype that has fewer bits than the case's."""
    for dtype in _DTYPES[seen.case.dtype]:
        narrow = _narrowing(dtype)
        for words, word, inputs, made in _rounded(seen, narrow):
            reads = {name: narrow(getattr(seen.x, name)) for name in inputs}
            wrong = frozenset(made).union(*(entered(name, seen.case.family) for name in inputs))
            summary = f"{words} is rounded to {dtype} before it is used"
            fix = f"keep {words} in float32 until it is used"
            kept = dtype.partition(",")[0]
            yield Hypothesis(f"precision/{word}", "PREC", summary, made, fix, wrong, reads=reads, dtype=kept)


def _rounded(seen: Observed, narrow: Narrow) -> Iterator[tuple[str, str, Sequence[str], Mapping[str, Formula]]]:
    """In words, in a word, the inputs that are rounded, and what makes something of what is rounded."""
    for tensor in _INPUTS:
        yield title(tensor), tensor, (tensor,), {}
    yield "every input", "inputs", _INPUTS, {}
    of_p, of_ds = _of_matrix("P", narrow), _of_matrix("dS", narrow)
    yield "each of P and dS", "P-dS", (), of_p | of_ds
    yield "every operand of a product", "operands", _INPUTS, of_p | of_ds
    for size in sizes_of(seen.case, 32, 64):
        for name in _GRADIENTS[:3]:
            made: dict[str, Formula] = {name: partial(_summed_by_tiles, name, size, narrow)}
            yield f"the sum of {name}, after every {size},", name, (), made
    yield "dS", "dS", (), of_ds
    yield "P", "P", (), of_p
    for step in ("P", "dP", "dS", "delta", "LSE", "O", *_GRADIENTS):
        words = f"{step}, on its way out," if step in _GRADIENTS else step
        yield words, step, (), {step: (f"narrow({step})", {"narrow": narrow})}


def _of_matrix(matrix: str, narrow: Narrow) -> dict[str, Formula]:
    """The products of P, or of dS, with that rounded."""
    names = [name for name, of in PRODUCTS.items() if of.matrix == matrix]
    return {name: (f"product({name!r}, narrow(operand({matrix!r})))", {"narrow": narrow}) for name in names}


def _summed_by_tiles(gradient: str, size: int, narrow: Narrow, t: TileScope) -> Tensor:
    """A gradient whose sum is rounded after each tile that is added, before the scale."""
    of = PRODUCTS[gradient]
    total: Tensor = t[gradient] * 0
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
