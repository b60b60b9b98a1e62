"""Kinds of names, and which of them may stand for one another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter

from ...model.intermediates import in_kernels, plain
from ..parameter_names import stride_by_name
from ..syntax import names_in

# Tensors of one shape each, where V has as many dims as K.
_OF_ONE_SHAPE = (
    {"q", "o", "do", "dq", "dout", "out", "query", "d_o", "grad_out", "grad_output", "g"},
    {"k", "v", "dk", "dv", "key", "value"},
)
TENSORS = _OF_ONE_SHAPE[0] | _OF_ONE_SHAPE[1]
_OF_ROWS = in_kernels("LSE", "delta", "maximum of S so far", "sum of exp(S - maximum) so far")
# What kernels call the tensors and tiles that may be taken for one another.
_KINDS = (
    TENSORS,
    {*_OF_ROWS, "d"},
    {*in_kernels("P", "dP", "dS", "S"), "dpt", "dst", "qkt"},
    {"lo", "hi", "start", "end", "begin", "stop"},
)
_SCALE = re.compile(r"scale|log2e|ln2|log_2|inv_ln", re.IGNORECASE)
_AROUND = re.compile(r"^(?:b|p|ptr|cur|curr)_|(?:_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)$")
_WORD = re.compile(r"[A-Z]+|[a-z]+|\d+")
# How many names are tried in the place of one, the likeliest.
_FEW = 12


@lru_cache(maxsize=4096)
def core(name: str) -> str:
    """A name without what says that it is a pointer, a block or transposed."""
    return _AROUND.sub("", name).lower() or name.lower()


def is_stride(name: str) -> bool:
    return bool(stride_by_name(name)[1])


def has_strides(node: ast.AST) -> bool:
    return any(map(is_stride, names_in(node)))


def scales(known: Iterable[str]) -> list[str]:
    return list(filter(_SCALE.search, known))


def belongs(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that other names are of."""
    return is_stride(stride) and stride_by_name(stride)[0] in _tensors(beside)


def is_like_one(stride: str, beside: Iterable[str]) -> bool:
    tensors = _tensors(beside)
    return any(stride_by_name(stride)[0] in shape and shape & tensors for shape in _OF_ONE_SHAPE)


def _tensors(names: Iterable[str]) -> set[str]:
    return {stride_by_name(name)[0] if is_stride(name) else core(name) for name in names}


def same_when_contiguous(first: str, other: str) -> bool:
    (tensor, axis), (of, its) = stride_by_name(first), stride_by_name(other)
    return bool(axis) and axis == its and any(map({core(tensor), core(of)}.issubset, _OF_ONE_SHAPE))


def others_of(name: str, known: Sequence[str], beside: set[str]) -> list[tuple[float, str]]:
    """(how unlikely, name) of what may be meant beside other names: the likeliest few."""
    near, found = _tensors(beside - {name}), list[tuple[float, str]]()
    for other in known:
        unlikely = _unlike(name, other, near)
        if other != name and unlikely is not None:
            found.append((unlikely, other))
    return sorted(found, key=itemgetter(0))[:_FEW]


def _unlike(name: str, other: str, near: set[str]) -> float | None:
    (tensor, axis), (of, its) = stride_by_name(name), stride_by_name(other)
    if axis and axis == its:
        return 0.0 if of in near else 1.0
    if axis and its:
        return 1.0 if tensor == of else 1.5 if of in near else None
    if axis or its or name.isupper() != other.isupper():
        return None
    pair = {plain(core(name)), plain(core(other))}
    is_alike = _AROUND.findall(name) == _AROUND.findall(other) and any(map(pair.issubset, _KINDS))
    here, there = _WORD.findall(name), _WORD.findall(other)
    differs_in_a_word = len(here) == len(there) > 1 and sum(map(str.__ne__, here, there)) == 1
    if is_alike or differs_in_a_word or len(scales((name, other))) == 2:
        return 0.5
    return 1.5 if name.isupper() and max(len(name), len(other)) <= 3 else 3.0
