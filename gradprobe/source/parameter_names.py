"""What names of kernels' parameters say by the field's custom: which tensor a pointer is, whose stride a number is."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..model.intermediates import TABLE, plain

# What tensors are called in kernels, each with its name here. Single letters that are sizes as often are left out.
_WORDS = {name: name for name in ("q", "k", "v", "do", "bias", "mask", "tau", "alibi", "sinks", "seqlens")}
_WORDS |= {word: row.name.lower() for row in TABLE for word in (plain(row.name), *plain(row.called.parameters).split())}
_WORDS |= {"query": "q", "key": "k", "value": "v", "out": "o", "output": "o", "db": "dbias"}
_WORDS |= dict.fromkeys(("dout", "grado", "gradout", "gradoutput"), "do")
# The ends of strides' names, with the axis that each is: batch, head, position (of rows or keys), dim.
_AXES = dict.fromkeys(("b", "z", "bs", "bz", "batch", "0"), "b")
_AXES |= dict.fromkeys(("h", "head", "heads", "g", "1"), "h")
_AXES |= dict.fromkeys(("m", "n", "s", "l", "t", "seq", "tok", "row", "rows", "seqlen", "i", "j", "2"), "m")
_AXES |= dict.fromkeys(("d", "k", "dim", "e", "v", "3"), "d") | {"w": "w"}
_STRIDE = re.compile(r"strides?", re.IGNORECASE)


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


def stride_of(parameter: str, words: Collection[str]) -> tuple[str, str]:
    """(the word of the tensor, the axis) that a stride's name says: ("do", "h") of stride_doh, do_stride_h, do_h, ...

    Args:
        words: those of the kernel's pointers.

    Returns:
        ("", "") where the name is no stride's or does not tell.
    """
    rest = _STRIDE.sub("", parameter).replace("_", "").lower()
    for word in sorted(words, key=len, reverse=True):
        if rest == word and is_stride(parameter):
            return word, ""
        axis = rest[len(word) :] if rest.startswith(word) else ""
        if axis in _AXES and (is_stride(parameter) or parameter.lower() == f"{word}_{axis}"):
            return word, _AXES[axis]
    return "", ""
