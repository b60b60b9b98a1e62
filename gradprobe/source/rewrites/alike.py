"""What may stand for one another: names of one kind, and statements of a file that say nearly the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile
from ..text import Edit
from .patterns import TOKEN
from .spots import Spot, Undone

# The ways in which the field names a stride: stride_qh, stride_q_h, q_stride_h, q_head_stride.
_STRIDES = (
    re.compile(r"stride_(?P<tensor>\w*?)_?(?P<axis>[a-z]|\d)"),
    re.compile(r"(?P<tensor>\w+?)_stride_?(?P<axis>[a-z]+|\d)"),
    re.compile(r"(?P<tensor>[a-z0-9]+)_(?P<axis>[a-z]+)_stride"),
)
# Tensors of one shape each, where V has as many dims as K.
_SHAPES = (
    frozenset({"q", "o", "do", "dq", "dout", "out", "query", "d_o", "g"}),
    frozenset({"k", "v", "dk", "dv", "key", "value"}),
)
# What kernels call the tensors and tiles that may be taken for one another.
_KINDS = (
    _SHAPES[0] | _SHAPES[1] - {"d_o", "g"},
    frozenset({*in_kernels("LSE", "delta", "maximum of S so far", "sum of exp(S - maximum) so far"), "d"}),
    frozenset({*in_kernels("P", "dP", "dS", "S"), "dpt", "dst", "qkt"}),
    frozenset({"lo", "hi", "start", "end", "begin", "stop"}),
)
# Tensors of as many axes as q, by the names that they usually have: of these strides are planted for one another.
LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
_SCALE = re.compile(r"scale|log2e|ln2|log_2|inv_ln")
_PARTS = re.compile(r"^((?:b|p|ptr|cur|curr)_)?(.*?)(_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)?$")
_FEW_NAMES = 6
# How much of two statements must be the same for one to be a source of edits of the other.
_ALIKE, _FEW_STATEMENTS = 0.7, 5


@lru_cache(maxsize=4096)
def stride_of(name: str) -> tuple[str, str] | None:
    """Tensor and axis of a stride's name, the tensor "" where it names none; None for any other name."""
    for form in _STRIDES:
        match = form.fullmatch(name)
        if match:
            return match["tensor"], match["axis"]
    return None


@lru_cache(maxsize=4096)
def _parts(name: str) -> tuple[str | None, str, str | None]:
    """What a name says before its core, the core, and what it says behind: a pointer, a block, transposed."""
    match = _PARTS.fullmatch(name)
    return (match[1], match[2], match[3]) if match else (None, name, None)


def core(name: str) -> str:
    """A name without what says that it is a pointer, a block or transposed."""
    return _parts(name)[1].lower()


def scales(known: Iterable[str]) -> list[str]:
    """The names that hold a factor of the scores."""
    return [name for name in known if _SCALE.search(name.lower())]


def belongs(stride: str, beside: Iterable[str]) -> bool:
    """Whether a stride is of a tensor that other names of its expression are of."""
    parts = stride_of(stride)
    return parts is not None and parts[0] in _tensors(beside)


def _tensors(names: Iterable[str]) -> set[str]:
    return {parts[0] if (parts := stride_of(name)) else core(name) for name in names}


def same_when_contiguous(first: str, other: str) -> bool:
    """Whether two names are strides of one axis of tensors that have one shape."""
    here, there = stride_of(first), stride_of(other)
    if here is None or there is None or here[1] != there[1]:
        return False
    pair = {core(here[0]), core(there[0])}
    return any(pair <= shape for shape in _SHAPES)


def others_of(name: str, known: Sequence[str], beside: Iterable[str] = ()) -> list[tuple[float, str]]:
    """Names of the same kind, each with how unlikely it is that it was meant; the likeliest few.

    Args:
        beside: the other names of the expression: a stride belongs to a tensor that stands there.
    """
    near = _tensors(each for each in beside if each != name)
    found = []
    for other in known:
        unlikely = None if other == name else _unlike(name, other, near)
        if unlikely is not None:
            found.append((unlikely, other))
    found.sort(key=lambda each: each[0])
    return found[:_FEW_NAMES]


