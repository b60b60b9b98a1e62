"""Kinds of names: strides, tensors, tiles, scales; and which of them may stand for one another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ...model.intermediates import in_kernels, plain
from ..kernel_file import names_in
from ..parameter_names import stride_by_name

# Tensors of one shape each, where V has as many dims as K.
_OF_ONE_SHAPE = (
    frozenset({"q", "o", "do", "dq", "dout", "out", "query", "d_o", "g"}),
    frozenset({"k", "v", "dk", "dv", "key", "value"}),
)
# What kernels call the tensors and tiles that may be taken for one another.
_KINDS = (
    _OF_ONE_SHAPE[0] | _OF_ONE_SHAPE[1],
    frozenset({*in_kernels("LSE", "delta", "maximum of S so far", "sum of exp(S - maximum) so far"), "d"}),
    frozenset({*in_kernels("P", "dP", "dS", "S"), "dpt", "dst", "qkt"}),
    frozenset({"lo", "hi", "start", "end", "begin", "stop"}),
)
_SCALE = re.compile(r"scale|log2e|ln2|log_2|inv_ln", re.IGNORECASE)
_AROUND = re.compile(r"^(?:b|p|ptr|cur|curr)_|(?:_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)$")
# How many names are tried in the place of one, the likeliest.
_FEW = 12


@lru_cache(maxsize=4096)
def core(name: str) -> str:
    """A name without what says that it is a pointer, a block or transposed."""
    return _AROUND.sub("", name).lower() or name.lower()


def is_stride(name: str) -> bool:
    """Whether a name is a stride's, and says of which axis."""
    return bool(stride_by_name(name)[1])


def has_strides(node: ast.AST) -> bool:
    """Whether strides stand in a statement or a part of it."""
    return any(map(is_stride, names_in(node)))


def scales(known: Iterable[str]) -> list[str]:
    """The names that hold a factor of the scores."""
    return [name for name in known if _SCALE.search(name)]


def belongs(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that other names of its expression are of."""
    return is_stride(stride) and stride_by_name(stride)[0] in _tensors(beside)


def is_like_one(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that has the shape of one of those."""
    tensors = _tensors(beside)
    return any(stride_by_name(stride)[0] in shape and shape & tensors for shape in _OF_ONE_SHAPE)


def _tensors(names: Iterable[str]) -> set[str]:
    return {stride_by_name(name)[0] if is_stride(name) else core(name) for name in names}


def same_when_contiguous(first: str, other: str) -> bool:
    """Whether two names are strides of one axis of tensors that have one shape."""
    (tensor, axis), (of, its) = stride_by_name(first), stride_by_name(other)
    return bool(axis) and axis == its and any({core(tensor), core(of)} <= shape for shape in _OF_ONE_SHAPE)


def others_of(name: str, known: Sequence[str], beside: Iterable[str] = ()) -> list[tuple[float, str]]:
    """Names that may be meant, each with how unlikely that is; the likeliest few.

    Args:
        beside: the other names of the expression: a stride belongs to a tensor that stands there.
    """
    near, found = _tensors(each for each in beside if each != name), list[tuple[float, str]]()
    for other in known:
        unlikely = _unlike(name, other, near)
        if other != name and unlikely is not None:
            found.append((unlikely, other))
    found.sort(key=lambda each: each[0])
    return found[:_FEW]


def _unlike(name: str, other: str, near: set[str]) -> float | None:
    """How unlikely it is that another name was meant; None where they are of two kinds."""
    (tensor, axis), (of, its) = stride_by_name(name), stride_by_name(other)
    if axis and axis == its:
        return 0.0 if of in near else 1.0
    if axis and its:
        return 1.0 if tensor == of else 1.5 if of in near else None
    if axis or its or name.isupper() != other.isupper():
        return None
    pair = {plain(core(name)), plain(core(other))}
    is_alike = _around(name) == _around(other) and any(pair <= kind for kind in _KINDS)
    if is_alike or _differ_in_a_word(name, other) or len(scales((name, other))) == 2:
        return 0.5
    return 1.5 if name.isupper() and max(len(name), len(other)) <= 3 else 3.0


def _around(name: str) -> list[str]:
    return _AROUND.findall(name)


def _differ_in_a_word(name: str, other: str) -> bool:
    here, there = (re.findall(r"[A-Z]+|[a-z]+|\d+", each) for each in (name, other))
    differing = [a for a, b in zip(here, there, strict=False) if a != b]
    return len(here) == len(there) > 1 and len(differing) == 1
