"""What names of kernels' parameters say by the field's custom: which tensor a pointer is, whose stride a number is."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from ..model.intermediates import TABLE, names, plain

# What parameters of targets may be called; the first is the name used everywhere here.
SYNONYMS = {
    "q": ("query", "query_states", "query_layer", "xq"),
    "k": ("key", "key_states", "key_layer", "xk"),
    "v": ("value", "value_states", "value_layer", "xv"),
    "do": ("dout", "d_o", "d_out", "grad_out", "grad_output", "grad_o"),
    "o": ("out", "output"),
    "lse": ("m", "softmax_lse", "logsumexp"),
    "scale": ("sm_scale", "softmax_scale"),
    "causal": ("is_causal",),
    "bias": ("attn_bias", "attn_mask", "attention_mask"),
    "window": ("window_size",),
    "align": ("alignment",),
    "alibi": ("alibi_slopes",),
    "sinks": ("sink", "attention_sinks", "s_aux"),
    "dropout": ("dropout_p", "p_dropout"),
    "keep": ("keep_mask", "dropout_mask"),
    "seqlens": ("varlen",),
    "cu_seqlens_k": ("cu_seqlens_kv",),
    "max_seqlen_k": ("max_seqlen_kv",),
    "dots": ("input_precision",),
    "group": ("process_group",),
    "mesh": ("device_mesh",),
}
for _row in TABLE:
    if _row.gradient_of:
        SYNONYMS[_row.name.lower()] = tuple(_row.called.parameters.split())
_INPUTS = ("q", "k", "v", "do", "bias", "mask", "tau", "alibi", "sinks")
# What tensors are called in kernels, each with its name here: what may be either of two is left out, as is "m".
_WORDS = {"db": "dbias", "seqlens": "seqlens"}
for _name in (*_INPUTS, *map(str.lower, names())):
    for _word in (_name, *SYNONYMS.get(_name, ())):
        if _word == _name or (len(_word) > 1 and "mask" not in _word):
            _WORDS[plain(_word)] = _name
# The ends of strides' names, with the axis that each is: batch, head, position (of rows or keys), dim.
_AXES = dict.fromkeys(("b", "z", "bs", "bz", "batch", "0"), "b")
_AXES |= dict.fromkeys(("h", "head", "heads", "g", "1"), "h")
_AXES |= dict.fromkeys(("m", "n", "s", "l", "t", "seq", "tok", "token", "row", "rows", "seqlen", "i", "j", "2"), "m")
_AXES |= dict.fromkeys(("d", "k", "dim", "e", "v", "3"), "d") | {"w": "w"}
_STRIDE = re.compile(r"strides?", re.IGNORECASE)
# Two letters are a tensor and its axis: stride_bz.
_LONG = "|".join(filter(re.compile("...").match, _AXES))
_ENDS = re.compile(rf"(\w*?)({_LONG}|\w)")


def word_of(pointer: str) -> str:
    """What a pointer's parameter is called without what says that it is one: "do" of do_ptr, Do and p_do."""
    word = pointer.lower()
    for affix in ("_pointer", "_ptrs", "_ptr", "ptr"):
        word = word.removesuffix(affix)
    return word.removeprefix("ptr_").removeprefix("p_").replace("_", "") or pointer.lower()


def tensor_of(pointer: str) -> str:
    """The tensor that a pointer's name means by custom; "" where it means none for certain."""
    return _WORDS.get(word_of(pointer), "")


def words_of(tensor: str) -> set[str]:
    """What a tensor is called in kernels; nothing for one that no name means."""
    return {word for word, meant in _WORDS.items() if meant == tensor_of(tensor)}


def is_stride(parameter: str) -> bool:
    """Whether a parameter is called a stride."""
    return _STRIDE.search(parameter) is not None


@lru_cache(maxsize=4096)
def stride_by_name(name: str) -> tuple[str, str]:
    """(tensor, axis) that a stride's name alone says, as it spells them: ("q", "head") of q_head_stride.

    Returns:
        ("", "") for what is no stride's name; the tensor is "" where it names none.
    """
    match = _ENDS.fullmatch(_bare(name)) if is_stride(name) else None
    return (match[1], match[2]) if match else ("", "")


def _bare(stride: str) -> str:
    return _STRIDE.sub("", stride).replace("_", "").lower()


def stride_of(parameter: str, words: Collection[str]) -> tuple[str, str]:
    """(the word of the tensor, the axis) that a stride's name says: ("do", "h") of stride_doh, do_stride_h, do_h, ...

    Args:
        words: those of the kernel's pointers.

    Returns:
        ("", "") where the name is no stride's or does not tell.
    """
    rest = _bare(parameter)
    for word in sorted(words, key=len, reverse=True):
        if rest == word and is_stride(parameter):
            return word, ""
        axis = rest[len(word) :] if rest.startswith(word) else ""
        if axis in _AXES and (is_stride(parameter) or parameter.lower() == f"{word}_{axis}"):
            return word, _AXES[axis]
    return "", ""