def _unlike(name: str, other: str, near: set[str]) -> float | None:
    """How unlikely it is that another name was meant; None where they are of two kinds."""
    here, there = stride_of(name), stride_of(other)
    if here and there:
        is_near = there[0] in near
        if here[1] == there[1]:
            return 0.0 if is_near else 1.0
        return 1.0 if here[0] == there[0] else 1.5 if is_near else None
    if here or there:
        return None
    if _are_of_kind(name, other) or _differ_in_a_word(name, other):
        return 0.5
    if "scale" in name.lower() and "scale" in other.lower():
        return 0.5
    return 1.5 if name.isupper() and other.isupper() and max(len(name), len(other)) <= 3 else None


def _are_of_kind(name: str, other: str) -> bool:
    (before, here, behind), (before_other, there, behind_other) = _parts(name), _parts(other)
    if (before, behind, here.isupper()) != (before_other, behind_other, there.isupper()):
        return False
    pair = {plain(here.lower()), plain(there.lower())}
    return any(pair <= kind for kind in _KINDS)


def _differ_in_a_word(name: str, other: str) -> bool:
    here, there = (re.findall(r"[A-Z]+|[a-z]+|\d+", each) for each in (name, other))
    if len(here) != len(there) or len(here) < 2:
        return False
    differing = [a for a, b in zip(here, there, strict=True) if a != b]
    return len(differing) == 1


def of_siblings(at: Spot) -> Undone:
    """The statement as those of the file have it that say nearly the same: each piece that differs, then all."""
    if not at.is_whole or not at.is_on_device:
        return
    own = at.file.text_of(at.statement)
    for ratio, other in _siblings(at.file, own):
        edits = list(_differences(own, other, at.file.span(at.statement)[0]))
        yield from ((1.5 - ratio, (edit,)) for edit in edits)
        if 1 < len(edits) <= 3:
            yield 1.5 - ratio, tuple(edits)


@lru_cache(maxsize=1024)
def _siblings(file: KernelFile, own: str) -> list[tuple[float, str]]:
    """(how much is the same, text) of the statements that are most alike, or assign to the same name."""
    matcher, found = SequenceMatcher(None, "", _words(own), autojunk=False), []
    target = own.partition(" = ")[0]
    for text in _simple(file) - {own}:
        is_same_name = text.startswith(f"{target} = ")
        matcher.set_seq1(_words(text))
        is_near = is_same_name or (matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE)
        if is_near and (matcher.ratio() > _ALIKE or is_same_name):
            found.append((matcher.ratio(), text))
    return sorted(found, reverse=True)[:_FEW_STATEMENTS]


@lru_cache(maxsize=4)
def _simple(file: KernelFile) -> frozenset[str]:
    """The statements that hold no others, as they are written."""
    kinds = (ast.Assign, ast.AugAssign, ast.Expr)
    inner = [node for function in file.functions for node in ast.walk(function)]
    return frozenset(file.text_of(node) for node in inner if isinstance(node, kinds))


@lru_cache(maxsize=4096)
def _words(text: str) -> list[str]:
    return [token for token in TOKEN.findall(text) if token.strip()]


def _differences(own: str, other: str, start: int) -> Iterator[Edit]:
    """Each piece in which two statements differ, as the other has it."""
    here, there = TOKEN.findall(own), TOKEN.findall(other)
    for kind, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
        text, first = "".join(there[c:d]), len("".join(here[:a]))
        old = "".join(here[a:b])
        is_comma = {old.strip(), text.strip()} == {"", ","}  # before a closing bracket: it says nothing
        if kind != "equal" and a and not is_comma:  # what it assigns stays
            yield Edit(start + first, start + first + len(old), text)
