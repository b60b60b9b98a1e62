"""Which names may stand for one another: strides of one axis, offsets, sizes, tensors and tiles of one kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from ...model.intermediates import in_kernels, plain

# The ways in which the field names a stride: stride_qh, stride_q_h, q_stride_h, q_head_stride.
_STRIDES = (
    re.compile(r"stride_(?P<tensor>\w*?)_?(?P<axis>[a-z]|\d)"),
    re.compile(r"(?P<tensor>\w+?)_stride_?(?P<axis>[a-z]+|\d)"),
    re.compile(r"(?P<tensor>[a-z0-9]+)_(?P<axis>[a-z]+)_stride"),
)
# What kernels call the tensors and tiles that may be taken for one another.
_KINDS: tuple[frozenset[str], ...] = (
    frozenset({"q", "k", "v", "do", "o", "dq", "dk", "dv", "dout", "out", "key", "query", "value"}),
    frozenset({*in_kernels("LSE", "delta", "maximum of S so far", "sum of exp(S - maximum) so far"), "d"}),
    frozenset({*in_kernels("P", "dP", "dS", "S"), "dpt", "dst", "qkt"}),
    frozenset({"lo", "hi", "start", "end", "begin", "stop"}),
)
# Tensors of one shape each, where V has as many dims as K.
_SHAPES = (
    frozenset({"q", "o", "do", "dq", "dout", "out", "query", "d_o", "g"}),
    frozenset({"k", "v", "dk", "dv", "key", "value"}),
)
# Tensors of as many axes as q, by the names that they usually have: of these strides are planted for one another.
LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
_SCALE = re.compile(r"scale|log2e|ln2|log_2|inv_ln")
_CORE = re.compile(r"^((?:b|p|ptr|cur|curr)_)?(.*?)(_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)?$")
_FEW = 6


@lru_cache(maxsize=4096)
def stride_of(name: str) -> tuple[str, str] | None:
    """Tensor and axis of a stride's name, the tensor "" where it names none; None for any other name."""
    match = next((match for form in _STRIDES if (match := form.fullmatch(name))), None)
    return (match["tensor"], match["axis"]) if match else None


def others_of(name: str, known: Sequence[str], beside: Iterable[str] = ()) -> Iterator[tuple[float, str]]:
    """Names of the same kind, each with how unlikely it is that it was meant; the likeliest few.

    Args:
        beside: the other names of the expression: a stride belongs to a tensor that stands there.
    """
    near = _tensors(each for each in beside if each != name)
    found = [(rank, other) for other in known if other != name and (rank := _unlike(name, other, near)) is not None]
    yield from sorted(found, key=lambda each: each[0])[:_FEW]


def belongs(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that other names of its expression are of."""
    parts = stride_of(stride)
    return parts is not None and parts[0] in _tensors(beside)


def same_when_contiguous(first: str, other: str) -> bool:
    """Whether two names are strides of one axis of tensors that have one shape."""
    here, there = stride_of(first), stride_of(other)
    if here is None or there is None or here[1] != there[1]:
        return False
    return any({core(here[0]), core(there[0])} <= shape for shape in _SHAPES)


def _tensors(names: Iterable[str]) -> set[str]:
    return {parts[0] if (parts := stride_of(name)) else core(name) for name in names}


def _unlike(name: str, other: str, near: set[str]) -> float | None:
    """How unlikely it is that another name was meant; None where they are of two kinds."""
    here, there = stride_of(name), stride_of(other)
    if here and there:
        far = 0.0 if there[0] in near else 1.0
        if here[1] == there[1]:
            return far
        return 1.0 if here[0] == there[0] else (1.5 if far == 0.0 else None)
    if here or there:
        return None
    pair = {plain(core(name)), plain(core(other))}
    are_of_kind = _form(name) == _form(other) and any(pair <= kind for kind in _KINDS)
    words, others = (re.findall(r"[A-Z]+|[a-z]+|\d+", each) for each in (name, other))
    differing = sum(a != b for a, b in zip(words, others, strict=False))
    is_near = len(words) == len(others) > 1 and differing == 1
    if are_of_kind or is_near or ("scale" in name.lower() and "scale" in other.lower()):
        return 0.5
    return 1.5 if name.isupper() and other.isupper() and max(len(name), len(other)) <= 3 else None


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
    return [name for name in known if _SCALE.search(name.lower())]
