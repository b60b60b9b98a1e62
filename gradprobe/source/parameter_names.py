"""Which tensor, or whose stride, a kernel's parameter is by its name."""

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter

from ..model.intermediates import TABLE, in_kernels, names, plain
from .syntax import names_in

# What tensors are called; the first is the name used everywhere here.
_SYNONYMS = {
    "q": "query query_states query_layer xq", "k": "key key_states key_layer xk",
    "v": "value value_states value_layer xv", "do": "dout d_o d_out grad_out grad_output grad_o", "o": "out output",
    "lse": "m softmax_lse logsumexp", "bias": "attn_bias attn_mask attention_mask", "alibi": "alibi_slopes",
    "sinks": "sink attention_sinks s_aux", "seqlens": "varlen",
}  # fmt: skip
_SYNONYMS |= {row.name.lower(): row.parameters for row in TABLE if row.gradient_of}
SYNONYMS = {name: tuple(words.split()) for name, words in _SYNONYMS.items()}
_INPUTS = ("q", "k", "v", "do", "bias", "mask", "tau", "alibi", "sinks")
# What tensors are called in kernels, each with its name here: what may be either of two is left out, as is "m".
_WORDS = {"db": "dbias", "seqlens": "seqlens"}
for _name in (*_INPUTS, *map(str.lower, names())):
    for _word in (_name, *SYNONYMS.get(_name, ())):
        if _word == _name or (len(_word) > 1 and "mask" not in _word):
            _WORDS[plain(_word)] = _name
# The ends of strides' names by axis: batch, head, position (of rows or keys), dim.
_ENDS_OF = {
    "b": "b z bs bz batch 0", "h": "h head heads g 1", "d": "d k dim e v 3", "w": "w",
    "m": "m n s l t seq tok token row rows seqlen i j 2",
}  # fmt: skip
_AXES = dict[str, str]()
for _axis, _ends in _ENDS_OF.items():
    _AXES |= dict.fromkeys(_ends.split(), _axis)
_STRIDE = re.compile(r"strides?", re.IGNORECASE)
# Two letters are a tensor and its axis: stride_bz.
_LONG = "|".join(filter(re.compile("...").match, _AXES))
_ENDS = re.compile(rf"(\w*?)({_LONG}|\w)")


def word_of(pointer: str) -> str:
    """ "do" of do_ptr, Do and p_do."""
    word = pointer.lower()
    for affix in ("_pointer", "_ptrs", "_ptr", "ptr"):
        word = word.removesuffix(affix)
    return word.removeprefix("ptr_").removeprefix("p_").replace("_", "") or pointer.lower()


def tensor_of(pointer: str) -> str:
    """ "" where it means none for certain."""
    return _WORDS.get(word_of(pointer), "")


def words_of(tensor: str) -> set[str]:
    return {word for word, meant in _WORDS.items() if meant == tensor_of(tensor)}


def is_stride(parameter: str) -> bool:
    return _STRIDE.search(parameter) is not None


@lru_cache(maxsize=4096)
def stride_by_name(name: str) -> tuple[str, str]:
    """("q", "head") of q_head_stride; "" if unsaid."""
    match = _ENDS.fullmatch(_bare(name)) if is_stride(name) else None
    return (match[1], match[2]) if match else ("", "")


def axis_of(stride: str) -> str:
    """ "h" of q_head_stride; "" if unsaid."""
    return _AXES.get(stride_by_name(stride)[1], "")


def _bare(stride: str) -> str:
    return _STRIDE.sub("", stride).replace("_", "").lower()


def stride_of(parameter: str, words: Collection[str]) -> tuple[str, str]:
    """(word, axis): ("do", "h") of stride_doh and do_stride_h; or ""."""
    rest, is_called_one = _bare(parameter), is_stride(parameter)
    for word in sorted(words, key=len, reverse=True):
        axis = rest.removeprefix(word)
        if not axis and is_called_one:
            return word, ""
        is_stride_of_it = is_called_one or parameter.lower() == f"{word}_{axis}"
        if axis != rest and axis in _AXES and is_stride_of_it:
            return word, _AXES[axis]
    return "", ""


# --- names that may stand for one another

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
_AROUND = re.compile(
    r"^(?:b|p|ptr|cur|curr)_|(?:_?ptrs?|_base|_block|_tile|_desc|_t|(?<=[a-z])T)$"
)
_WORD = re.compile(r"[A-Z]+|[a-z]+|\d+")
# How many names are tried in the place of one, the likeliest.
_FEW = 12


@lru_cache(maxsize=4096)
def core(name: str) -> str:
    return _AROUND.sub("", name).lower() or name.lower()


def has_axis(name: str) -> bool:
    return bool(stride_by_name(name)[1])


def has_strides(node: ast.AST) -> bool:
    return any(map(has_axis, names_in(node)))


def scales(known: Iterable[str]) -> list[str]:
    return list(filter(_SCALE.search, known))


def belongs(stride: str, beside: Iterable[str]) -> bool:
    return has_axis(stride) and stride_by_name(stride)[0] in _tensors(beside)


def is_like_one(stride: str, beside: Iterable[str]) -> bool:
    tensors = _tensors(beside)
    return any(stride_by_name(stride)[0] in shape and shape & tensors for shape in _OF_ONE_SHAPE)


def _tensors(names: Iterable[str]) -> set[str]:
    return {stride_by_name(name)[0] if has_axis(name) else core(name) for name in names}


def same_when_contiguous(first: str, other: str) -> bool:
    (tensor, axis), (of, its) = stride_by_name(first), stride_by_name(other)
    cores = {core(tensor), core(of)}
    return bool(axis) and axis == its and any(map(cores.issubset, _OF_ONE_SHAPE))


def others_of(name: str, known: Sequence[str], beside: set[str]) -> list[tuple[float, str]]:
    """(how unlikely, name), the likeliest few."""
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
    is_alike = _AROUND.findall(name) == _AROUND.findall(other) and any(
        map(pair.issubset, _KINDS)
    )
    here, there = _WORD.findall(name), _WORD.findall(other)
    differs_in_a_word = len(here) == len(there) > 1 and sum(map(str.__ne__, here, there)) == 1
    if is_alike or differs_in_a_word or len(scales((name, other))) == 2:
        return 0.5
    return 1.5 if name.isupper() and max(len(name), len(other)) <= 3 else 3.0
