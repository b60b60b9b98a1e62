"""Which names may stand for one another: strides of one axis, offsets, sizes, tensors and tiles of one kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile
from ..operators.addresses import parameters, stride_of
from ..triton_source import bound_in

# What kernels call the tensors and tiles that may be taken for one another.
_KINDS: tuple[frozenset[str], ...] = (
    frozenset({"q", "k", "v", "do", "o", "dq", "dk", "dv", "dout", "out", "key", "query", "value"}),
    frozenset({*in_kernels("LSE", "delta", "maximum of S so far", "sum of exp(S - maximum) so far"), "d"}),
    frozenset({*in_kernels("P", "dP", "dS", "S"), "dpt", "dst", "qkt"}),
    frozenset({"lo", "hi", "start", "end", "begin", "stop"}),
)
_FEW = 6


@lru_cache(maxsize=256)
def in_scope(file: KernelFile, function: ast.FunctionDef) -> list[str]:
    """The names that a function may read: its parameters, what it assigns, and what the module assigns."""
    module = [each for each in file.tree.body if isinstance(each, (ast.Assign, ast.AnnAssign))]
    return list(dict.fromkeys([*parameters(function), *bound_in(function.body), *bound_in(module)]))


def others_of(name: str, known: Sequence[str], beside: Iterable[str] = ()) -> Iterator[tuple[float, str]]:
    """Names of the same kind, each with how unlikely it is that it was meant; the likeliest few.

    Args:
        beside: the other names of the expression: a stride belongs to a tensor that stands there.
    """
    near = _tensors([each for each in beside if each != name])
    found = [(rank, other) for other in known if other != name and (rank := _unlike(name, other, near)) is not None]
    yield from sorted(found, key=lambda each: each[0])[:_FEW]


def belongs(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that other names of its expression are of."""
    parts = stride_of(stride)
    return parts is not None and parts[0] in _tensors(beside)


# Tensors of one shape each, where V has as many dims as K.
_SHAPES = (
    frozenset({"q", "o", "do", "dq", "dout", "out", "query", "d_o", "g"}),
    frozenset({"k", "v", "dk", "dv", "key", "value"}),
)


def same_when_contiguous(one: str, other: str) -> bool:
    """Whether two names are strides of one axis of tensors that have one shape."""
    parts = stride_of(one), stride_of(other)
    if parts[0] is None or parts[1] is None or parts[0][1] != parts[1][1]:
        return False
    return any({core(parts[0][0]), core(parts[1][0])} <= shape for shape in _SHAPES)


def _tensors(names: Iterable[str]) -> set[str]:
    return {parts[0] if (parts := stride_of(name)) else core(name) for name in names}


def _unlike(name: str, other: str, near: set[str]) -> float | None:
    one, two = stride_of(name), stride_of(other)
    if (one is None) != (two is None):
        return None
    if one and two:
        here = 0.0 if two[0] in near else 1.0
        if one[1] == two[1]:
            return here
        return 1.0 if one[0] == two[0] else (1.5 if here == 0.0 else None)
    if any({plain(core(name)), plain(core(other))} <= kind for kind in _KINDS) and _form(name) == _form(other):
        return 0.5
    if all("scale" in each.lower() for each in (name, other)):
        return 0.5
    first, second = (re.findall(r"[A-Z]+|[a-z]+|\d+", each) for each in (name, other))
    differ = sum(a != b for a, b in zip(first, second, strict=False))
    if len(first) == len(second) and len(first) > 1 and differ == 1:
        return 0.5
    return 1.5 if name.isupper() and other.isupper() and max(len(name), len(other)) <= 3 else None


_CORE = re.compile(r"^((?:b|p|ptr|cur|curr)_)?(.*?)(_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)?$")


@lru_cache(maxsize=4096)
def core(name: str) -> str:
    """A name without what says that it is a pointer, a block or transposed."""
    match = _CORE.fullmatch(name)
    return (match[2] if match else name).lower()


@lru_cache(maxsize=4096)
def _form(name: str) -> tuple[str | None, str | None, bool]:
    """What a name says besides its core: that it is a pointer, a block, transposed, a parameter in capitals."""
    match = _CORE.fullmatch(name)
    return (match[1], match[3], match[2].isupper()) if match else (None, None, False)


def scales(known: Iterable[str]) -> list[str]:
    """The names that hold a factor of the scores."""
    return [name for name in known if re.search(r"scale|log2e|ln2|log_2|inv_ln", name.lower())]
