"""What names of kernels' parameters say by custom: which tensor is meant, or whose stride."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from ..model.intermediates import TABLE, names, plain

# What tensors are called; the first is the name used everywhere here.
_SYNONYMS = {
    "q": "query query_states query_layer xq", "k": "key key_states key_layer xk",
    "v": "value value_states value_layer xv", "do": "dout d_o d_out grad_out grad_output grad_o", "o": "out output",
    "lse": "m softmax_lse logsumexp", "bias": "attn_bias attn_mask attention_mask", "alibi": "alibi_slopes",
    "sinks": "sink attention_sinks s_aux", "seqlens": "varlen",
}  # fmt: skip
_SYNONYMS |= {row.name.lower(): row.called.parameters for row in TABLE if row.gradient_of}
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
_AXES = {end: axis for axis, ends in _ENDS_OF.items() for end in ends.split()}
_STRIDE = re.compile(r"strides?", re.IGNORECASE)
# Two letters are a tensor and its axis: stride_bz.
_LONG = "|".join(filter(re.compile("...").match, _AXES))
_ENDS = re.compile(rf"(\w*?)({_LONG}|\w)")


def word_of(pointer: str) -> str:
    """A pointer's name without what says that it is one: "do" of do_ptr, Do and p_do."""
    word = pointer.lower()
    for affix in ("_pointer", "_ptrs", "_ptr", "ptr"):
        word = word.removesuffix(affix)
    return word.removeprefix("ptr_").removeprefix("p_").replace("_", "") or pointer.lower()


def tensor_of(pointer: str) -> str:
    """The tensor that a pointer's name means; "" where it means none for certain."""
    return _WORDS.get(word_of(pointer), "")


def words_of(tensor: str) -> set[str]:
    return {word for word, meant in _WORDS.items() if meant == tensor_of(tensor)}


def is_stride(parameter: str) -> bool:
    return _STRIDE.search(parameter) is not None


@lru_cache(maxsize=4096)
def stride_by_name(name: str) -> tuple[str, str]:
    """(tensor, axis) as a stride's name spells them: ("q", "head") of q_head_stride; "" where it does not tell."""
    match = _ENDS.fullmatch(_bare(name)) if is_stride(name) else None
    return (match[1], match[2]) if match else ("", "")


def _bare(stride: str) -> str:
    return _STRIDE.sub("", stride).replace("_", "").lower()


def stride_of(parameter: str, words: Collection[str]) -> tuple[str, str]:
    """(word, axis) that a stride's name says, of the words of pointers: ("do", "h") of stride_doh, do_stride_h, do_h.

    "" where it does not tell.
    """
    rest, is_called_one = _bare(parameter), is_stride(parameter)
    for word in sorted(words, key=len, reverse=True):
        axis = rest.removeprefix(word)
        if not axis and is_called_one:
            return word, ""
        is_stride_of_it = is_called_one or parameter.lower() == f"{word}_{axis}"
        if axis != rest and axis in _AXES and is_stride_of_it:
            return word, _AXES[axis]
    return "", ""
