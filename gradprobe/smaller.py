"""The same words for the interpreter: what cost a GPU its process is run small there, where every access is watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .last import Asked

# Rows and keys beyond twice as many become so many and as many more as were left over, so that a last tile of any
# usual size is as full as it was.
_SPAN = 128
# Batches, and key heads: two show whatever one hides.
_FEW = 2
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k")
# What says how long each sequence is.
_OWN_LENGTHS = ("seqlens", "cu_seqlens", "cu_seqlens_k", "inputs")


def for_the_interpreter(asked: Asked) -> Asked:
    """What was asked of a GPU, asked of the CPU, no larger than shows what the layout does.

    Options that name a length or a value of each batch or head leave those as many as they are.
    """
    options = {name: word for name, word in asked.options.items() if name != "dots"} | {"device": "cpu"}
    if not any(name in options for name in _OWN_LENGTHS):
        options |= {name: _length(options[name]) for name in _LENGTHS if name in options}
        options |= {"batch": min(options["batch"], _FEW)} if "batch" in options else {}
    if "," not in str(options.get("tau", "")):
        options |= _heads(options)
    return replace(asked, options=options)


def _length(length: int) -> int:
    return length if length <= 2 * _SPAN else _SPAN + length % _SPAN


def _heads(options: Mapping[str, Any]) -> dict[str, int]:
    """Two key heads, each with as many query heads as it had."""
    heads = options.get("heads", 0)
    keys = options.get("kv_heads", heads)
    if keys <= _FEW or heads % keys:
        return {}
    return {"heads": _FEW * heads // keys} | ({"kv_heads": _FEW} if "kv_heads" in options else {})
